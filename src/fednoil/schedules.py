"""How many local epochs in round r (paper, "Schedules of Local Epochs").

Rounds count from 1. The decaying schedules are solved so that they reach `t_min` at round `r_min` and stay
there: the paper's cosine is periodic and would rise again later, which its text rules out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from fednoil.plugins import Axis
from fednoil.section import Section


class Schedule(ABC):
    """Local epochs by round."""

    Config: ClassVar[type[ScheduleConfig]]

    @abstractmethod
    def epochs(self, round_idx: int) -> int:
        """Local epochs T_r of round `round_idx`, counted from 1."""

    def total(self, rounds: int) -> int:
        """Σ T_r over rounds 1..rounds."""
        return sum(self.epochs(r) for r in range(1, rounds + 1))


class Constant(Schedule):
    """`epochs` in every round, and one more in each of the first `extra_rounds`; a round may have none."""

    def __init__(self, epochs: int, extra_rounds: int = 0) -> None:
        if epochs < 0 or extra_rounds < 0 or epochs + extra_rounds < 1:
            raise ValueError(f"Constant needs epochs >= 1, not {epochs}")
        self._epochs = epochs
        self._extra_rounds = extra_rounds

    @classmethod
    def matching(cls, schedule: Schedule, rounds: int) -> Constant:
        """The constant schedule with exactly the same total over `rounds` rounds."""
        return cls(*divmod(schedule.total(rounds), rounds))

    def epochs(self, round_idx: int) -> int:
        _check_round(round_idx)
        return self._epochs + (round_idx <= self._extra_rounds)


class _Decay(Schedule):
    """From `t_max` epochs in round 1 down to `t_min` in round `r_min` and after it."""

    def __init__(self, t_max: int = 100, t_min: int = 20, r_min: int = 80) -> None:
        if r_min < 2:
            raise ValueError(f"r_min = {r_min}: must be at least 2")
        if not 1 <= t_min <= t_max:
            raise ValueError(f"t_min = {t_min}: must be between 1 and t_max = {t_max}")
        self.t_max, self.t_min, self.r_min = t_max, t_min, r_min

    @abstractmethod
    def share(self, round_idx: int) -> float:
        """How much of t_max − t_min is left in round `round_idx` < r_min: 1 in round 1, 0 in round r_min."""

    def epochs(self, round_idx: int) -> int:
        _check_round(round_idx)
        if round_idx >= self.r_min:
            return self.t_min
        exact = self.t_min + (self.t_max - self.t_min) * self.share(round_idx)
        return max(self.t_min, math.floor(exact + 0.5))


class Cosine(_Decay):
    """T_min + (T_max − T_min) cos((r−1)π / ψ₁R) with ψ₁R = 2(r_min−1): slow at first, then faster."""

    def share(self, round_idx: int) -> float:
        return math.cos((round_idx - 1) * math.pi / (2 * (self.r_min - 1)))


class Logarithm(_Decay):
    """T_max − log_ψ₂ r with ψ₂ = r_min^(1/(T_max−T_min)): fast at first, then slower."""

    def share(self, round_idx: int) -> float:
        return 1 - math.log(round_idx) / math.log(self.r_min)


class Warmed(Schedule):
    """`epochs` in each of the first `rounds`, and then another schedule from its round 1 on."""

    def __init__(self, schedule: Schedule, rounds: int, epochs: int) -> None:
        self._schedule, self._rounds, self._epochs = schedule, rounds, epochs

    def epochs(self, round_idx: int) -> int:
        _check_round(round_idx)
        return self._epochs if round_idx <= self._rounds else self._schedule.epochs(round_idx - self._rounds)


def _check_round(round_idx: int) -> None:
    if round_idx < 1:
        raise ValueError(f"rounds count from 1, not {round_idx}")


class ScheduleConfig(Section):
    """The keys every schedule has."""

    name: str = "constant"

    warmup_rounds: int = Field(default=0, ge=0, description="rounds before the schedule begins")
    warmup_epochs: int = Field(default=1, ge=1, description="local epochs in each of them")

    later: ClassVar[frozenset[str]] = frozenset(("warmup_rounds", "warmup_epochs"))

    def build(self) -> Schedule:
        raise NotImplementedError

    def _warmed(self, schedule: Schedule) -> Schedule:
        return Warmed(schedule, self.warmup_rounds, self.warmup_epochs) if self.warmup_rounds else schedule


class ConstantConfig(ScheduleConfig):
    name: Literal["constant"] = "constant"
    epochs: int = Field(default=30, ge=1)
    extra_rounds: int = Field(default=0, ge=0, description="one more epoch in each of the first so many rounds")

    def build(self) -> Schedule:
        return self._warmed(Constant(self.epochs, self.extra_rounds))


class DecayConfig(ScheduleConfig):
    name: Literal["cosine", "logarithm"] = "cosine"
    t_max: int = Field(default=100, ge=1)
    t_min: int = Field(default=20, ge=1)
    r_min: int = Field(default=80, ge=2)

    @model_validator(mode="after")
    def _ordered(self) -> DecayConfig:
        if self.t_min > self.t_max:
            raise ValueError(f"schedule.t_min = {self.t_min} must not exceed schedule.t_max = {self.t_max}")
        return self

    def build(self) -> Schedule:
        kind = Cosine if self.name == "cosine" else Logarithm
        return self._warmed(kind(self.t_max, self.t_min, self.r_min))


Constant.Config = ConstantConfig
Cosine.Config = Logarithm.Config = DecayConfig

SCHEDULES: dict[str, type[Schedule]] = {"constant": Constant, "cosine": Cosine, "logarithm": Logarithm}
AXIS = Axis("schedule", Schedule, SCHEDULES, default="constant")
