"""A few classes for each client, as in FedLab's `noniid-#label`: client k has class k mod C and others drawn at random,
and every class is split evenly between the clients that have it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.errors import UserError
from fednoil.partition.base import Partition, PartitionConfig, balanced_pool, pool_size
from fednoil.seeds import Seed


class ClassesConfig(PartitionConfig):
    kind: Literal["classes"] = "classes"
    classes: int = Field(default=3, ge=1, description="how many classes each client has")


class Classes(Partition):
    Config = ClassesConfig

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        count = self.config.classes
        if count > num_classes:
            raise UserError(
                f"partition.classes = {count} is more than the data has: use at most {num_classes} classes for a client"
            )
        pool = balanced_pool(labels, num_classes, pool_size(len(labels), self.config), seed)
        rng = seed.child("classes").numpy()
        owned = [_drawn(client % num_classes, count, num_classes, rng) for client in range(self.config.clients)]
        return share_classes(pool, owned)


def _drawn(first: int, count: int, num_classes: int, rng: np.random.Generator) -> list[int]:
    """`first` and `count` - 1 other classes."""
    others = [label for label in range(num_classes) if label != first]
    return [first, *rng.choice(others, count - 1, replace=False).tolist()] if count > 1 else [first]


def share_classes(pool: list[np.ndarray], owned: list[list[int]]) -> list[np.ndarray]:
    """Split each class of the pool evenly between the clients that have it; one that nobody has isn't dealt."""
    parts: list[list[np.ndarray]] = [[] for _ in owned]
    for label, indices in enumerate(pool):
        takers = [client for client, classes in enumerate(owned) if label in classes]
        for client, share in zip(takers, np.array_split(indices, max(len(takers), 1)), strict=False):
            parts[client].append(share)
    return [np.concatenate(shares) for shares in parts]
