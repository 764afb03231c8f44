"""Each class is shared out between the clients in proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

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
    cap: bool = Field(
        default=False,
        description="a client that holds its even share gets nothing of later classes, as in FedLab",
    )


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
        if not size:
            continue
        takers = np.arange(config.clients)
        if config.cap:
            # Drawing for the clients below the cap alone has the same law as zeroing the others' entries and
            # renormalising, and can't leave a sum of zero.
            takers = np.flatnonzero(counts.sum(0) < sizes.sum() / config.clients)
        shares = rng.dirichlet(np.full(len(takers), config.beta))
        cuts = np.floor(np.cumsum(shares[:-1]) * size).astype(np.int64)
        counts[label, takers] = np.diff(cuts, prepend=0, append=size)
    return counts
