"""Which training samples each client holds: an even deal, classes shared out by Dirichlet draws, uneven sizes, or a mix
of classes of each client's own.

The first three start from the same pool, which is class-balanced when a size per client is asked for, so that the
kinds differ in how the samples are dealt and not in which samples there are. A mix of its own takes what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fednoil.errors import UserError
from fednoil.labels import check_labels
from fednoil.section import Section
from fednoil.seeds import Seed

MAX_DRAWS = 2000
"""Draws of a random split before giving up on `min_size`."""


class PartitionConfig(Section):
    """How the training samples are dealt to the clients.

    `beta` is the concentration of the Dirichlet draw (`dirichlet`: of each class over clients; `quantity`: of the
    sizes; `mixture`: of each client over classes), and `min_size` the fewest samples a client may hold in the first two
    of those kinds. Without `samples_per_client`, which `mixture` needs, every training sample is dealt.
    """

    kind: Literal["iid", "dirichlet", "quantity", "mixture"] = "iid"
    clients: Annotated[int, Field(ge=1)] = 20
    samples_per_client: Annotated[int, Field(ge=1)] | None = None
    # Beyond 1e6 every draw is an even split, and near the largest float numpy's draw is all zeros.
    beta: Annotated[float, Field(gt=0, le=1e6)] = 0.5
    cap: bool = Field(
        default=False,
        description="dirichlet: a client that holds its even share gets nothing of later classes, as in FedLab",
    )
    min_size: Annotated[int, Field(ge=1)] = 32


def partition(labels: np.ndarray, num_classes: int, config: PartitionConfig, seed: Seed) -> tuple[np.ndarray, ...]:
    """One sorted int64 array of indices into `labels` [N] per client; no index is dealt twice."""
    check_labels(labels, num_classes)
    total = _pool_size(len(labels), config)
    if config.kind == "mixture":
        return _mixtures(labels, num_classes, config, seed.child("partition", "mixture").numpy())
    pool = _pool(labels, num_classes, total, seed.child("partition", "pool").numpy())
    rng = seed.child("partition", config.kind).numpy()
    if config.kind == "iid":
        # Every K-th sample of the pool ordered by class: each class is spread evenly over the clients.
        order = np.concatenate(pool)
        parts = [order[client :: config.clients] for client in range(config.clients)]
    elif config.kind == "dirichlet":
        sizes = np.array([len(indices) for indices in pool])
        counts = _draw_until_filled(lambda: _class_counts(sizes, config, rng), config)
        parts = _cut(pool, counts)
    else:
        counts = _draw_until_filled(lambda: _client_sizes(total, config, rng), config)
        parts = _deal_evenly(np.concatenate(pool), counts[0])
    return tuple(np.sort(part).astype(np.int64) for part in parts)


def _pool_size(available: int, config: PartitionConfig) -> int:
    """How many of the `available` samples are dealt in all."""
    if available < config.clients:
        raise UserError(
            f"partition.clients = {config.clients} is more than the {available} training samples: "
            f"each client needs at least one, so use at most {available}"
        )
    total, each = available, config.samples_per_client
    if each is not None:
        total = config.clients * each
        if total > available:
            raise UserError(
                f"partition.samples_per_client = {each} needs {total} training samples for {config.clients} clients "
                f"but there are {available}: use at most {available // config.clients}{_or_clients(available // each)}"
            )
    if config.kind in ("dirichlet", "quantity") and config.clients * config.min_size > total:
        most = total // config.min_size if each is None else 0  # with a size each, fewer clients are dealt fewer
        raise UserError(
            f"partition.min_size = {config.min_size} needs {config.clients * config.min_size} samples for "
            f"partition.clients = {config.clients} but {total} are dealt: "
            f"use at most {total // config.clients}{_or_clients(most)}"
        )
    return total


def _or_clients(most: int) -> str:
    """The other way out of a split that needs too many samples, if there is one."""
    return f", or partition.clients of at most {most}" if most else ""


def _pool(labels: np.ndarray, num_classes: int, total: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The indices of `total` samples, as equal per class as there are: one shuffled array per class."""
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


def _draw_until_filled(draw: Callable[[], np.ndarray], config: PartitionConfig) -> np.ndarray:
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


def _class_counts(sizes: np.ndarray, config: PartitionConfig, rng: np.random.Generator) -> np.ndarray:
    """How many samples of each class, of `sizes` [C], each client gets: int64 [C, clients]."""
    counts = np.zeros((len(sizes), config.clients), dtype=np.int64)
    for label, size in enumerate(sizes):
        if not size:
            continue
        takers = np.arange(config.clients)
        if config.cap:
            # Drawing for the clients below the cap alone has the same law as zeroing the others' entries and
            # renormalising, and can't leave a sum of zero.
            takers = np.flatnonzero(counts.sum(0) < sizes.sum() / config.clients)
        shares = rng.dirichlet(np.full(len(takers), config.beta))
        cuts = np.floor(np.cumsum(shares[:-1]) * size).astype(np.int64)
        counts[label, takers] = np.diff(cuts, prepend=0, append=size)
    return counts


def _mixtures(
    labels: np.ndarray, num_classes: int, config: PartitionConfig, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Clients of one size, each with shares of the classes from a Dirichlet draw of its own."""
    if config.samples_per_client is None:
        raise UserError('partition.kind = "mixture" needs partition.samples_per_client: the size of every client')
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]
    available = np.array([len(indices) for indices in classes])
    for _ in range(MAX_DRAWS):
        shares = rng.dirichlet(np.full(num_classes, config.beta), config.clients)
        counts = np.array([largest_remainder(row, config.samples_per_client) for row in shares]).T
        if (counts.sum(1) <= available).all():
            pool = [indices[:size] for indices, size in zip(classes, counts.sum(1), strict=True)]
            return tuple(np.sort(part).astype(np.int64) for part in _cut(pool, counts))
    raise UserError(
        f"partition.beta = {config.beta:g} gave no mix in {MAX_DRAWS} draws for which the {len(labels)} training "
        f"samples suffice: use a larger beta, or partition.samples_per_client less than {config.samples_per_client}"
    )


def _cut(pool: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Deal each class's indices in consecutive runs of `counts` [C, clients]."""
    runs = [np.split(indices, np.cumsum(row)[:-1]) for indices, row in zip(pool, counts, strict=True)]
    return [np.concatenate(client) for client in zip(*runs, strict=True)]


def _client_sizes(total: int, config: PartitionConfig, rng: np.random.Generator) -> np.ndarray:
    """Sizes that sum to `total`, from one Dirichlet draw: int64 [1, clients]."""
    return largest_remainder(rng.dirichlet(np.full(config.clients, config.beta)), total)[None]


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Round `shares` [K], which sum to 1, of `total` to whole numbers that sum to it: int64 [K]."""
    exact = shares * total
    sizes = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")
    sizes[order[: total - int(sizes.sum())]] += 1
    return sizes


def _deal_evenly(order: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Deal indices ordered by class so that clients of any `sizes` [K] get about the same class mix.

    Each client's n_k turns are spread evenly over the deal; with equal sizes this is one sample each in turn.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    turn = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    owner = owner[np.argsort(turn, kind="stable")]
    return [order[owner == client] for client in range(len(sizes))]
