"""Many local epochs first, fewer later (paper, "Schedules of Local Epochs").

Solved so that they reach `t_min` at round `r_min` and stay there: the paper's cosine is periodic and would rise again
later, which its text rules out.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal, Self

from pydantic import Field, model_validator

from fednoil.plugins import About
from fednoil.schedules.base import Schedule, ScheduleConfig, check_round


class DecayConfig(ScheduleConfig):
    by_share = frozenset({"epochs", "t_min"})

    epochs: int = Field(default=100, ge=1, description="T_max: local epochs in round 1")
    t_min: int = Field(default=20, ge=1, description="local epochs from round `r_min` on")
    r_min: int = Field(default=80, ge=2, description="the round in which `t_min` is reached")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.t_min > self.epochs:
            raise ValueError(
                f"schedule.t_min = {self.t_min} must not exceed schedule.epochs = {self.epochs}; "
                "schedule.name = 'constant' has no t_min"
            )
        return self


class Decay(Schedule):
    """From T_max = `epochs` in round 1 down to `t_min` in round `r_min` and after it."""

    Config = DecayConfig
    config: DecayConfig

    @abstractmethod
    def share(self, round_idx: int) -> float:
        """How much of T_max − T_min is left in round `round_idx` < r_min: 1 in round 1, 0 in round r_min."""

    def epochs(self, round_idx: int) -> int:
        check_round(round_idx)
        most, least = self.config.epochs, self.config.t_min
        if round_idx >= self.config.r_min:
            return least
        return max(least, math.floor(least + (most - least) * self.share(round_idx) + 0.5))


class CosineConfig(DecayConfig):
    name: Literal["cosine"] = "cosine"


class Cosine(Decay):
    """T_min + (T_max − T_min) cos((r−1)π / ψ₁R) with ψ₁R = 2(r_min−1): slow at first, then faster."""

    Config = CosineConfig
    about = About(title="Local epochs fall to t_min at round r_min: slowly at first")

    def share(self, round_idx: int) -> float:
        return math.cos((round_idx - 1) * math.pi / (2 * (self.config.r_min - 1)))


class LogarithmConfig(DecayConfig):
    name: Literal["logarithm"] = "logarithm"


class Logarithm(Decay):
    """T_max − log_ψ₂ r with ψ₂ = r_min^(1/(T_max−T_min)): fast at first, then slower."""

    Config = LogarithmConfig
    about = About(title="Local epochs fall to t_min at round r_min: fast at first")

    def share(self, round_idx: int) -> float:
        return 1 - math.log(round_idx) / math.log(self.config.r_min)
