"""As the data say: each client has the samples that are its own."""

from __future__ import annotations

from typing import Literal, NoReturn

import numpy as np

from fednoil.errors import UserError
from fednoil.partition.base import Partition, PartitionConfig
from fednoil.seeds import Seed


class GivenPartitionConfig(PartitionConfig):
    kind: Literal["given"] = "given"


class GivenPartition(Partition):
    Config = GivenPartitionConfig
    by_owner = True

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> NoReturn:
        raise UserError(
            "partition.kind = 'given' needs data that name the client of each sample: --site NAME=DATA for each, or a "
            "column "
            "'site'; otherwise choose another"
        )
