"""Clients of one size, each with a mix of classes drawn from a Dirichlet distribution of its own.

The classes of all clients together are as uneven as the draws: there is no pool that all start from.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.errors import UserError
from fednoil.partition.base import MAX_DRAWS, Partition, PartitionConfig, cut, largest_remainder, pool_size
from fednoil.seeds import Seed


class MixtureConfig(PartitionConfig):
    kind: Literal["mixture"] = "mixture"
    beta: float = Field(
        default=0.5, gt=0, le=1e6, description="concentration of the Dirichlet draws: the smaller, the more uneven"
    )


class Mixture(Partition):
    Config = MixtureConfig

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        config, rng = self.config, seed.child("mixture").numpy()
        pool_size(len(labels), config)
        if config.samples_per_client is None:
            raise UserError('partition.kind = "mixture" needs partition.samples_per_client: the size of every client')
        classes = [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]
        available = np.array([len(indices) for indices in classes])
        for _ in range(MAX_DRAWS):
            shares = rng.dirichlet(np.full(num_classes, config.beta), config.clients)
            counts = np.array([largest_remainder(row, config.samples_per_client) for row in shares]).T
            if (counts.sum(1) <= available).all():
                return cut([indices[:size] for indices, size in zip(classes, counts.sum(1), strict=True)], counts)
        raise UserError(
            f"partition.beta = {config.beta:g} gave no mix in {MAX_DRAWS} draws for which the {len(labels)} training "
            f"samples suffice: use a larger beta, or partition.samples_per_client less than {config.samples_per_client}"
        )
