"""Every partition, kind and levels of noise of the package passes its conformance check, and each mistake is found."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fednoil.noise import KINDS, LEVELS
from fednoil.noise.base import LevelsConfig, NoiseKind, NoiseLevels, NoisyClient
from fednoil.partition import PARTITIONS
from fednoil.partition.base import Partition
from fednoil.seeds import Seed
from fednoil.testing import NotConforming, check_noise_kind, check_noise_levels, check_partition

KEYS: dict[str, dict[str, Any]] = {"mixture": {"samples_per_client": 20, "beta": 5.0}, "classes": {"classes": 2}}
# One becomes another, some are files, some know the names of classes.
READ = {"auto", "manifest", "transition", "confusable", "cifar-n", "semantic", "superclass"}


@pytest.mark.parametrize("kind", [kind for kind, way in PARTITIONS.items() if not way.by_owner and kind != "annotator"])
def test_partitions(kind: str) -> None:
    check_partition(kind, **KEYS.get(kind, {}))


@pytest.mark.parametrize("levels", LEVELS)
def test_levels(levels: str) -> None:
    check_noise_levels(levels)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in READ])
def test_kinds(kind: str) -> None:
    check_noise_kind(kind)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("symmetric", {}),
        ("pair", {"map": "per_group"}),
        ("pair", {"map": "shared"}),
        ("pair", {"map": "shared", "space": "client"}),
        ("symmetric", {"space": "client"}),
        ("matrix", {"kappa": 0.01, "map": "per_group"}),
        ("matrix", {"map": "shared"}),
    ],
)
def test_kinds_with_other_keys(kind: str, keys: dict[str, Any]) -> None:
    check_noise_kind(kind, **keys)


class Good(Partition):
    """Samples in random order, cut into equal parts; the base of what is wrong below."""

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        return np.array_split(seed.numpy().permutation(len(labels)), self.config.clients)


class Unseeded(Good):
    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        return super().deal(labels, num_classes, Seed(0))


class Global(Good):
    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        return np.array_split(np.random.permutation(len(labels)), self.config.clients)  # noqa: NPY002


class Sorting(Good):
    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        labels.sort()
        return super().deal(labels, num_classes, seed)


class Twice(Good):
    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        return [np.arange(10)] * self.config.clients


class Remembering(Good):
    turns = 0

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        Remembering.turns += 1
        return super().deal(labels, num_classes, seed.child(Remembering.turns))


def test_a_good_partition_passes() -> None:
    check_partition(Good)


@pytest.mark.parametrize(
    ("own", "line"),
    [
        (Unseeded, "other seeds give the same"),
        (Global, "uses a global random generator"),
        (Sorting, "changes the images or labels"),
        (Twice, "dealt sample 0 more than once"),
        (Remembering, "the same seed gives different results"),
    ],
)
def test_bad_partitions(own: type, line: str) -> None:
    with pytest.raises(NotConforming, match=f"{__name__}:{own.__name__} with .*{line}"):
        check_partition(own)


class GoodNoise(NoiseKind):
    """A wrong label is the next class; the base of what is wrong below."""

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        wrong = rng.random(len(client.labels)) < client.level
        return (client.labels + wrong) % client.num_classes


class UnseededNoise(GoodNoise):
    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        return super().labels(client, np.random.default_rng(0))


class GlobalNoise(GoodNoise):
    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        random.random()
        return super().labels(client, rng)


class InPlace(GoodNoise):
    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        client.labels[:] = super().labels(client, rng)
        return client.labels


class Painting(GoodNoise):
    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        client.pool[:] = 0
        return super().labels(client, rng)


class Loud(GoodNoise):
    """Every second label is wrong, whatever the level."""

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        return (client.labels + (rng.random(len(client.labels)) < 0.5)) % client.num_classes


class Quiet(GoodNoise):
    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        wrong = rng.random(len(client.labels)) < client.level / 2
        return (client.labels + wrong) % client.num_classes


class OutOfRange(GoodNoise):
    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        return client.labels + (rng.random(len(client.labels)) < client.level)


class InTurn(GoodNoise):
    """Every client gets the generator's numbers of the client before."""

    turns = 0

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        self.turns += 1
        rng.random(self.turns)
        return super().labels(client, rng)


class WrongMatrix(GoodNoise):
    def matrix(self, client: NoisyClient) -> np.ndarray:
        return np.eye(client.num_classes)


class NoMatrix(GoodNoise):
    def matrix(self, client: NoisyClient) -> np.ndarray:
        return np.ones((client.num_classes, client.num_classes))


def test_good_noise_passes() -> None:
    check_noise_kind(GoodNoise)


@pytest.mark.parametrize(
    ("own", "line"),
    [
        (UnseededNoise, "other seeds give the same"),
        (GlobalNoise, "uses a global random generator"),
        (InPlace, r"changes client\.labels"),
        (Painting, "changes the images or labels"),
        (Loud, "client 0 of level 0: 48% of its labels are wrong; level 0 means none"),
        (Quiet, r"level 0\.[35]: .* wrong, not about"),
        (OutOfRange, "gave client 2 the label 4; it must be 0 to 3"),
        (InTurn, "depend on the order of clients"),
        (WrongMatrix, "have probability 0 in `matrix`"),
        (NoMatrix, "rows that sum to 1"),
    ],
)
def test_bad_kinds(own: type, line: str) -> None:
    with pytest.raises(NotConforming, match=f"{__name__}:{own.__name__} with .*{line}"):
        check_noise_kind(own)


class GoodLevels(NoiseLevels):
    Config = LevelsConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        return seed.child("levels").numpy().random(len(sizes))


class GlobalLevels(GoodLevels):
    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        return np.random.random(len(sizes))  # noqa: NPY002


class TooHigh(GoodLevels):
    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        return np.arange(len(sizes)) / 2


def test_good_levels_pass() -> None:
    check_noise_levels(GoodLevels)


@pytest.mark.parametrize(
    ("own", "line"),
    [(GlobalLevels, "uses a global random generator"), (TooHigh, r"level 1\.5; a level must be 0 to 1")],
)
def test_bad_levels(own: type, line: str) -> None:
    with pytest.raises(NotConforming, match=f"{__name__}:{own.__name__} with .*{line}"):
        check_noise_levels(own)
