"""Jo-SRC (Yao et al., CVPR 2021): a label is clean where it is close to the prediction in Jensen-Shannon divergence.

A student learns from two views; samples that look clean keep their smoothed label, the others get the mean teacher's
prediction where the views agree, and a nearly flat one where they don't. As published except: the plain head of the
study's models instead of an MLP; label smoothing 0.5 up to ten classes, because at 0.6 a wrong label that has been
memorised passes as clean; the paper's optimiser; shifted views are filled by reflection, not with zeros. In a
federation the schedules follow the round, the teacher starts each turn as the received model, and the student alone is
sent. A warm-up batch without a clean sample is skipped: neither weights nor momentum nor teacher move.

The published loss has no lower bound: it pushes the views of a sample that fits nowhere apart in KL divergence, which
outgrows the cross-entropy with its flat target. Training may diverge once the threshold leaves many labels out; a
class of your own with `alpha` = 0 leaves the consistency out, and with it the divergence.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import weak
from fednoil.learners.base import Client, Learner, LearnerConfig, Nets, Phase, Role, Turn
from fednoil.learners.batches import shuffled, weak_views
from fednoil.plugins import About
from fednoil.tensors import Tensors


class JosrcConfig(LearnerConfig):
    follows_rounds: ClassVar[bool] = True  # its threshold rises until the last one

    name: Literal["josrc"] = "josrc"
    warmup: int = Field(
        default=10, ge=0, description="rounds W in which labels that don't look clean are left out, not replaced"
    )


class Josrc(Learner):
    Config = JosrcConfig
    config: JosrcConfig
    thresholds: ClassVar[tuple[float, float]] = (0.75, 0.95)  # τ at the end of the warm-up and in the last round
    alpha: ClassVar[float] = 0.5  # weight of the consistency between views
    ema: ClassVar[float] = 0.99  # how much of the teacher stays in a step
    about = About(
        title="Clean by JS divergence, two views, mean teacher",
        paper="Yao et al., CVPR 2021",
        keeps="nothing",
        sends="model",
        cost="2 in the warm-up, then 2.7",
    )

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("model"), Role("teacher", shared=False, start="model", trained=False))

    @property
    def smoothing(self) -> float:
        """ε of the smoothed labels."""
        return 0.5 if self.task.num_classes <= 10 else 0.6

    def threshold(self, round_idx: int) -> float:
        """τ_c of a round: rising from 0 to τ in the warm-up, then on to τ_max in the last round."""
        e, warmup, (first, last) = round_idx - 1, self.config.warmup, self.thresholds
        if e < warmup:
            return first * e / warmup
        return first + (last - first) * (e - warmup) / max(1, self.task.rounds - warmup)

    def in_warmup(self, turn: Turn) -> bool:
        return turn.round_idx - 1 < self.config.warmup

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = {"threshold": torch.tensor(self.threshold(turn.round_idx), device=client.index.device)}
        if self.in_warmup(turn):
            for name in self._trained(nets):
                state |= {f"held/{part}": torch.zeros_like(t) for part, t in _moving(nets, name).items()}
                state[f"idle/{name}"] = torch.zeros((), dtype=torch.bool, device=nets[name].params.device)
        return state

    def _trained(self, nets: Nets) -> list[str]:
        """The networks that the optimiser moves: all but the teacher, including those that a server has added."""
        return [name for name in nets if name not in {role.name for role in self.roles if not role.trained}]

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        chosen = shuffled(client, turn.seed.child("order"), epochs, self.task.batch_size)
        batch = {"index": client.index[chosen], "labels": client.labels[chosen]}
        for view in ("first", "second"):
            batch[view] = weak_views(turn.seed.child("weak", view), epochs, chosen, self.task.pad, flip=self.task.flip)
        return [Phase(batch, kind="warmup" if self.in_warmup(turn) else "train")]

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        return {f"{view}/images": weak(pool, batch["index"], batch[view]) for view in ("first", "second")}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        first, second = batch["first/images"], batch["second/images"]
        log1, log2 = (torch.log_softmax(logits, 1) for logits in nets["model"].each(first, second))
        labels = smooth(batch["labels"], self.task.num_classes, self.smoothing)
        clean = clean_probability(log1.detach().exp(), labels) >= state["threshold"]
        if kind == "warmup":
            return (double_entropy(log1, log2, labels) * clean).sum() / clean.sum().clamp_min(1)
        with torch.no_grad():
            taught = torch.stack([torch.softmax(x, 1) for x in nets["teacher"].each(first, second)]).mean(0)
        agree = log1.argmax(1) == log2.argmax(1)
        unclean = torch.where(agree[:, None], taught, torch.softmax(taught / 10, 1))
        targets = torch.where(clean[:, None], labels, unclean)
        return joint_loss(log1, log2, targets, clean | agree, self.alpha)

    def gradients(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        """Hold what a step moves: with an empty set the gradient is zero, but momentum and decay would go on."""
        if kind == "warmup":
            for name in self._trained(nets):
                state[f"idle/{name}"].copy_(~(nets[name].grads != 0).any())
                for part, tensor in _moving(nets, name).items():
                    state[f"held/{part}"].copy_(tensor)

    def after(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        model, teacher, keeps = nets["model"].params, nets["teacher"].params, self.ema
        if kind == "warmup":
            for name in self._trained(nets):
                for part, tensor in _moving(nets, name).items():
                    idle = state[f"idle/{name}"].to(tensor.device)  # AdamW may count its steps elsewhere
                    tensor.copy_(torch.where(idle, state[f"held/{part}"], tensor))
            follows = (1 - keeps) * (~state["idle/model"]).float()
            teacher.add_((model - teacher) * follows)
        else:
            teacher.mul_(keeps).add_(model, alpha=1 - keeps)


def _moving(nets: Nets, name: str) -> Tensors:
    """What an optimiser step changes in a network."""
    memory = {f"{name}/{part}": tensor for part, tensor in nets[name].memory.items()}
    return {f"{name}/params": nets[name].params, **memory}


def smooth(labels: Tensor, num_classes: int, epsilon: float) -> Tensor:
    """1 − ε on the given class, ε/(C − 1) on each other: [B, C]."""
    given = F.one_hot(labels, num_classes)
    return given * (1 - epsilon) + (1 - given) * (epsilon / (num_classes - 1))


def clean_probability(probs: Tensor, labels: Tensor) -> Tensor:
    """1 − JS(prediction, smoothed label) in bits: [B]."""
    mean = (probs + labels) / 2

    def divergence(p: Tensor) -> Tensor:
        return (torch.xlogy(p, p) - torch.xlogy(p, mean)).sum(1)

    return 1 - (divergence(probs) + divergence(labels)) / 2 / math.log(2)


def double_entropy(log1: Tensor, log2: Tensor, targets: Tensor) -> Tensor:
    """CE(p1, t) + CE(p2, t) of each sample, in nats: [B]."""
    return -(targets * (log1 + log2)).sum(1)


def distance(log1: Tensor, log2: Tensor) -> Tensor:
    """KL₁₂ + KL₂₁ of two views of each sample, in bits: [B]."""
    return ((log1.exp() - log2.exp()) * (log1 - log2)).sum(1) / math.log(2)


def joint_loss(log1: Tensor, log2: Tensor, targets: Tensor, together: Tensor, alpha: float) -> Tensor:
    """(1 − α) mean CE + α mean ±(KL₁₂ + KL₂₁) in bits; pushed apart where `together` [B] is false."""
    sign = torch.where(together, 1.0, -1.0)
    consistency = (sign * distance(log1, log2)).mean()
    return (1 - alpha) * double_entropy(log1, log2, targets).mean() + alpha * consistency
