"""As many local epochs as clients agree: long rounds while they learn the same, short ones once each learns its own."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from fednoil.plugins import About
from fednoil.schedules.base import BoundedConfig, Following, check_round

_FIRST = 10  # local epochs of round 1, when nothing is known


class AgreementConfig(BoundedConfig):
    by_share = frozenset({"t_min", "epochs"})

    name: Literal["agreement"] = "agreement"
    t_min: int = Field(default=30, ge=1, description="fewest local epochs")
    epochs: int = Field(default=100, ge=1, description="local epochs if all clients change the model alike")


class Agreement(Following):
    """`epochs` times the share of the clients' changes that they have in common, and at least `t_min`."""

    Config = AgreementConfig
    about = About(title="Local epochs in proportion to how much the clients' updates have in common")
    config: AgreementConfig

    def epochs(self, round_idx: int) -> int:
        check_round(round_idx)
        return min(self.config.epochs, max(self.config.t_min, _FIRST))

    def next_epochs(self, round_idx: int, common: float) -> int:
        return max(self.config.t_min, math.floor(self.config.epochs * common + 0.5))
