"""Each class is shared out between the clients in proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.partition.base import (
    Partition,
    UnevenConfig,
    balanced_pool,
    check_min_size,
    cut,
    draw_until_filled,
    pool_size,
)
from fednoil.seeds import Seed


class DirichletConfig(UnevenConfig):
    kind: Literal["dirichlet"] = "dirichlet"


class Dirichlet(Partition):
    Config = DirichletConfig

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        total = pool_size(len(labels), self.config)
        check_min_size(total, self.config)
        pool = balanced_pool(labels, num_classes, total, seed)
        sizes, rng = np.array([len(indices) for indices in pool]), seed.child("dirichlet").numpy()
        return cut(pool, draw_until_filled(lambda: class_counts(sizes, self.config, rng), self.config))


def class_counts(sizes: np.ndarray, config: DirichletConfig, rng: np.random.Generator) -> np.ndarray:
    """How many samples of each class, of `sizes` [C], each client gets: int64 [C, clients]."""
    counts = np.zeros((len(sizes), config.clients), dtype=np.int64)
    for label, size in enumerate(sizes):
        if size:
            shares = rng.dirichlet(np.full(config.clients, config.beta))
            cuts = np.floor(np.cumsum(shares[:-1]) * size).astype(np.int64)
            counts[label] = np.diff(cuts, prepend=0, append=size)
    return counts
