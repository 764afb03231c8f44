"""Which training samples each client holds: each way to deal them is one file and one line in the table below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fednoil.data.dataset import Owners
from fednoil.errors import UserError
from fednoil.labels import check_labels
from fednoil.partition.annotator import WORD, Annotator
from fednoil.partition.base import Partition, PartitionConfig, long_tail
from fednoil.partition.bernoulli import Bernoulli
from fednoil.partition.capped import Capped
from fednoil.partition.classes import Classes
from fednoil.partition.dirichlet import Dirichlet
from fednoil.partition.given import GivenPartition
from fednoil.partition.iid import Iid
from fednoil.partition.mixture import Mixture
from fednoil.partition.quantity import Quantity
from fednoil.partition.shards import Shards
from fednoil.plugins import Axis
from fednoil.seeds import Seed

PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "quantity": Quantity,
    "mixture": Mixture,
    "capped": Capped,
    "bernoulli": Bernoulli,
    "classes": Classes,
    "shards": Shards,
    WORD: Annotator,
    "given": GivenPartition,
}


class _Partitions(Axis[Partition]):
    """Annotators have the path of their file after the word."""

    def names(self) -> list[str]:
        return [f"{name}:FILE" if name == WORD else name for name in self.table]

    def is_own(self, name: str) -> bool:
        return super().is_own(name) and not name.startswith(f"{WORD}:")

    def find(self, name: str) -> type[Partition]:
        return super().find(WORD if name.startswith(f"{WORD}:") else name)


AXIS = _Partitions("partition", Partition, PARTITIONS, default="iid", key="kind")


def partition(
    labels: np.ndarray, num_classes: int, config: PartitionConfig, seed: Seed, owners: Owners | None = None
) -> tuple[np.ndarray, ...]:
    """One sorted int64 array of indices into `labels` [N] per client; no index is dealt twice."""
    check_labels(labels, num_classes)
    way = AXIS.find(config.kind)(config)

    def deal(labels: np.ndarray) -> Sequence[np.ndarray]:
        found = way.deal(labels, num_classes, seed.child("partition"))
        if not isinstance(found, Iterable) or isinstance(found, str | Mapping):
            said = f"{AXIS.path} = '{config.kind}': its deal must return a list of indices for each client"
            raise UserError(f"{said}, not a {type(found).__name__}")
        return list(found)

    if way.by_owner and owners is not None:
        for key, unset in (("samples_per_client", None), ("imbalance", 1.0)):
            if getattr(config, key) != unset:
                raise UserError(f"partition.{key}: with kind = '{config.kind}' clients have all that is theirs")
        dealt = owners.parts()
    elif config.imbalance > 1:
        kept = long_tail(labels, num_classes, config.imbalance, seed.child("partition"))
        dealt = [kept[np.asarray(part)] for part in deal(labels[kept])]
    else:
        dealt = deal(labels)
    parts = tuple(np.sort(np.asarray(part)) for part in dealt)
    _check(parts, len(labels), config)
    return tuple(part.astype(np.int64) for part in parts)


def _check(parts: tuple[np.ndarray, ...], size: int, config: PartitionConfig) -> None:
    """Refuse what is not a split, for example by a user's own class."""
    said = f"{AXIS.path} = '{config.kind}'"
    if len(parts) != config.clients:
        raise UserError(f"{said} dealt to {len(parts)} clients, but partition.clients = {config.clients}")
    for client, part in enumerate(parts):
        if not len(part):
            raise UserError(f"{said} gave client {client} no sample: use fewer clients or more samples")
        if part.ndim != 1 or not np.issubdtype(part.dtype, np.integer) or part[0] < 0 or part[-1] >= size:
            raise UserError(f"{said} gave client {client} something other than indices 0 to {size - 1}")
    indices, counts = np.unique(np.concatenate(parts), return_counts=True)
    if (counts > 1).any():
        raise UserError(f"{said} dealt sample {indices[counts > 1][0]} more than once")
