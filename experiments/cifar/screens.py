"""FedNoiL with SemiNLL's penalties: `--set learner.name=screens:Penalised`, with this folder on PYTHONPATH."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fednoil.learners.fednoil import FedNoil, FedNoilConfig
from fednoil.tensors import Tensors


class PenalisedConfig(FedNoilConfig):
    name: Literal["screens:Penalised"] = "screens:Penalised"  # pyright: ignore[reportIncompatibleVariableOverride]
    prior: float = Field(default=0.8, ge=0, description="weight of the divergence of the batch's mean from all classes")
    entropy: float = Field(default=0.4, ge=0, description="weight of the entropy of predictions")


class Penalised(FedNoil):
    Config = PenalisedConfig
    config: PenalisedConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def labelled_loss(self, logits: Tensor, batch: Tensors) -> Tensor:
        log_p = logits.float().log_softmax(1)
        p = log_p.exp()
        divergence = -(p.mean(0) * logits.shape[1]).clamp_min(1e-9).log().mean()
        entropy = -(p * log_p).sum(1).mean()
        loss = super().labelled_loss(logits, batch)
        return loss + self.config.prior * divergence + self.config.entropy * entropy
