"""Pair noise: a wrong label is always the partner of the true class, `offset` classes further on."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fednoil.noise.base import (
    KindConfig,
    MapConfig,
    NoiseKind,
    NoisyClient,
    Population,
    SpaceConfig,
    own_classes,
    per_map,
    picked,
)
from fednoil.seeds import Seed


class PairConfig(MapConfig, SpaceConfig):
    shifts: ClassVar[bool] = True

    kind: Literal["pair"] = "pair"


class Pair(NoiseKind):
    """With level ρ class i stays with chance 1 − ρ and becomes (i + offset) mod C with ρ; a shared offset is 1."""

    Config = PairConfig

    def __init__(self, config: PairConfig, population: Population, seed: Seed) -> None:
        super().__init__(config, population, seed)
        self.offsets = _offsets(config.map, population, seed.child("offsets").numpy())

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        wrong = picked(len(client.labels), client.level, rng)
        return np.where(wrong, self.partners(client)[client.labels], client.labels)

    def partners(self, client: NoisyClient) -> np.ndarray:
        """The partner of each class: int64 [C]."""
        return partners(client.num_classes, self.offsets[client.number], own_classes(client, self.config.space))

    def matrix(self, client: NoisyClient) -> np.ndarray:
        identity = np.eye(client.num_classes)
        return (1 - client.level) * identity + client.level * identity[self.partners(client)]


class PairDownConfig(KindConfig):
    kind: Literal["pair-down"] = "pair-down"


class PairDown(NoiseKind):
    """With level ρ class i becomes (i − 1) mod C at every client, as in FedRN and FNBench."""

    Config = PairDownConfig

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        wrong = picked(len(client.labels), client.level, rng)
        return np.where(wrong, (client.labels - 1) % client.num_classes, client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        identity = np.eye(client.num_classes)
        return (1 - client.level) * identity + client.level * np.roll(identity, -1, axis=1)


def partners(num_classes: int, offset: int, space: np.ndarray) -> np.ndarray:
    """For each class the one `offset` further on, or where that is not in `space` (sorted) the next one there, in a
    circle: int64 [C]."""
    classes = np.arange(num_classes)
    found = (classes + offset) % num_classes
    following = space[np.searchsorted(space, classes, side="right") % len(space)]
    return np.where(np.isin(found, space), found, following)


def _offsets(sharing: str, population: Population, rng: np.random.Generator) -> np.ndarray:
    """Each client's step from a class to its partner, 1..C-1: int64 [K]."""
    maps, own = per_map(sharing, population)
    if sharing == "shared":
        return np.ones(len(own), dtype=np.int64)
    if sharing == "per_client":
        return rng.integers(1, population.num_classes, size=maps)
    others = population.num_classes - 1
    # Distinct while there are enough, so that no two groups agree on a wrong labelling.
    return 1 + rng.choice(others, size=maps, replace=maps > others)[own]
