"""FedNoiL with the changes that reached the paper's number on CIFAR-10 (experiments/cifar): D^x drawn class by class,
and pseudo-labels only once the model is good enough for them."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.fednoil import FedNoil, FedNoilConfig
from fednoil.learners.labelled_set import drawn_order
from fednoil.seeds import Seeds, open_uniform


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

    def split(self, weight: Tensor, labels: Tensor, size: int, seeds: Seeds, epochs: range) -> tuple[Tensor, Tensor]:
        """Each given class by its frequency: a class that the model never predicts would otherwise be lost."""
        clients, count = weight.shape
        order = drawn_order(weight, seeds, epochs, self.set_aside(count, weight.device)).unflatten(0, (clients, -1))
        begin = open_uniform(seeds.child("class").keys(epochs, weight.device), self.task.num_classes)
        fair = by_class(labels.flatten()[order], begin.unflatten(0, (clients, -1)))
        order = order.gather(2, fair).flatten(0, 1)
        return order[:, :size], order[:, size:]


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
