"""Mixup (Zhang et al., ICLR 2018): cross-entropy on mixtures of images and of their labels.

FedCorr and FedDiv train with it in all stages: one share λ ~ Beta(α, α) per batch, each image mixed with one of the
batch.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client, LearnerConfig, Nets, Turn
from fednoil.learners.erm import Erm
from fednoil.plugins import About
from fednoil.seeds import Seed, permutations
from fednoil.tensors import Tensors


class MixupConfig(LearnerConfig):
    name: str = "mixup"
    mix: float = Field(default=1.0, gt=0, description="α of the Beta distribution that mixes images")


def mixing(seed: Seed, epochs: range, steps: int, size: int, alpha: float, device: torch.device) -> Tensors:
    """The share of its own image in each mixture and who its partner is, for `steps` batches of `size` an epoch:
    `share` [E · steps] and `partner` [E · steps, size]."""
    shares = [torch.from_numpy(seed.child("share", e).numpy().beta(alpha, alpha, steps)) for e in epochs]
    keys = seed.child("partner").keys_of([(e, step) for e in epochs for step in range(steps)], device)
    return {"share": torch.cat(shares).float().to(device), "partner": permutations(keys, size)}


def mixed_loss(logits: Tensor, labels: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """λ · cross-entropy of the labels + (1 − λ) · that of their partners'."""
    return share * F.cross_entropy(logits, labels) + (1 - share) * F.cross_entropy(logits, labels[partner])


def blended(images: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """λ · each image + (1 − λ) · its partner."""
    pixels = images.float()
    return share * pixels + (1 - share) * pixels[partner]


class Mixup(Erm):
    Config = MixupConfig
    config: MixupConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    about = About(
        title="Mixtures of images and labels", paper="Zhang et al., ICLR 2018", keeps="nothing", sends="model", cost="1"
    )

    def batches(self, client: Client, chosen: Tensor, turn: Turn, epochs: range) -> Tensors:
        steps, size = len(chosen) // len(epochs), chosen.shape[1]
        more = mixing(turn.seed.child("mix"), epochs, steps, size, self.config.mix, chosen.device)
        return super().batches(client, chosen, turn, epochs) | more

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return self.mixed(nets, batch)[1]

    def mixed(self, nets: Nets, batch: Tensors) -> tuple[Tensor, Tensor]:
        """The logits of a batch's mixtures [B, C], and their loss."""
        partner, share = batch["partner"], batch["share"]
        logits = nets["model"](blended(batch["images"], partner, share))
        return logits, mixed_loss(logits, batch["labels"], partner, share)
