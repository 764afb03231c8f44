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
from fednoil.tensors import Tensors


class LateConfig(FedNoilPlusConfig):
    name: Literal["step24:Late"] = "step24:Late"  # pyright: ignore[reportIncompatibleVariableOverride]
    doubt: float = Field(default=0.0, ge=0, lt=1, description="ε of the loss −log((1 − ε)·p + ε/C)")
    smooth: float = Field(default=0.0, ge=0, lt=1, description="label smoothing")
    q: float = Field(default=0.0, ge=0, le=1, description="q of the loss (1 − p^q)/q; 0: cross-entropy")
    settle: float = Field(default=0.0, ge=0, le=1, description="share of the rounds, the last, without mixing")
    early: float = Field(default=0.5, ge=0, le=1, description="share of the rounds after which odds decide")


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
