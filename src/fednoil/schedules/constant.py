"""The same number of local epochs in every round, and one more in the first ones if a total requires it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from fednoil.plugins import About
from fednoil.schedules.base import Schedule, ScheduleConfig, check_round


class ConstantConfig(ScheduleConfig):
    by_share = frozenset({"epochs", "extra_rounds"})
    completes: ClassVar[Mapping[str, str]] = {"extra_rounds": "epochs"}

    name: Literal["constant"] = "constant"
    epochs: int = Field(default=30, ge=1, description="local epochs in every round")
    extra_rounds: int = Field(default=0, ge=0, description="first rounds that have one more epoch each")


class Constant(Schedule):
    Config = ConstantConfig
    about = About(title="The same number of local epochs in every round")
    config: ConstantConfig

    @classmethod
    def matching(cls, schedule: Schedule, rounds: int) -> Constant:
        """The constant schedule with exactly the same total over `rounds` rounds."""
        epochs, extra = divmod(schedule.total(rounds), rounds)
        return cls(ConstantConfig(epochs=epochs, extra_rounds=extra))

    def epochs(self, round_idx: int) -> int:
        check_round(round_idx)
        return self.config.epochs + (round_idx <= self.config.extra_rounds)
