"""The default without an ingredient that has no key: `--set learner.name=variants:NoOdds`, with this folder on
PYTHONPATH."""

from __future__ import annotations

from typing import Literal

from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig


class NoOddsConfig(FedNoilPlusConfig):
    name: Literal["variants:NoOdds"] = "variants:NoOdds"  # pyright: ignore[reportIncompatibleVariableOverride]


class NoOdds(FedNoilPlus):
    """D^x by confidence in all rounds."""

    Config = NoOddsConfig

    def believes(self, round_idx: int, count: int) -> bool:
        return False
