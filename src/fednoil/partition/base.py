"""The contract of a partition, which samples each client holds, and what the partitions share.

Most of them start from the same pool, which is class-balanced when a size per client is asked for, so that they
differ in how the samples are dealt and not in which samples there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fednoil.errors import UserError
from fednoil.section import Section
from fednoil.seeds import Seed

MAX_DRAWS = 2000
"""Draws of a random split before giving up on `min_size`."""


class PartitionConfig(Section):
    """The keys every partition has."""

    fitted = frozenset({"samples_per_client"})

    kind: str = Field(default="iid", description="how the training samples are dealt to the clients")
    clients: int = Field(default=20, ge=1, description="how many clients there are")
    samples_per_client: int | None = Field(
        default=None, ge=1, description="samples of a client, on average; none: all training samples are dealt"
    )
    imbalance: float = Field(
        default=1.0,
        ge=1,
        description="class 0 keeps this many times as many samples as the last class; 1: all are kept",
    )


class UnevenConfig(PartitionConfig):
    """The keys of the partitions that draw until every client has enough."""

    # Beyond 1e6 every draw is an even split, and near the largest float numpy's draw is all zeros.
    beta: float = Field(
        default=0.5, gt=0, le=1e6, description="concentration of the Dirichlet draws: the smaller, the more uneven"
    )
    min_size: int = Field(default=32, ge=1, description="the fewest samples that a client may hold")


class Partition(ABC):
    """Which samples each client holds."""

    Config: ClassVar[type[PartitionConfig]] = PartitionConfig
    by_owner: ClassVar[bool] = False  # deals the samples as the data say

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> Sequence[np.ndarray]:
        """One array of indices into `labels` [N] per client, in any order; no index is dealt twice."""


class Uneven(Partition):
    """Each class is cut into uneven shares, which are drawn until every client has enough."""

    config: UnevenConfig
    stream: ClassVar[str] = "dirichlet"  # of random numbers

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        total = pool_size(len(labels), self.config)
        check_min_size(total, self.config)
        pool = balanced_pool(labels, num_classes, total, seed)
        sizes, rng = np.array([len(indices) for indices in pool]), seed.child(self.stream).numpy()
        return cut(pool, draw_until_filled(lambda: self.counts(sizes, rng), self.config))

    @abstractmethod
    def counts(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One draw of how many samples of each class, of `sizes` [C], each client gets: int64 [C, clients]."""


def long_tail(labels: np.ndarray, num_classes: int, imbalance: float, seed: Seed) -> np.ndarray:
    """The places of the samples that are kept: n · imbalance^(−c/(C − 1)) of class c, where n is the size of the
    largest class."""
    counts = np.bincount(labels, minlength=num_classes)
    kept = tail_sizes(int(counts.max()), num_classes, imbalance)
    rng, found = seed.child("long tail").numpy(), []
    for label in range(num_classes):
        own = rng.permutation(np.flatnonzero(labels == label))
        found.append(own[: kept[label]])
    return np.sort(np.concatenate(found))


def tail_sizes(most: int, num_classes: int, imbalance: float) -> list[int]:
    """How many samples each class keeps at most."""
    return [int(most * imbalance ** (-c / max(1, num_classes - 1)) + 1e-9) for c in range(num_classes)]


def pool_size(available: int, config: PartitionConfig) -> int:
    """How many of the `available` samples are dealt in total."""
    if available < config.clients:
        raise UserError(
            f"partition.clients = {config.clients} is more than the {available} training samples: "
            f"each client needs at least one, so use at most {available}"
        )
    each = config.samples_per_client
    if each is None:
        return available
    total = config.clients * each
    if total > available:
        raise UserError(
            f"partition.samples_per_client = {each} needs {total} training samples for {config.clients} clients "
            f"but there are {available}: use at most {available // config.clients}{_or_clients(available // each)}"
        )
    return total


def _or_clients(most: int) -> str:
    """The other way out of a split that needs too many samples, if there is one."""
    return f", or partition.clients of at most {most}" if most else ""


def balanced_pool(labels: np.ndarray, num_classes: int, total: int, seed: Seed) -> list[np.ndarray]:
    """The indices of `total` samples, as equal per class as there are: one shuffled array per class."""
    rng = seed.child("pool").numpy()
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]
    quotas = class_quotas(np.array([len(indices) for indices in classes]), total, rng)
    return [indices[:quota] for indices, quota in zip(classes, quotas, strict=True)]


def class_quotas(available: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Share `total` samples between classes that have `available` [C], as equally as that allows: [C].

    Water-filling: the classes with samples left rise together, and a scarce class gives all it has. What
    doesn't divide goes one each to classes drawn at random.
    """
    quotas = np.zeros_like(available)
    while total:
        left = np.flatnonzero(quotas < available)
        level = total // len(left)
        if level == 0:
            quotas[rng.choice(left, total, replace=False)] += 1
            break
        gain = np.minimum(level, available[left] - quotas[left])
        quotas[left] += gain
        total -= int(gain.sum())
    return quotas


def check_min_size(total: int, config: UnevenConfig) -> None:
    """Refuse a `min_size` that needs more than `total` samples."""
    if config.clients * config.min_size > total:
        # With a size each, fewer clients are dealt fewer.
        most = total // config.min_size if config.samples_per_client is None else 0
        raise UserError(
            f"partition.min_size = {config.min_size} needs {config.clients * config.min_size} samples for "
            f"partition.clients = {config.clients} but {total} are dealt: "
            f"use at most {total // config.clients}{_or_clients(most)}"
        )


def draw_until_filled(draw: Callable[[], np.ndarray], config: UnevenConfig) -> np.ndarray:
    """The first of at most `MAX_DRAWS` counts [rows, clients] that give each client `min_size` samples."""
    for _ in range(MAX_DRAWS):
        counts = draw()
        if counts.sum(0).min() >= config.min_size:
            return counts
    raise UserError(
        f"partition.beta = {config.beta:g} gave no split in {MAX_DRAWS} draws where each of "
        f"partition.clients = {config.clients} has partition.min_size = {config.min_size} samples: "
        "use a larger beta, a smaller min_size or fewer clients"
    )


def cut(pool: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Deal each class's indices in consecutive runs of `counts` [C, clients]."""
    runs = [np.split(indices, np.cumsum(row)[:-1]) for indices, row in zip(pool, counts, strict=True)]
    return [np.concatenate(client) for client in zip(*runs, strict=True)]


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Round `shares` [K], which sum to 1, of `total` to whole numbers that sum to it: int64 [K]."""
    exact = shares * total
    sizes = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")
    sizes[order[: total - int(sizes.sum())]] += 1
    return sizes
