"""How many local epochs a round has: each schedule is one file and one line in the table below."""

from __future__ import annotations

from typing import Any

from fednoil.plugins import Axis
from fednoil.schedules.base import Schedule, ScheduleConfig
from fednoil.schedules.constant import Constant
from fednoil.schedules.decay import Cosine, Logarithm
from fednoil.schedules.network import ByNetwork

__all__ = ["AXIS", "SCHEDULES", "Constant", "Cosine", "Logarithm", "Schedule", "make"]

SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "logarithm": Logarithm,
    "network": ByNetwork,
}
AXIS = Axis("schedule", Schedule, SCHEDULES, default="constant")


def make(config: ScheduleConfig | dict[str, Any]) -> Schedule:
    """The schedule that a section names."""
    if isinstance(config, dict):
        name = str(config["name"])
        return AXIS.find(name)(AXIS.config(name).model_validate(config))
    return AXIS.find(config.name)(config)
