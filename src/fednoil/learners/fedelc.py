"""FedELC's local training (Jiang et al., CIKM 2024): noisy clients learn their labels by gradient.

It is meant for the server `fednoro`, whose detection and averaging it uses; clean clients train with adjusted logits. A
noisy client keeps logits u of its labels, at first 10 at the given one. They move with the network, once an epoch by
the sum of the epoch's gradients, and after a turn they become the mean of the estimate and the network's prediction.
Different from the authors' code: the last batch of an epoch is filled up and not dropped, and that prediction is of
plain views in eval mode. α and β are the defaults of its options; a comment in it says 1 and 0.5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client, Final, LearnerConfig, Nets, Phase, Turn
from fednoil.learners.batches import onto
from fednoil.learners.erm import Erm
from fednoil.learners.looks import logits_of
from fednoil.learners.prior import adjusted_loss, log_prior
from fednoil.plugins import About
from fednoil.tensors import Tensors

_LABELS = "label logits"


class FedElcConfig(LearnerConfig):
    name: Literal["fedelc"] = "fedelc"


def estimate_loss(logits: Tensor, u: Tensor, labels: Tensor, alpha: float, beta: float) -> Tensor:
    """KL(p ‖ softmax(u))/C + α · cross-entropy of u at the given label + β · entropy(p)/C, means over the batch."""
    log_p, log_q = torch.log_softmax(logits, 1), torch.log_softmax(u, 1)
    p = log_p.exp()
    apart, unsure = (p * (log_p - log_q)).sum(1).mean(), -(p * log_p).sum(1).mean()
    near = -log_q.gather(1, labels[:, None]).mean()
    return apart / u.shape[1] + alpha * near + beta * unsure / u.shape[1]


def label_slope(logits: Tensor, u: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """The gradient of `estimate_loss` by the label logits u: [B, C]."""
    p, q = torch.softmax(logits, 1), torch.softmax(u, 1)
    return ((q - p) / u.shape[1] + alpha * (q - F.one_hot(labels, u.shape[1]))) / len(u)


def merged(u: Tensor, predicted: Tensor, scale: float) -> Tensor:
    """Label logits after a turn: `scale` times the mean of softmax(u) and the predicted probabilities."""
    return scale * (torch.softmax(u, 1) + predicted) / 2


class FedElc(Erm):
    Config = FedElcConfig
    config: FedElcConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    alpha: ClassVar[float] = 0.5  # weight of the given label's loss
    beta: ClassVar[float] = 0.2  # weight of the entropy
    scale: ClassVar[float] = 10.0  # K_p: the largest label logit
    rate: ClassVar[float] = 1000.0  # λ: step of the label logits
    about = About(
        title="Labels of noisy clients, estimated by gradient",
        paper="Jiang et al., CIKM 2024",
        keeps="label logits",
        sends="model",
        cost="1 clean, a little more noisy",
    )

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = {"prior": log_prior(client.labels, self.task.num_classes)}
        if _LABELS in keep or turn.signals.get("noisy"):
            start = self.scale * F.one_hot(client.labels, self.task.num_classes).float()
            u = keep.get(_LABELS, start)
            state |= {_LABELS: u, "slope": torch.zeros_like(u)}
        return state

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        kind = "correct" if turn.signals.get("noisy") else "train"
        return [replace(phase, kind=kind) for phase in super().plan(nets, client, state, turn, epochs)]

    def batches(self, client: Client, chosen: Tensor, turn: Turn, epochs: range) -> Tensors:
        batch = super().batches(client, chosen, turn, epochs)
        if not turn.signals.get("noisy"):
            return batch
        last = torch.zeros(len(epochs), len(chosen) // len(epochs), device=chosen.device)
        last[:, -1] = 1
        return batch | {"rows": chosen, "last": last.flatten()}

    def indexed(self) -> tuple[str, ...]:
        return (_LABELS, "slope")

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        logits, labels = nets["model"](batch["images"]), batch["labels"]
        if kind != "correct":
            return adjusted_loss(logits, state["prior"], labels)
        alpha, beta, slope = self.alpha, self.beta, state["slope"]
        u = state[_LABELS][batch["rows"]]
        slope.add_(onto(batch["rows"], label_slope(logits.detach(), u, labels, alpha), len(slope)))
        return estimate_loss(logits, u, labels, alpha, beta)

    def after(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        if kind == "correct":
            state[_LABELS].sub_(self.rate * batch["last"] * state["slope"])
            state["slope"].mul_(1 - batch["last"])

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        if _LABELS not in state:
            return Final()
        if not turn.signals.get("noisy"):
            return Final(keep={_LABELS: state[_LABELS]})
        predicted = torch.softmax(logits_of(self, nets, client), 1)
        return Final(keep={_LABELS: merged(state[_LABELS], predicted, self.scale)})
