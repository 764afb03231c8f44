"""FedNoiL's client side (Wang et al., 2022): sample the labels that look clean, use the rest as unlabelled data.

Once a round the received global model gives each sample's confidence in its given label. Every epoch a labelled
set D^x is drawn by these confidences without replacement; the rest is the unlabelled set D^u, whose pseudo-labels
come from the same global model and are trained on strong views where they are confident enough (FixMatch, Sohn
et al., NeurIPS 2020). `fednoil.learners.labelled` has what D^x needs.

What the paper leaves open, in our reading: an epoch goes through D^x once and through D^u alongside, ξ = 0.95, λ_u = 1,
hard pseudo-labels from the mean of two weak views, weak views of D^x. `frac = "auto"` is our addition: each client
estimates its own share of clean labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.augment import weak_plan
from fednoil.learners import pseudo_labels
from fednoil.learners.base import Client, Nets, Turn
from fednoil.learners.labelled import Batches, LabelledConfig, LabelledLearner
from fednoil.learners.lot import Lot
from fednoil.plugins import About
from fednoil.seeds import Seeds
from fednoil.tensors import Tensors


class FedNoilConfig(LabelledConfig):
    name: Literal["fednoil"] = "fednoil"
    xi: float = Field(default=0.95, gt=0, le=1, description="lowest certainty at which a pseudo-label is used")
    weight: float = Field(default=1.0, ge=0, description="λ_u: weight of the unlabelled loss; 0: no pseudo-labels")

    def lost_class_advice(self) -> str:
        return "--set learner.name=fednoil-plus may help"


class FedNoil(LabelledLearner):
    Config = FedNoilConfig
    config: FedNoilConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    room = 0.2
    teachers: ClassVar[int] = 2  # weak views whose mean is a pseudo-label
    about = About(
        title="Confidence-sampled clean labels, FixMatch on the rest",
        paper="Wang et al., 2022 (FedNoiL)",
        keeps="nothing",
        sends="model",
        cost="about 1 an epoch, and 3 passes over the data a round",
    )

    @property
    def has_pseudo_labels(self) -> bool:
        return self.config.weight > 0

    def trains_on_unlabelled(self, round_idx: int) -> bool:
        return self.has_pseudo_labels

    def asks(self, client: Client, turn: Turn) -> Tensors:
        return FedNoil.asks_all(self, [client], [turn])[0]

    def asks_all(self, clients: Sequence[Client], turns: Sequence[Turn]) -> list[Tensors]:
        if not self.trains_on_unlabelled(turns[0].round_idx):
            return [{} for _ in clients]
        seeds, device = Seeds(tuple(turn.seed.child("teacher") for turn in turns)), clients[0].index.device
        keys = seeds.keys(range(self.teachers), device).view(len(clients), -1)
        plans = weak_plan(keys, max(map(len, clients)), self.task.pad, flip=self.task.flip).transpose(1, 2)
        return [{"weak": plan[: len(client)]} for client, plan in zip(clients, plans, strict=True)]

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        return {"taught": pseudo_labels.taught(nets["model"], client, asked["weak"])} if asked else {}

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        """With the probabilities of pseudo-labels where they are trained on."""
        taught = {"taught": state["taught"]} if self.trains_on_unlabelled(round_idx) else {}
        return super().known(state, round_idx) | taught

    def rest_plan(self, lot: Lot, order: Tensor, known: Tensors) -> tuple[Batches, Tensors]:
        """D^u with its pseudo-labels, and the votes these give each sample."""
        if "taught" not in known or not any(lot.rest):
            return {}, {}
        widths = [-(-count // steps) for count, steps in zip(lot.rest, lot.steps, strict=True)]
        u = lot.batches(order, lot.sizes, lot.rest, widths, "order u")
        labels, accepted = pseudo_labels.decided(known["taught"], self.config.xi)
        plan = {
            "u_index": lot.client.index[u],
            "u_strong": self.strong_views(lot, u, "strong u"),
            "u_labels": labels[u],
            "u_mask": accepted[u],
        }
        batch = {name: lot.cut(tensor, widths) for name, tensor in plan.items()}
        weights = [self.unlabelled_weight(x, u) for x, u in zip(lot.sizes, lot.rest, strict=True)]
        pairs = zip(batch["u_index"], weights, strict=True)
        batch["u_weight"] = [torch.full((len(part),), weight, device=u.device) for part, weight in pairs]
        votes = torch.zeros(len(lot.client), self.task.num_classes, dtype=torch.int64, device=u.device)
        rows, unlabelled = order.flatten(), lot.among(lot.sizes, lot.counts).expand(order.shape).flatten()
        pseudo_labels.count_votes(votes, rows, labels[rows], accepted[rows] & unlabelled)
        return batch, {"votes": votes}

    def unlabelled_weight(self, labelled: int, unlabelled: int) -> float:
        """λ_u, as published; with `auto` times at most |D^u|/|D^x|, so that the last few hard samples don't outweigh
        all others."""
        return self.config.weight * (min(1.0, unlabelled / labelled) if self.config.frac == "auto" else 1.0)

    def evened(self, batches: Sequence[Tensors]) -> Sequence[Tensors] | None:
        """By adding masked samples of D^u."""
        return pseudo_labels.alike(batches) if "u_index" in batches[0] else None
