"""A Dirichlet split in which a client that holds its even share gets nothing of later classes (FedLab, FNBench).

Classes are not treated alike: the later a class, the fewer clients have it. Use it to compare with these.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.partition.base import Uneven, UnevenConfig


class CappedConfig(UnevenConfig):
    kind: Literal["capped"] = "capped"


class Capped(Uneven):
    Config = CappedConfig

    def counts(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return capped_counts(sizes, self.config, rng)


def capped(shares: np.ndarray, have: np.ndarray, most: float) -> np.ndarray:
    """Shares [K] without those of clients that `have` [K] `most` samples or more, with sum 1; if that is everybody, as
    they were."""
    open_to = shares * (have < most)
    return open_to / open_to.sum() if open_to.sum() > 0 else shares


def capped_counts(sizes: np.ndarray, config: UnevenConfig, rng: np.random.Generator) -> np.ndarray:
    """How many samples of each class, of `sizes` [C], each client gets: int64 [C, clients]."""
    counts, most = np.zeros((len(sizes), config.clients), dtype=np.int64), sizes.sum() / config.clients
    for label, size in enumerate(sizes):
        shares = capped(rng.dirichlet(np.full(config.clients, config.beta)), counts.sum(0), most)
        cuts = np.floor(np.cumsum(shares[:-1]) * size).astype(np.int64)
        counts[label] = np.diff(cuts, prepend=0, append=size)
    return counts
