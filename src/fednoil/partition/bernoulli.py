"""FedCorr's (p, α): a client has each class with chance p, and those that have it share it by a Dirichlet draw.

Each sample goes to one of them independently, by these shares. A client without a class, and a class without a client,
are drawn again, where FedCorr's code fails in the second case.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.partition.base import Uneven, UnevenConfig


class BernoulliConfig(UnevenConfig):
    kind: Literal["bernoulli"] = "bernoulli"
    classes: float = Field(
        default=0.7,
        gt=0,
        le=1,
        description="p, the chance that a client has a class: with 0.7, seven of ten classes on average",
    )
    beta: float = Field(
        default=10.0, gt=0, le=1e6, description="concentration of the Dirichlet draws: the smaller, the more uneven"
    )
    min_size: int = Field(default=1, ge=1, description="the fewest samples that a client may hold")


class Bernoulli(Uneven):
    Config = BernoulliConfig
    config: BernoulliConfig
    stream = "bernoulli"

    def counts(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        has = presence(self.config.clients, len(sizes), self.config.classes, rng)
        return np.stack([shared(size, row, self.config.beta, rng) for size, row in zip(sizes, has.T, strict=True)])


def presence(clients: int, num_classes: int, chance: float, rng: np.random.Generator) -> np.ndarray:
    """Which client has which class, bool [K, C]; every client has a class, and every class a client."""
    has = rng.random((clients, num_classes)) < chance
    while len(empty := np.flatnonzero(~has.any(1))):
        has[empty] = rng.random((len(empty), num_classes)) < chance
    while len(empty := np.flatnonzero(~has.any(0))):
        has[:, empty] = rng.random((clients, len(empty))) < chance
    return has


def shared(size: int, takers: np.ndarray, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """How many of `size` samples each client gets, of which only `takers` [K] get some: int64 [K]."""
    counts, who = np.zeros(len(takers), np.int64), np.flatnonzero(takers)
    counts[who] = rng.multinomial(size, rng.dirichlet(np.full(len(who), alpha)))
    return counts
