"""As many local epochs as suit the network and the clients: the same number in every round, and for a large network
more at first.

A small network is trained in a few epochs and drifts away from the other clients' in more; a large one still learns
(experiments/default). With few labels an epoch has few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fednoil.plugins import About
from fednoil.scale import MANY
from fednoil.schedules.base import Schedule, ScheduleConfig, check_round
from fednoil.schedules.constant import Constant, ConstantConfig
from fednoil.schedules.decay import Logarithm, LogarithmConfig

_FIRST, _LAST = 10, 2  # times `epochs`: those of a large network in round 1, and at least
_FALLS = 0.4  # share of the rounds in which they fall, as in the paper: 80 of 200
_FEW = 3  # times `epochs`: those of clients with few labels


class ByNetworkConfig(ScheduleConfig):
    by_share = frozenset({"epochs"})
    follows_rounds: ClassVar[bool] = True

    name: Literal["network"] = "network"
    epochs: int = Field(
        default=10,
        ge=1,
        description=f"local epochs in every round; {_FEW} times as many if clients have fewer than {MANY} samples on "
        f"average; a large network has {_FIRST} times as many in round 1, falling to {_LAST} times as many",
    )


class ByNetwork(Schedule):
    """The same number of epochs in every round; those of a large network fall like `logarithm`'s."""

    Config = ByNetworkConfig
    about = About(title="The same number of local epochs, or for a large network a falling one")
    config: ByNetworkConfig

    def fitted(self, rounds: int, *, large: bool, sizes: Sequence[int]) -> Schedule:
        epochs, r_min = self.config.epochs, max(2, round(_FALLS * rounds))
        if large:
            return Logarithm(LogarithmConfig(epochs=_FIRST * epochs, t_min=_LAST * epochs, r_min=r_min))
        few = sum(sizes) < MANY * len(sizes)
        return Constant(ConstantConfig(epochs=_FEW * epochs if few else epochs))

    def epochs(self, round_idx: int) -> int:
        """Those of a small network at clients with many samples."""
        check_round(round_idx)
        return self.config.epochs
