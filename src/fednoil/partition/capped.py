"""A Dirichlet split in which a client that holds its even share gets nothing of later classes (FedLab, FNBench).

Classes are not treated alike: the later a class, the fewer clients have it. Use it to compare with these.
"""

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


class CappedConfig(UnevenConfig):
    kind: Literal["capped"] = "capped"


class Capped(Partition):
    Config = CappedConfig

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        total = pool_size(len(labels), self.config)
        check_min_size(total, self.config)
        pool = balanced_pool(labels, num_classes, total, seed)
        sizes, rng = np.array([len(indices) for indices in pool]), seed.child("dirichlet").numpy()
        return cut(pool, draw_until_filled(lambda: capped_counts(sizes, self.config, rng), self.config))


def capped(shares: np.ndarray, have: np.ndarray, most: float) -> np.ndarray:
    """Shares [K] without those of clients that `have` [K] `most` samples or more, with sum 1; if that is everybody, as
    they were."""
    open_to = shares * (have < most)
    return open_to / open_to.sum() if open_to.sum() > 0 else shares


def capped_counts(sizes: np.ndarray, config: CappedConfig, rng: np.random.Generator) -> np.ndarray:
    """How many samples of each class, of `sizes` [C], each client gets: int64 [C, clients]."""
    counts, most = np.zeros((len(sizes), config.clients), dtype=np.int64), sizes.sum() / config.clients
    for label, size in enumerate(sizes):
        shares = capped(rng.dirichlet(np.full(config.clients, config.beta)), counts.sum(0), most)
        cuts = np.floor(np.cumsum(shares[:-1]) * size).astype(np.int64)
        counts[label] = np.diff(cuts, prepend=0, append=size)
    return counts
