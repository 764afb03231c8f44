"""Step 14: the default, which from half of the rounds on also trains on pseudo-labels.

    PYTHONPATH=experiments/default fednoil run … --set learner.name=late:Late

Each client takes as many as D^x has labels: those of the samples whose given label the received model contradicts with
the most certainty. A number instead of a threshold, because mixup makes models unsure and memorised labels make them
too sure. Their loss is adjusted by how often each class is among them, as that of D^x is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners import pseudo_labels
from fednoil.learners.base import Client, Nets
from fednoil.learners.fednoil import FedNoil
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig, adjustment
from fednoil.learners.labelled import Batches
from fednoil.learners.lot import Lot
from fednoil.tensors import Tensors, joined


class LateConfig(FedNoilPlusConfig):
    name: str = "late:Late"  # pyright: ignore[reportIncompatibleVariableOverride]
    weight: float = Field(default=1.0, ge=0, description="of the pseudo-labels' loss")
    xi: float = Field(default=0.5, ge=0, le=1, description="after a chosen sample's certainty was made 1, any number")
    start: float = Field(default=0.5, ge=0, le=1, description="share of the rounds without pseudo-labels")


class Late(FedNoilPlus, FedNoil):
    Config = LateConfig
    config: LateConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    room = 0.0

    def trains_on_unlabelled(self, round_idx: int) -> bool:
        return self.config.weight > 0 and round_idx > self.config.start * self.task.rounds

    def labelled_sizes(self, clients: Sequence[Client], states: Sequence[Tensors]) -> list[int]:
        """Also turns what the model teaches into 1 for the pseudo-labels that are used, and 0 for all others."""
        sizes = super().labelled_sizes(clients, states)
        for client, state, size in zip(clients, states, sizes, strict=True):
            if "taught" in state:
                certainty, label = state["taught"].max(1)
                against = torch.where(label != client.labels, certainty, certainty - 2)
                used = torch.zeros_like(certainty)
                used[against.topk(min(size, int((label != client.labels).sum()))).indices] = 1.0
                state["taught"] = torch.zeros_like(state["taught"]).scatter_(1, label[:, None], used[:, None])
        return sizes

    def rest_plan(self, lot: Lot, order: Tensor, known: Tensors) -> tuple[Batches, Tensors]:
        batch, found = super().rest_plan(lot, order, known)
        if "u_index" in batch and self.config.adjust:
            labels, accepted = pseudo_labels.decided(known["taught"], self.config.xi)
            priors = [
                adjustment(own, self.task.num_classes, used)
                for own, used in zip(labels.split(lot.counts), accepted.split(lot.counts), strict=True)
            ]
            batch["u_prior"] = [
                prior.expand(len(part), len(part[0]), -1) for prior, part in zip(priors, batch["u_index"], strict=True)
            ]
        return batch, found

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        if "u" not in batch:
            return super().step(nets, pool, batch, state, kind)
        x = self.labelled_inputs(batch)
        logits = nets["model"](joined([x, batch["u"].to(x.dtype)]))
        labelled, unlabelled = logits.split([len(x), len(batch["u"])])
        if "u_prior" in batch:
            unlabelled = unlabelled + batch["u_prior"]
        loss_u = pseudo_labels.unlabelled_loss(unlabelled, batch["u_labels"], batch["u_mask"])
        return self.labelled_loss(labelled, batch) + batch["u_weight"] * loss_u
