"""The contract of noise: a kind says which label becomes which, levels say how wrong each client is.

The two are chosen separately, `noise.kind` and `noise.levels`, and any kind works with any levels. Both draw from
generators that the seed names, never from a global one, so that noise depends on the seed and on nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fednoil.data.dataset import Dataset
from fednoil.errors import UserError
from fednoil.labels import Labels, Truth
from fednoil.section import Section
from fednoil.seeds import Seed

Parts = tuple[np.ndarray, ...]  # of each client, indices of its samples


class KindConfig(Section):
    """The keys every kind of noise has."""

    shifts: ClassVar[bool] = False  # whether it may turn each class into the next: `shifted_accuracy` is then recorded

    @classmethod
    def fits_data(cls) -> frozenset[str]:
        """Labels are never changed unless asked."""
        return frozenset(cls.model_fields)

    kind: str = Field(default="auto", description="which label becomes which")


class MapConfig(KindConfig):
    """The keys of a kind whose wrong labels follow a map of classes."""

    map: Literal["per_client", "per_group", "shared"] = Field(
        default="per_client", description="who shares a map of true to wrong classes"
    )


class SpaceConfig(KindConfig):
    """The keys of a kind whose wrong labels can be kept among a client's own classes."""

    space: Literal["all", "client"] = Field(
        default="all", description="which classes a wrong label can name: all, or those that the client has"
    )


class LevelsConfig(Section):
    """The keys all levels have."""

    levels: str = Field(default="groups", description="how wrong each client is")


class UnlevelledConfig(KindConfig):
    """The configuration of a kind that adds no noise: it is written and compared without the keys of levels, which
    may stand beside it, so that the kind alone can be changed."""

    @model_serializer(mode="wrap")
    def _without_levels(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        levels = {
            key
            for base in type(self).__mro__
            if issubclass(base, LevelsConfig) and not issubclass(base, KindConfig)
            for key in base.model_fields
        }
        return {key: value for key, value in handler(self).items() if key not in levels}


@dataclass(frozen=True, eq=False)
class Population:
    """All clients, as a kind of noise sees them before it begins."""

    sizes: tuple[int, ...]  # samples of each client
    levels: np.ndarray  # float64 [K], how wrong each client is, 0..1
    groups: np.ndarray  # int64 [K], clients with the same number belong together
    num_classes: int
    image_shape: tuple[int, ...]  # channels, height, width; of vectors the number of columns alone
    mean: tuple[float, ...]  # of each channel, for pixels scaled to 0..1
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class NoisyClient:
    """One client, as a kind of noise sees it."""

    number: int
    group: int
    level: float  # how wrong it is, 0..1; the kind defines what that means
    labels: np.ndarray  # true labels int64 [n]
    num_classes: int
    pool: np.ndarray  # all training images, uint8 [N, channels, height, width], or scaled vectors float32 [N, D]
    index: np.ndarray  # the places of the client's own samples in it, int64 [n]

    @property
    def images(self) -> np.ndarray:
        """The client's images, uint8 [n, channels, height, width]."""
        return self.pool[self.index]


class NoiseKind(ABC):
    """Which label becomes which.

    One object is made for all clients of a run; what they share is drawn in `__init__`. Then `labels` is called
    for each client, with a generator of that client's own.
    """

    Config: ClassVar[type[KindConfig]] = KindConfig
    uses_levels: ClassVar[bool] = True  # False: no label is changed, and levels are not asked for
    knows_truth: ClassVar[bool] = True  # False: nobody knows whether the dataset's own labels are correct

    def __init__(self, config: Any, population: Population, seed: Seed) -> None:
        self.config, self.population = config, population

    @abstractmethod
    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        """The labels that the client is given: whole numbers [n]. `client.labels` stay as they are."""

    def matrix(self, client: NoisyClient) -> np.ndarray | None:
        """P[true class, given class] of this client's labels, float64 [C, C], where it depends on nothing else."""
        return None

    @classmethod
    def read(cls, config: Any, dataset: Dataset) -> tuple[Parts, Labels, Truth] | None:
        """Clients and labels at once, for a kind that reads both from a file; then no partition is made."""
        return None


class ReplacesImages(NoiseKind):
    """A kind that also puts images of no class in the place of some."""

    @abstractmethod
    def outliers(self, client: NoisyClient) -> tuple[np.ndarray, np.ndarray]:
        """Which of the client's samples [m] are replaced, and the images in their place [m, ...]."""


class NoiseLevels(ABC):
    """How wrong each client is."""

    Config: ClassVar[type[LevelsConfig]] = LevelsConfig

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        """The level of each client, 0..1, from the clients' numbers of samples: float64 [K]."""

    def groups(self, clients: int) -> np.ndarray:
        """Which clients belong together: int64 [K], the same number for those that do. By default none do."""
        return np.arange(clients, dtype=np.int64)


def per_map(sharing: str, population: Population) -> tuple[int, np.ndarray]:
    """How many maps of classes there are when each client (`per_client`), each group (`per_group`) or everybody
    (`shared`) has one, and which of them each client has: int64 [K]."""
    if sharing == "shared":
        return 1, np.zeros(len(population.sizes), dtype=np.int64)
    if sharing == "per_client":
        return len(population.sizes), np.arange(len(population.sizes))
    names, group = np.unique(population.groups, return_inverse=True)
    return len(names), group


def own_classes(client: NoisyClient, space: str) -> np.ndarray:
    """The classes that a client's wrong labels can name, sorted: all, or those of its true labels, at least two."""
    if space == "all":
        return np.arange(client.num_classes)
    classes = np.unique(client.labels)
    if len(classes) < 2 and client.level:
        raise UserError(
            f"noise.space = 'client': client {client.number} has labels of one class only, so that no label can be "
            "wrong; use 'all', or a partition with two classes or more for each client"
        )
    return classes


def drawn(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One class for each row of `chances` [n, C], by that row: int64 [n]."""
    edges = np.cumsum(chances, axis=1)
    return (edges > rng.random((len(chances), 1)) * edges[:, -1:]).argmax(1)


def picked(size: int, level: float, rng: np.random.Generator) -> np.ndarray:
    """Which of `size` labels are to be replaced, each with chance `level`: bool [size]."""
    return rng.random(size) < level
