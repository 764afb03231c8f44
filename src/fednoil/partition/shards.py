"""Samples sorted by label, cut into equal shards, of which each client gets a few at random (McMahan et al., 2017)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.errors import UserError
from fednoil.partition.base import Partition, PartitionConfig, balanced_pool, pool_size
from fednoil.seeds import Seed


class ShardsConfig(PartitionConfig):
    kind: Literal["shards"] = "shards"
    classes: int = Field(default=2, ge=1, description="shards per client, which is about the most classes it can have")


class Shards(Partition):
    Config = ShardsConfig

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        clients, each = self.config.clients, self.config.classes
        total = pool_size(len(labels), self.config)
        if clients * each > total:
            raise UserError(
                f"partition.classes = {each} needs {clients * each} samples for partition.clients = {clients} "
                f"but {total} are dealt: use at most {total // clients}"
            )
        order = np.concatenate(balanced_pool(labels, num_classes, total, seed))
        shards = np.array_split(order, clients * each)
        chosen = seed.child("shards").numpy().permutation(len(shards)).reshape(clients, each)
        return [np.concatenate([shards[place] for place in row]) for row in chosen]
