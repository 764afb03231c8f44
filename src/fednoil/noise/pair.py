"""Pair noise: a wrong label is always the partner of the true class, `offset` classes further on."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.noise.base import MapConfig, NoiseKind, NoisyClient, Population, per_map, picked
from fednoil.seeds import Seed


class PairConfig(MapConfig):
    kind: Literal["pair"] = "pair"


class Pair(NoiseKind):
    """With level ρ class i stays with chance 1 − ρ and becomes (i + offset) mod C with ρ; a shared offset is 1."""

    Config = PairConfig

    def __init__(self, config: PairConfig, population: Population, seed: Seed) -> None:
        super().__init__(config, population, seed)
        self.offsets = _offsets(config.map, population, seed.child("offsets").numpy())

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        wrong = picked(len(client.labels), client.level, rng)
        partner = (client.labels + self.offsets[client.number]) % client.num_classes
        return np.where(wrong, partner, client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        identity = np.eye(client.num_classes)
        partners = np.roll(identity, self.offsets[client.number], axis=1)
        return (1 - client.level) * identity + client.level * partners


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
