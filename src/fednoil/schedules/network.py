"""As many local epochs as suit the network: a large one has long rounds at first, another the same number throughout.

A small network is trained in a few epochs and drifts away from the other clients' in more; a large one is still
learning (experiments/default).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fednoil.plugins import About
from fednoil.schedules.base import BoundedConfig, Schedule, check_round
from fednoil.schedules.decay import Logarithm, LogarithmConfig

_FALLS = 0.4  # share of the rounds in which the epochs fall, as in the paper: 80 of 200


class ByNetworkConfig(BoundedConfig):
    by_share = frozenset({"t_min", "epochs"})
    follows_rounds: ClassVar[bool] = True

    name: Literal["network"] = "network"
    t_min: int = Field(default=20, ge=1, description="local epochs in every round; of a large network the fewest")
    epochs: int = Field(default=100, ge=1, description="local epochs of a large network in round 1")


class ByNetwork(Schedule):
    """`t_min` epochs; a large network has `epochs` in round 1, falling to `t_min` like `logarithm`."""

    Config = ByNetworkConfig
    about = About(title="The same number of local epochs, or for a large network a falling one")
    config: ByNetworkConfig

    def fitted(self, rounds: int, *, large: bool) -> Schedule:
        if not large:
            return self
        bounds = {"epochs": self.config.epochs, "t_min": self.config.t_min, "r_min": max(2, round(_FALLS * rounds))}
        return Logarithm(LogarithmConfig.model_validate(bounds))

    def epochs(self, round_idx: int) -> int:
        """Those of a network that isn't large."""
        check_round(round_idx)
        return self.config.t_min
