"""FedNoRo's local training (Wu et al., IJCAI 2023): logits adjusted for rare classes, and a teacher for noisy clients.

All clients train with cross-entropy of logits adjusted by their own label frequencies. Those that the server calls
noisy (`server.name = "fednoro"`) also learn from the received model, whose weight rises over `ramp` rounds; other
servers call none noisy. The teacher sees the same views as the student, in eval mode.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.base import Client, LearnerConfig, Nets, Phase, Role, Turn
from fednoil.learners.erm import Erm
from fednoil.learners.prior import adjusted, log_prior
from fednoil.plugins import About
from fednoil.tensors import Tensors


class FedNoRoConfig(LearnerConfig):
    name: Literal["fednoro"] = "fednoro"
    weight: float = Field(
        default=0.8, ge=0, le=1, description="final weight of what the received model teaches noisy clients"
    )
    ramp: int = Field(default=39, ge=1, description="rounds after the server's warm-up until `weight` is reached")


def ramped(rounds: float, ramp: int, weight: float) -> float:
    """a · exp(−5 (1 − t)²) after `rounds` of a ramp, t their share of it, at most 1."""
    return weight * math.exp(-5 * (1 - min(max(rounds / ramp, 0.0), 1.0)) ** 2)


def distilled(logits: Tensor, taught: Tensor, labels: Tensor, prior: Tensor, weight: Tensor | float) -> Tensor:
    """w · KL(taught ‖ adjusted) + (1 − w) · cross-entropy, means over the batch; `taught` are probabilities [B, C]."""
    own = adjusted(logits, prior)
    apart = (torch.special.xlogy(taught, taught) - taught * own).sum(1).mean()
    return weight * apart - (1 - weight) * own.gather(1, labels[:, None]).mean()


class FedNoRo(Erm):
    Config = FedNoRoConfig
    config: FedNoRoConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    temperature: ClassVar[float] = 0.8  # of the teacher's probabilities
    about = About(
        title="Logit adjustment; the received model teaches noisy clients",
        paper="Wu et al., IJCAI 2023",
        keeps="nothing",
        sends="model",
        cost="1 clean, 1.33 noisy",
    )

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("model"), Role("teacher", shared=False, trained=False))

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        passed = turn.round_idx - 1 - turn.signals.get("since", 0.0)
        weight = ramped(passed, self.config.ramp, self.config.weight)
        return {
            "prior": log_prior(client.labels, self.task.num_classes),
            "weight": torch.tensor(weight, device=client.labels.device),
        }

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        kind = "distil" if turn.signals.get("noisy") else "train"
        return [replace(phase, kind=kind) for phase in super().plan(nets, client, state, turn, epochs)]

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        images, labels = batch["images"], batch["labels"]
        logits = nets["model"](images)
        if kind != "distil":
            return -adjusted(logits, state["prior"]).gather(1, labels[:, None]).mean()
        with torch.no_grad():
            nets["teacher"].eval()
            taught = torch.softmax(nets["teacher"](images) / self.temperature, 1)
        return distilled(logits, taught, labels, state["prior"], state["weight"])
