"""Each class is shared out between the clients in proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.partition.base import Uneven, UnevenConfig


class DirichletConfig(UnevenConfig):
    kind: Literal["dirichlet"] = "dirichlet"


class Dirichlet(Uneven):
    Config = DirichletConfig

    def counts(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return class_counts(sizes, self.config, rng)


def class_counts(sizes: np.ndarray, config: UnevenConfig, rng: np.random.Generator) -> np.ndarray:
    """How many samples of each class, of `sizes` [C], each client gets: int64 [C, clients]."""
    counts = np.zeros((len(sizes), config.clients), dtype=np.int64)
    for label, size in enumerate(sizes):
        if size:
            shares = rng.dirichlet(np.full(config.clients, config.beta))
            cuts = np.floor(np.cumsum(shares[:-1]) * size).astype(np.int64)
            counts[label] = np.diff(cuts, prepend=0, append=size)
    return counts
