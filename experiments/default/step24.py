"""Step 24: `--set learner.name=step24:Late --set learner.doubt=0.1`, with this folder on PYTHONPATH."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client, Nets, Phase, Trainee, Turn
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.learners.held import any_class
from fednoil.learners.labelled import Batches
from fednoil.learners.lot import Lot
from fednoil.learners.odds import odds
from fednoil.tensors import Tensors


class LateConfig(FedNoilPlusConfig):
    name: Literal["step24:Late"] = "step24:Late"  # pyright: ignore[reportIncompatibleVariableOverride]
    doubt: float = Field(default=0.0, ge=0, lt=1, description="ε of the loss −log((1 − ε)·p + ε/C)")
    smooth: float = Field(default=0.0, ge=0, lt=1, description="label smoothing")
    q: float = Field(default=0.0, ge=0, le=1, description="q of the loss (1 − p^q)/q; 0: cross-entropy")
    settle: float = Field(default=0.0, ge=0, le=1, description="share of the rounds, the last, without mixing")
    early: float = Field(default=0.5, ge=0, le=1, description="share of the rounds after which odds decide")
    every: bool = Field(default=False, description="D^x by odds is every sample, its loss −log(c·p + (1−c)(1−p)/(C−1))")


class Late(FedNoilPlus):
    Config = LateConfig
    config: LateConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def believes(self, round_idx: int, count: int) -> bool:
        late = round_idx > self.config.early * self.task.rounds
        return late and super().believes(self.task.rounds, count)

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return self.plans([Trainee(nets, client, state, turn)], epochs)[0]

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        last = self.task.rounds * (1 - self.config.settle)
        found = super().plans(trainees, epochs)
        return [
            [_unmixed(phase) for phase in phases] if one.turn.round_idx > last else phases
            for one, phases in zip(trainees, found, strict=True)
        ]

    def _judged(self, client: Client, state: Tensors, probabilities: Tensor, share: float) -> int:
        size = super()._judged(client, state, probabilities, share)
        if not self.config.every or any_class(probabilities, client.labels) < 0.5:
            return size
        right = odds(probabilities, client.labels, share)
        state["right"], state["share"] = right / (1 + right), torch.full_like(right, share)
        state["weight"] = torch.ones_like(right)
        return len(client)

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        return super().known(state, round_idx) | {name: state[name] for name in ("right", "share") if name in state}

    def rest_plan(self, lot: Lot, order: Tensor, known: Tensors) -> tuple[Batches, Tensors]:
        if "right" not in known:
            return super().rest_plan(lot, order, known)
        rows = zip(
            *(tensor.split(lot.counts) for tensor in (known["right"], known["share"], lot.client.labels)), strict=True
        )
        batch: Batches = {"x_clean": [], "x_prior": []}
        for (right, share, labels), steps in zip(rows, lot.steps, strict=True):
            length, total = steps * len(lot.epochs), right.sum()
            counts = right.new_ones(self.task.num_classes).scatter_add(0, labels, right)
            prior = total / (total + 100) * (counts / counts.sum()).log()
            batch["x_clean"].append(share[:1].float().expand(length))
            batch["x_prior"].append(prior.float().expand(length, -1))
        return batch, {}

    def labelled_loss(self, logits: Tensor, batch: Tensors) -> Tensor:
        if "x_clean" not in batch:
            return super().labelled_loss(logits, batch)
        share, labels, logits = batch["x_share"], batch["x_labels"], logits + batch["x_prior"]
        ours = share * self._likelihood(logits, labels, batch["x_clean"])
        return ours + (1 - share) * self._likelihood(logits, labels[batch["x_partner"]], batch["x_clean"])

    def _likelihood(self, logits: Tensor, labels: Tensor, clean: Tensor) -> Tensor:
        given = torch.exp(-F.cross_entropy(logits, labels, reduction="none").float())
        return -(clean * given + (1 - clean) * (1 - given) / (logits.shape[1] - 1)).log().mean()

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        doubt, q = self.config.doubt, self.config.q
        if not doubt and not q:
            return F.cross_entropy(logits, labels, label_smoothing=self.config.smooth)
        own = -F.cross_entropy(logits, labels, reduction="none").float()
        if q:
            return ((1 - (q * own).exp()) / q).mean()
        return -torch.logaddexp(
            own + math.log(1 - doubt), torch.full_like(own, math.log(doubt / logits.shape[1]))
        ).mean()


def _unmixed(phase: Phase) -> Phase:
    return replace(phase, tensors=phase.tensors | {"x_share": torch.ones_like(phase.tensors["x_share"])})
