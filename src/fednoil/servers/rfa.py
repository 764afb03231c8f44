"""RFA (Pillutla et al., 2019): the geometric median of the updates, by the smoothed Weiszfeld algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig, Update
from fednoil.tensors import Tensors, weighted_mean


class RfaConfig(ServerConfig):
    name: Literal["rfa"] = "rfa"


def weiszfeld(vectors: Tensor, alpha: Tensor, iterations: int, nu: float, tolerance: float) -> tuple[Tensor, Tensor]:
    """The geometric median z [d] of vectors [n, d] with weights alpha [n], and the weights [n] that give it."""
    vectors, weights = vectors.double(), alpha.double() / alpha.sum()
    alpha = weights
    z = weights @ vectors
    objective = float(alpha @ (vectors - z).norm(dim=1))
    for _ in range(iterations):
        weights = alpha / (vectors - z).norm(dim=1).clamp_min(nu)
        weights = weights / weights.sum()
        z = weights @ vectors
        before, objective = objective, float(alpha @ (vectors - z).norm(dim=1))
        if abs(before - objective) <= tolerance * before:
            break
    return z, weights


class Rfa(Server):
    Config = RfaConfig
    iterations: ClassVar[int] = 4  # steps of the algorithm, at most
    nu: ClassVar[float] = 1e-5  # least distance, so that no weight is infinite
    tolerance: ClassVar[float] = 1e-6  # stop when the objective changes by less, relatively
    about = About(
        title="Geometric median",
        paper="Pillutla et al., 2019",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def combine(self, updates: Sequence[Update]) -> Tensors:
        vectors = torch.stack([self.flat(u.tensors) for u in updates])
        alpha = torch.tensor([u.numbers["samples"] for u in updates], device=vectors.device)
        _, weights = weiszfeld(vectors, alpha, self.iterations, self.nu, self.tolerance)
        return weighted_mean([u.tensors for u in updates], weights.tolist())
