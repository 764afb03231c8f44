"""Krum and multi-Krum (Blanchard et al., NeurIPS 2017): keep the update that lies closest to its neighbours.

The score of client i is the sum of squared distances to its n − f − 2 nearest others, over the trainable parameters of
all networks together, so that two networks of one client stay together. The winner's whole state is used, BatchNorm
statistics included. The FedNoiL paper gives no f; we take 30 % of the updates that arrive (`bad`), limited by
2f + 2 < n. Multi-Krum averages the best n − f − 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig, Update
from fednoil.tensors import Tensors, weighted_mean


class _FaultyConfig(ServerConfig):
    bad: float = Field(default=0.3, ge=0, lt=0.5, description="share of the updates that may be bad")


class KrumConfig(_FaultyConfig):
    name: Literal["krum"] = "krum"


class MultiKrumConfig(_FaultyConfig):
    name: Literal["multikrum"] = "multikrum"


def tolerated(bad: float, count: int) -> int:
    """f for `count` updates: the share `bad` of them, but so that 2f + 2 < count."""
    return max(0, min(int(bad * count + 1e-9), (count - 3) // 2))


def krum_scores(vectors: Tensor, f: int) -> Tensor:
    """Sum of squared distances to the n − f − 2 nearest others (at least one): [n] for vectors [n, d]."""
    count = len(vectors)
    distances = torch.cdist(vectors.double(), vectors.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    distances.fill_diagonal_(float("inf"))
    neighbours = min(count - 1, max(1, count - f - 2))
    return distances.topk(neighbours, largest=False).values.sum(1)


class Krum(Server):
    Config = KrumConfig
    config: _FaultyConfig
    about = About(
        title="The update closest to its neighbours",
        paper="Blanchard et al., NeurIPS 2017",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def ranked(self, updates: Sequence[Update]) -> list[int]:
        """Places of the updates, best score first; of equal scores the lower client id."""
        if len(updates) == 1:
            return [0]
        scores = krum_scores(torch.stack([self.flat(u.tensors) for u in updates]), self.faults(len(updates)))
        return torch.argsort(scores, stable=True).tolist()

    def faults(self, count: int) -> int:
        return tolerated(self.config.bad, count)

    def combine(self, updates: Sequence[Update]) -> Tensors:
        return updates[self.ranked(updates)[0]].tensors


class MultiKrum(Krum):
    Config = MultiKrumConfig
    about = About(
        title="The mean of the updates closest to their neighbours",
        paper="Blanchard et al., NeurIPS 2017",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def combine(self, updates: Sequence[Update]) -> Tensors:
        count = len(updates)
        best = sorted(self.ranked(updates)[: max(1, count - self.faults(count) - 2)])
        return weighted_mean([updates[i].tensors for i in best], [1.0] * len(best))
