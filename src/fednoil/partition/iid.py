"""An even deal: the same number of samples of each class for every client, give or take one."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.partition.base import Partition, PartitionConfig, balanced_pool, pool_size
from fednoil.seeds import Seed


class IidConfig(PartitionConfig):
    kind: Literal["iid"] = "iid"


class Iid(Partition):
    Config = IidConfig

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        # Every K-th sample of the pool ordered by class: each class is spread evenly over the clients.
        order = np.concatenate(balanced_pool(labels, num_classes, pool_size(len(labels), self.config), seed))
        return [order[client :: self.config.clients] for client in range(self.config.clients)]
