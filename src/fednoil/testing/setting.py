"""Checks of the parts of a setting: kinds of noise, noise levels, partitions."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fednoil import noise, partition
from fednoil.config.loading import load_config
from fednoil.data.dataset import Dataset, Split
from fednoil.errors import UserError
from fednoil.noise import KIND_AXIS
from fednoil.noise.base import NoiseKind, NoisyClient, ReplacesImages
from fednoil.seeds import Seed
from fednoil.testing.federation import NotConforming

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class _Case:
    """The number of classes, of clients, and of samples per client."""

    classes: int
    clients: int
    each: int

    def dataset(self) -> Dataset:
        """Noisy images with labels in random order."""
        rng, count = np.random.default_rng(0), self.clients * self.each
        labels = rng.permutation(np.arange(count) % self.classes)
        images = rng.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8)
        names = tuple(f"class {label}" for label in range(self.classes))
        return Dataset("tiny", Split(images, labels), Split(images[:1], labels[:1]), names, (0.5,), (0.3,))

    def __str__(self) -> str:
        return f"with {self.clients} clients of {self.each} samples and {self.classes} classes"


_CASES = (_Case(4, 5, 200), _Case(10, 1, 400), _Case(40, 3, 400), _Case(2, 2, 200))


def check_partition(own: str | type, **keys: Any) -> None:
    """Check a partition, `my_module:MyPartition` or the class itself; `keys` are its own."""
    for case in _CASES:
        dataset = case.dataset()
        config = load_config({"partition": {"kind": path_of(own), "clients": case.clients, **keys}}).partition

        def deal(seed: Seed, dataset: Dataset = dataset, config: Any = config) -> Arrays:
            return partition.partition(dataset.train.labels, dataset.num_classes, config, seed)

        _check(deal, dataset, f"{path_of(own)} {case}", varies=case.clients > 1)


def check_noise_levels(own: str | type, **keys: Any) -> None:
    """Check levels of noise, `my_module:MyLevels` or the class itself; `keys` are its own."""
    config = load_config({"noise": {"kind": "symmetric", "levels": path_of(own), **keys}}).noise
    for sizes in ((50,) * 8, (30,), (10, 200, 40)):
        where = f"{path_of(own)} with {len(sizes)} clients"
        _check(lambda seed, sizes=sizes: noise.levels_of(config, sizes, seed), None, where, varies=False)


def check_noise_kind(own: str | type, **keys: Any) -> None:
    """Check a kind of noise, `my_module:MyNoise` or the class itself; `keys` are its own."""
    levels = [0.0, 0.3, 0.5]
    for case in _CASES:
        dataset, where = case.dataset(), f"{path_of(own)} {case}"
        ratios = levels[-case.clients :]
        config = load_config({"noise": {"ratios": ratios, **keys, "kind": path_of(own)}}).noise
        parts = tuple(np.array_split(np.arange(len(dataset.train)), case.clients))

        def spoil(seed: Seed, dataset: Dataset = dataset, parts: Arrays = parts, config: Any = config) -> Arrays:
            return noise.apply(dataset, tuple(parts), config, seed)[0].given

        def made(seed: Seed, dataset: Dataset = dataset, parts: Arrays = parts, config: Any = config) -> Arrays:
            """Labels, and images where some are replaced."""
            images = noise.with_outliers(dataset, tuple(parts), config, seed).train.images
            given = noise.apply(dataset, tuple(parts), config, seed)[0].given
            return given if images is dataset.train.images else [*given, images]

        varies = KIND_AXIS.find(config.kind).uses_levels
        _check(made, dataset, where, varies=varies)
        kind, clients = noise.prepare(dataset, parts, config, Seed(1))
        given = spoil(Seed(1))
        _check_order(kind, clients, given, where)
        for client, labels in zip(clients, given, strict=True):
            _check_level(kind, client, labels, where)


def _check(make: Callable[[Seed], Arrays], dataset: Dataset | None, where: str, *, varies: bool) -> None:
    """The same seed gives the same and another seed something else; no global state or input is changed."""
    before = None if dataset is None else (dataset.train.images.copy(), dataset.train.labels.copy())
    results = []
    for number in (0, 1):
        with untouched_generators(number, where):
            results.append(refused(lambda: make(Seed(1)), where))
    if not _same(*results):
        raise NotConforming(f"{where}: the same seed gives different results; keep nothing between two calls")
    if varies and all(_same(results[0], make(Seed(root))) for root in (2, 3, 4)):
        raise NotConforming(f"{where}: other seeds give the same result; draw from the seed or generator it is given")
    if dataset is not None and before is not None and not _same(before, (dataset.train.images, dataset.train.labels)):
        raise NotConforming(f"{where}: changes the images or labels it is given; work on a copy")


def _check_order(kind: NoiseKind, clients: list[NoisyClient], given: Arrays, where: str) -> None:
    """A client's labels don't depend on who came before, and its true labels stay as they are."""
    for client in reversed(clients):
        true = client.labels.copy()
        labels = kind.labels(client, Seed(1).child("noise", "client", client.number).numpy())
        if not np.array_equal(client.labels, true):
            raise NotConforming(f"{where}: changes client.labels; work on a copy")
        if not np.array_equal(labels, given[client.number]):
            raise NotConforming(
                f"{where}: labels depend on the order of clients; keep nothing on the object in `labels`"
            )


def _check_level(kind: NoiseKind, client: NoisyClient, given: np.ndarray, where: str) -> None:
    """As many labels are wrong as the matrix says or, without one, about as many as the level says."""
    where, matrix = f"{where}: client {client.number} of level {client.level:g}", kind.matrix(client)
    if matrix is not None:
        if matrix.shape != (client.num_classes,) * 2 or not np.allclose(matrix.sum(1), 1) or matrix.min() < 0:
            raise NotConforming(f"{where}: `matrix` must be [C, C], not negative, with rows that sum to 1")
        if (matrix[client.labels, given] == 0).any():
            raise NotConforming(f"{where}: has labels that have probability 0 in `matrix`")
        expected, room = float(1 - matrix[client.labels, client.labels].mean()), 0.01
    else:
        expected, room = client.level, 0.05
    wrong = given != client.labels
    if isinstance(kind, ReplacesImages):
        wrong[kind.outliers(client)[0]] = True  # whatever its label: the image shows no class
    realised, size = float(wrong.mean()), len(given)
    if client.level == 0 and realised:
        raise NotConforming(f"{where}: {realised:.0%} of its labels are wrong; level 0 means none")
    if abs(realised - expected) > room + 4 * np.sqrt(expected * (1 - expected) / size):
        raise NotConforming(f"{where}: {realised:.0%} of its labels are wrong, not about {expected:.0%}")


def refused(make: Callable[[], Any], where: str) -> Any:
    """What `make` returns; a UserError is a failed check."""
    try:
        return make()
    except UserError as error:
        raise NotConforming(f"{where}: {error}") from error


def _same(a: Arrays, b: Arrays) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@contextlib.contextmanager
def untouched_generators(number: int, where: str) -> Iterator[None]:
    """Set the process's global random generators, and check that nothing uses them meanwhile."""
    own, numpy_own = random.getstate(), np.random.get_state()  # noqa: NPY002 (the very generator that must not be used)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        np.random.seed(number)  # noqa: NPY002
        random.seed(number)
        before = _state()
        try:
            yield
            if _state() != before:
                raise NotConforming(
                    f"{where}: uses a global random generator; draw from the seed or generator it is given"
                )
        finally:
            random.setstate(own)
            np.random.set_state(numpy_own)  # noqa: NPY002


def _state() -> tuple[object, ...]:
    numbers = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return torch.random.get_rng_state().tolist(), numbers["key"].tolist(), numbers["pos"], random.getstate()


def path_of(own: str | type) -> str:
    return own if isinstance(own, str) else f"{own.__module__}:{own.__qualname__}"
