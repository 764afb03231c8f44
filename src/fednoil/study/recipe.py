"""FedNoiL with the changes that reached the paper's number on CIFAR-10 (experiments/cifar): D^x drawn class by class,
and pseudo-labels only once the model is good enough for them."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.fednoil import FedNoil, FedNoilConfig
from fednoil.learners.lot import Lot
from fednoil.seeds import open_uniform


class RecipeConfig(FedNoilConfig):
    name: str = "fednoil.study.recipe:Recipe"  # pyright: ignore[reportIncompatibleVariableOverride]
    ssl_start: int = Field(default=161, ge=1, description="first round that trains on pseudo-labels")

    def lost_class_advice(self) -> str:
        return ""


class Recipe(FedNoil):
    Config = RecipeConfig
    config: RecipeConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def trains_on_unlabelled(self, round_idx: int) -> bool:
        return super().trains_on_unlabelled(round_idx) and round_idx >= self.config.ssl_start

    def order(self, lot: Lot, weight: Tensor) -> Tensor:
        """Each given class by its frequency: a class that the model never predicts would otherwise be lost."""
        order, classes = super().order(lot, weight), self.task.num_classes
        labels = torch.where(lot.among(lot.none, lot.counts)[:, 0], lot.spread(lot.client.labels), classes)
        begin = open_uniform(lot.keys("class"), classes)
        begin = torch.cat([begin, torch.full_like(begin[..., :1], len(lot.client))], -1)  # what is no sample comes last
        return order.gather(2, by_class(labels[:, None].expand(order.shape).gather(2, order), begin))


def by_class(labels: Tensor, begin: Tensor) -> Tensor:
    """An order [..., n] of places in labels [..., n] whose beginnings, of any length, have each class by its frequency;
    within a class as they came. `begin` [..., C], in (0, 1), says how soon the first of each class is due: drawn at
    random, a class of one label is in the first tenth of every tenth order."""
    counts = labels.new_zeros(begin.shape).scatter_add(-1, labels, torch.ones_like(labels))
    grouped = labels.argsort(dim=-1, stable=True)
    of = labels.gather(-1, grouped)
    place = torch.arange(labels.shape[-1], device=labels.device) - (counts.cumsum(-1) - counts).gather(-1, of)
    due = (place + begin.gather(-1, of)) / counts.gather(-1, of)
    return torch.empty_like(due).scatter_(-1, grouped, due).argsort(dim=-1, stable=True)
