"""Early-learning regularisation (Liu et al., NeurIPS 2020): don't forget what was learnt before wrong labels were.

Each sample has a target, a moving average of the network's probabilities, and the loss adds λ ln(1 − ⟨p, target⟩),
which pulls predictions back to it. In a federation a client keeps its targets between turns, as FedELR does. The
defaults are the authors' for CIFAR-10.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client, Final, LearnerConfig, Nets, Turn
from fednoil.learners.batches import onto
from fednoil.learners.erm import Erm
from fednoil.plugins import About
from fednoil.tensors import Tensors

_EDGE = 1e-4  # probabilities stay this far from 0 and 1


class ElrConfig(LearnerConfig):
    name: Literal["elr"] = "elr"
    weight: float = Field(
        default=3.0, ge=0, description="λ: weight of the term that pulls predictions back to earlier ones"
    )


def bounded(logits: Tensor) -> Tensor:
    """Probabilities [B, C] between 1e-4 and 1 − 1e-4."""
    return torch.softmax(logits, 1).clamp(_EDGE, 1 - _EDGE)


def moved(targets: Tensor, probabilities: Tensor, beta: float) -> Tensor:
    """Targets [B, C] after a look: β of the past, the rest the probabilities, scaled to sum 1."""
    return beta * targets + (1 - beta) * probabilities / probabilities.sum(1, keepdim=True)


def pulled(logits: Tensor, targets: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Cross-entropy + λ · mean ln(1 − ⟨p, target⟩)."""
    near = (bounded(logits) * targets).sum(1)
    return F.cross_entropy(logits, labels) + weight * (1 - near).log().mean()


class Elr(Erm):
    Config = ElrConfig
    config: ElrConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    beta: ClassVar[float] = 0.7  # share of its past in a sample's target
    about = About(
        title="Early-learning regularisation",
        paper="Liu et al., NeurIPS 2020",
        keeps="targets",
        sends="model",
        cost="1",
    )

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        start = torch.zeros(len(client), self.task.num_classes, device=client.index.device)
        return {"targets": keep.get("targets", start)}

    def batches(self, client: Client, chosen: Tensor, turn: Turn, epochs: range) -> Tensors:
        return super().batches(client, chosen, turn, epochs) | {"rows": chosen}

    def indexed(self) -> tuple[str, ...]:
        return ("targets",)

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        rows, targets = batch["rows"], state["targets"]
        logits, before = nets["model"](batch["images"]), targets[rows]
        after = moved(before, bounded(logits.detach()), self.beta)
        ones = torch.ones_like(before[:, :1])
        # A sample that occurs more than once in a small client's batch moves by the mean change.
        targets.add_(onto(rows, after - before, len(targets)) / onto(rows, ones, len(targets)).clamp_min(1))
        return pulled(logits, after, batch["labels"], self.config.weight)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(keep={"targets": state["targets"]})
