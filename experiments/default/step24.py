"""Step 24: `--set learner.name=step24:Full`, or `step24:Many`, with this folder on PYTHONPATH."""

from __future__ import annotations

from typing import Literal

from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.scale import MANY


class FullConfig(FedNoilPlusConfig):
    name: Literal["step24:Full"] = "step24:Full"  # pyright: ignore[reportIncompatibleVariableOverride]


class Full(FedNoilPlus):
    """Logits are adjusted in full."""

    Config = FullConfig

    def half_at(self, count: int) -> int:
        return 0


class ManyConfig(FedNoilPlusConfig):
    name: Literal["step24:Many"] = "step24:Many"  # pyright: ignore[reportIncompatibleVariableOverride]


class Many(FedNoilPlus):
    """Clients with many labels adjust logits in full."""

    Config = ManyConfig

    def half_at(self, count: int) -> int:
        return 0 if count >= MANY else super().half_at(count)
