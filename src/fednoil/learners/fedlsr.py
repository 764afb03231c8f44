"""FedLSR (Jiang et al., CIKM 2022): two views of an image are mixed, sharpened and kept in agreement.

p = λ p₁ + (1 − λ) p₂ with one λ ~ U(0, 1) for a batch, p_s ∝ p², and the loss is the cross-entropy of p_s, plus γ times
the Jensen-Shannon divergence of both views' sharpened predictions, rising over the first fifth of the rounds, plus 0.3
times the entropy. `version = "code"` follows the authors' code: p_s is taken for logits, the divergence is also
averaged over classes, and the entropy is of a prediction that went through softmax twice, of the first view alone.
Different from both: the second view is a strong one of ours, not a change of colours, which grey images lack.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import plain, strong, strong_plan, weak
from fednoil.learners.base import Client, LearnerConfig, Nets, Turn
from fednoil.learners.erm import Erm
from fednoil.plugins import About
from fednoil.seeds import uniform
from fednoil.tensors import Tensors


class FedLsrConfig(LearnerConfig):
    follows_rounds: ClassVar[bool] = True

    name: Literal["fedlsr"] = "fedlsr"
    weight: float = Field(
        default=0.4, ge=0, description="γ: weight of the views' agreement, after a fifth of the rounds"
    )
    version: Literal["code", "paper"] = Field(
        default="code", description="which to follow where its authors' code and paper differ"
    )


def entropy(p: Tensor) -> Tensor:
    """−Σ p ln p of each row [B, C]: [B]; a probability that has become 0 adds nothing, nor to the gradient."""
    return -torch.special.xlogy(p, torch.where(p > 0, p, 1.0)).sum(1)  # xlogy(p, p) has the gradient 0/0 there


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of each pair of rows [B, C]: [B]."""
    return entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2


class FedLsr(Erm):
    Config = FedLsrConfig
    config: FedLsrConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    sharpness: ClassVar[float] = 3.0  # by which logits are multiplied before views are compared
    sure: ClassVar[float] = 0.3  # weight γ_e of the entropy
    about = About(
        title="Two views, mixed and kept in agreement",
        paper="Jiang et al., CIKM 2022",
        keeps="nothing",
        sends="model",
        cost="2",
    )

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        risen = min(1.0, turn.round_idx / max(1.0, 0.2 * self.task.rounds))
        return {"weight": torch.tensor(self.config.weight * risen, device=client.index.device)}

    def batches(self, client: Client, chosen: Tensor, turn: Turn, epochs: range) -> Tensors:
        batch, device = super().batches(client, chosen, turn, epochs), chosen.device
        keys = turn.seed.child("strong").keys(epochs, device)
        count, task = chosen.numel() // len(keys), self.task
        views = strong_plan(keys, count, task.image_shape[1:], task.pad, 2, 0.5, flip=task.flip)
        share = uniform(turn.seed.child("share").keys(epochs, device), len(chosen) // len(epochs))
        return batch | {"strong": views.view(*chosen.shape, -1), "share": share.flatten()}

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        index = batch["index"]
        first = weak(pool, index, batch["weak"]) if "weak" in batch else plain(pool, index)
        return {"images": first, "second": strong(pool, index, batch["strong"])}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        first, second = nets["model"].each(batch["images"], batch["second"].to(batch["images"].dtype))
        return self.loss(first, second, batch["labels"], batch["share"], state["weight"])

    def loss(self, first: Tensor, second: Tensor, labels: Tensor, share: Tensor, weight: Tensor) -> Tensor:
        """The loss of both views' logits [B, C]."""
        p = share * torch.softmax(first, 1) + (1 - share) * torch.softmax(second, 1)
        sharpened = p.square() / p.square().sum(1, keepdim=True)
        one, two = (torch.softmax(self.sharpness * logits, 1) for logits in (first, second))
        apart = divergence(one, two).mean()
        if self.config.version == "code":
            unsure = entropy(torch.softmax(one, 1)).mean()
            return F.cross_entropy(sharpened, labels) + weight * apart / first.shape[1] + self.sure * unsure
        unsure = (entropy(one) + entropy(two)).mean() / 2
        fit = -sharpened.clamp_min(1e-12).log().gather(1, labels[:, None]).mean()
        return fit + weight * apart + self.sure * unsure
