"""The same number of local epochs in every round, and one fewer in the last ones if a total requires it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from fednoil.plugins import About
from fednoil.schedules.base import Schedule, ScheduleConfig, check_round


class ConstantConfig(ScheduleConfig):
    by_share = frozenset({"epochs", "r_min"})
    completes: ClassVar[Mapping[str, str]] = {"r_min": "epochs"}

    name: Literal["constant"] = "constant"
    epochs: int = Field(default=30, ge=1, description="local epochs in every round")
    r_min: int | None = Field(
        default=None, ge=1, description="the round from which there is one epoch fewer; none: never"
    )


class Constant(Schedule):
    Config = ConstantConfig
    about = About(title="The same number of local epochs in every round")
    config: ConstantConfig

    @classmethod
    def matching(cls, schedule: Schedule, rounds: int) -> Constant:
        """The constant schedule with exactly the same total over `rounds` rounds."""
        return cls(ConstantConfig.model_validate(adding_up_to(schedule.total(rounds), rounds)))

    def epochs(self, round_idx: int) -> int:
        check_round(round_idx)
        last = self.config.r_min is not None and round_idx >= self.config.r_min
        return max(1, self.config.epochs - last)


def adding_up_to(total: int, rounds: int) -> dict[str, int]:
    """The keys of the constant schedule with `total` local epochs over `rounds` rounds."""
    epochs, extra = divmod(total, rounds)
    return {"epochs": epochs + 1, "r_min": extra + 1} if extra else {"epochs": epochs}
