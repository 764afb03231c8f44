"""Sizes drawn from a Dirichlet distribution, and the same class mix for every client."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.partition.base import (
    Partition,
    UnevenConfig,
    balanced_pool,
    check_min_size,
    draw_until_filled,
    largest_remainder,
    pool_size,
)
from fednoil.seeds import Seed


class QuantityConfig(UnevenConfig):
    kind: Literal["quantity"] = "quantity"


class Quantity(Partition):
    Config = QuantityConfig

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        total = pool_size(len(labels), self.config)
        check_min_size(total, self.config)
        rng, each = seed.child("quantity").numpy(), np.full(self.config.clients, self.config.beta)
        sizes = draw_until_filled(lambda: largest_remainder(rng.dirichlet(each), total)[None], self.config)
        return deal_evenly(np.concatenate(balanced_pool(labels, num_classes, total, seed)), sizes[0])


def deal_evenly(order: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Deal indices ordered by class so that clients of any `sizes` [K] get about the same class mix.

    Each client's n_k turns are spread evenly over the deal; with equal sizes this is one sample each in turn.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    turn = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    owner = owner[np.argsort(turn, kind="stable")]
    return [order[owner == client] for client in range(len(sizes))]
