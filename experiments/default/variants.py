"""The default without an ingredient that has no key: `--set learner.name=variants:NoOdds`, with this folder on
PYTHONPATH."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig


class NoOddsConfig(FedNoilPlusConfig):
    name: Literal["variants:NoOdds"] = "variants:NoOdds"  # pyright: ignore[reportIncompatibleVariableOverride]


class NoOdds(FedNoilPlus):
    """D^x by confidence in all rounds."""

    Config = NoOddsConfig

    def believes(self, round_idx: int, count: int) -> bool:
        return False


class NoClassesConfig(FedNoilPlusConfig):
    name: Literal["variants:NoClasses"] = "variants:NoClasses"  # pyright: ignore[reportIncompatibleVariableOverride]


class NoClasses(FedNoilPlus):
    """Labels are judged by what the model says, whichever classes a client holds."""

    Config = NoClassesConfig

    def local(self, probabilities: Tensor, labels: Tensor, share: float) -> Tensor:
        return probabilities
