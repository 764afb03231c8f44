"""Co-teaching (Han et al., NeurIPS 2018) and JoCoR (Wei et al., CVPR 2020): two networks trust small losses.

Both forget a share R of every batch that grows over the first rounds to 1 − `frac`. Co-teaching: each network picks the
samples with the smallest loss for the *other*. JoCoR: both train on the samples with the smallest joint loss, which
also pulls their predictions together. In a federation both networks are shared, R follows the round, and the two are
scored together. The right `frac` is the share of clean labels, which a client doesn't know; one half is our choice.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client, LearnerConfig, Nets, Phase, Role, Turn
from fednoil.learners.erm import Erm
from fednoil.plugins import About
from fednoil.tensors import Tensors


class _SmallLossConfig(LearnerConfig):
    frac: float = Field(default=0.5, gt=0, le=1, description="final share of a batch that is trained on")
    ramp: int = Field(default=10, ge=1, description="the round from which only `frac` is trained on")


class CoteachingConfig(_SmallLossConfig):
    name: Literal["coteaching"] = "coteaching"


class JocorConfig(_SmallLossConfig):
    name: Literal["jocor"] = "jocor"


def forget_rate(round_idx: int, forget: float, ramp: int) -> float:
    """R of a round: 0 in the first, `forget` from round `ramp` on, linear between."""
    return forget * min(1.0, (round_idx - 1) / max(1, ramp - 1))


def kept(rate: float, batch_size: int) -> int:
    """floor((1 − R)·B) samples of a batch, at least one."""
    return max(1, int((1 - rate) * batch_size + 1e-9))  # (1 − 0.8)·10 is a little less than 2 in floating point


def smallest(losses: Tensor, count: Tensor) -> Tensor:
    """Mask [B] of the `count` (a tensor) smallest losses; of equal ones the first."""
    order = losses.detach().argsort(stable=True)
    return order.argsort() < count


class _TwoNetworks(Erm):
    """Two shared networks on the same batches, scored together."""

    config: _SmallLossConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("a"), Role("b"))

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        rate = forget_rate(turn.round_idx, 1 - self.config.frac, self.config.ramp)
        count = kept(rate, self.task.batch_size)
        return {"count": torch.tensor(count, device=client.index.device)}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return [Phase(phase.tensors, trains=("a", "b")) for phase in super().plan(nets, client, state, turn, epochs)]

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        return nets["a"](images) + nets["b"](images)


class Coteaching(_TwoNetworks):
    Config = CoteachingConfig
    about = About(
        title="Two networks pick small-loss samples for each other",
        paper="Han et al., NeurIPS 2018",
        keeps="nothing",
        sends="2 models",
        cost="2",
    )

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        images = batch["images"]
        loss_a = F.cross_entropy(nets["a"](images), batch["labels"], reduction="none")
        loss_b = F.cross_entropy(nets["b"](images), batch["labels"], reduction="none")
        count = state["count"]
        for_b, for_a = smallest(loss_a, count), smallest(loss_b, count)
        return ((loss_a * for_a).sum() + (loss_b * for_b).sum()) / count


class Jocor(_TwoNetworks):
    Config = JocorConfig
    agreement: ClassVar[float] = 0.1  # weight λ of the networks' agreement
    about = About(
        title="Two networks agree on small-loss samples",
        paper="Wei et al., CVPR 2020",
        keeps="nothing",
        sends="2 models",
        cost="2",
    )

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        images, labels = batch["images"], batch["labels"]
        losses = joint_loss(nets["a"](images), nets["b"](images), labels, self.agreement)
        return (losses * smallest(losses, state["count"])).sum() / state["count"]


def joint_loss(a: Tensor, b: Tensor, labels: Tensor, agreement: float) -> Tensor:
    """(1 − λ)(CE₁ + CE₂) + λ(KL₁₂ + KL₂₁) of each sample: [B]."""
    fit = F.cross_entropy(a, labels, reduction="none") + F.cross_entropy(b, labels, reduction="none")
    log_a, log_b = F.log_softmax(a, 1), F.log_softmax(b, 1)
    apart = ((log_a.exp() - log_b.exp()) * (log_a - log_b)).sum(1)  # KL(a‖b) + KL(b‖a)
    return (1 - agreement) * fit + agreement * apart
