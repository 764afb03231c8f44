"""The contract of a schedule: how many local epochs a round has."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

from pydantic import Field

from fednoil.errors import UserError
from fednoil.plugins import About
from fednoil.section import Section


class ScheduleConfig(Section):
    """The keys every schedule has."""

    follows_rounds: ClassVar[bool] = False  # whether a round's epochs depend on the total number of rounds
    by_share: ClassVar[frozenset[str]] = frozenset()  # keys whose numbers fit the share of clients in a round

    name: str = Field(default="constant", description="how the number of local epochs changes from round to round")

    def spread(self, share: float) -> dict[str, Any]:
        """The keys of a schedule with this share of the epochs, for more clients in a round: a whole number is rounded,
        to at least 1 unless it is 0."""

        def times(value: float) -> float:
            return max(min(value, 1), math.floor(share * value + 0.5)) if isinstance(value, int) else share * value

        numbers = {key: getattr(self, key) for key in self.by_share}
        return {key: times(number) for key, number in numbers.items() if number is not None}


class Schedule(ABC):
    """Local epochs by round. Rounds count from 1."""

    Config: ClassVar[type[ScheduleConfig]] = ScheduleConfig
    about: ClassVar[About | None] = None

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def epochs(self, round_idx: int) -> int:
        """Local epochs T_r of round `round_idx`, at least one."""

    def fitted(self, rounds: int, *, large: bool, sizes: Sequence[int]) -> Schedule:
        """The schedule of a run with so many rounds, of a large network or another, at clients with so many samples;
        here the same for all."""
        return self

    def whole(self, round_idx: int) -> int:
        """`epochs`, checked: a user's own schedule may return anything."""
        epochs: object = self.epochs(round_idx)
        if isinstance(epochs, bool) or not isinstance(epochs, Integral) or epochs < 1:
            raise UserError(
                f"schedule.name = '{self.config.name}' gives round {round_idx} {epochs!r} local epochs; it must return "
                "a whole number of at least 1"
            )
        return int(epochs)

    def total(self, rounds: int) -> int:
        """Σ T_r over rounds 1..rounds."""
        return sum(self.whole(r) for r in range(1, rounds + 1))


def check_round(round_idx: int) -> None:
    if round_idx < 1:
        raise ValueError(f"rounds count from 1, not {round_idx}")
