"""The contract of a schedule: how many local epochs a round has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from fednoil.plugins import About
from fednoil.section import Section


class ScheduleConfig(Section):
    """The keys every schedule has."""

    follows_rounds: ClassVar[bool] = False  # whether a round's epochs depend on the total number of rounds

    name: str = Field(default="constant", description="how the number of local epochs changes from round to round")


class BoundedConfig(ScheduleConfig):
    """The keys of a schedule between two bounds; a schedule says what they mean for it."""

    epochs: int = Field(default=100, ge=1)
    t_min: int = Field(default=20, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.t_min > self.epochs:
            raise ValueError(
                f"schedule.t_min = {self.t_min} must not exceed schedule.epochs = {self.epochs}; "
                "schedule.name = 'constant' has no t_min"
            )
        return self


class Schedule(ABC):
    """Local epochs by round. Rounds count from 1."""

    Config: ClassVar[type[ScheduleConfig]] = ScheduleConfig
    about: ClassVar[About | None] = None

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def epochs(self, round_idx: int) -> int:
        """Local epochs T_r of round `round_idx`, at least one."""

    def fitted(self, rounds: int, *, large: bool) -> Schedule:
        """The schedule of a run with so many rounds, of a large network or another; here the same for all."""
        return self

    def total(self, rounds: int) -> int:
        """Σ T_r over rounds 1..rounds."""
        return sum(self.epochs(r) for r in range(1, rounds + 1))


class Following(Schedule):
    """Local epochs that depend on earlier rounds; `epochs` are those of a round before anything is known."""

    @abstractmethod
    def next_epochs(self, round_idx: int, common: float) -> int:
        """Local epochs of a round, where `common` is the share of the clients' recent changes that they had in
        common."""


def check_round(round_idx: int) -> None:
    if round_idx < 1:
        raise ValueError(f"rounds count from 1, not {round_idx}")
