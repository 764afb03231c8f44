"""Krum and multi-Krum (Blanchard et al., NeurIPS 2017): keep the update that lies closest to its neighbours.

The score of client i is the sum of squared distances to its n − f − 2 nearest others, over the trainable parameters of
all networks together, so that two networks of one client stay together. The winner's whole state is used, BatchNorm
statistics included. The FedNoiL paper gives no f; we take 30 % of the updates that arrive, limited by 2f + 2 < n.
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

_SHARE = 0.3


class _FaultyConfig(ServerConfig):
    f: int | None = Field(default=None, ge=0, description="bad updates expected; none: 30 % of those that arrive")


class KrumConfig(_FaultyConfig):
    name: Literal["krum"] = "krum"


class MultiKrumConfig(_FaultyConfig):
    name: Literal["multikrum"] = "multikrum"
    keep: int | None = Field(default=None, ge=1, description="updates that are averaged; none: n − f − 2")


def tolerated(f: int | None, count: int) -> int:
    """f for `count` updates: as configured or 30 %, but so that 2f + 2 < count."""
    wanted = int(_SHARE * count) if f is None else f
    return max(0, min(wanted, (count - 3) // 2))


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
        return tolerated(self.config.f, count)

    def combine(self, updates: Sequence[Update]) -> Tensors:
        return updates[self.ranked(updates)[0]].tensors


class MultiKrum(Krum):
    Config = MultiKrumConfig
    config: MultiKrumConfig
    about = About(
        title="The mean of the updates closest to their neighbours",
        paper="Blanchard et al., NeurIPS 2017",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def combine(self, updates: Sequence[Update]) -> Tensors:
        count = len(updates)
        keep = self.config.keep or count - self.faults(count) - 2
        best = sorted(self.ranked(updates)[: min(count, max(1, keep))])
        return weighted_mean([updates[i].tensors for i in best], [1.0] * len(best))
