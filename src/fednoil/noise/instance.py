"""Noise that depends on the image: Xia et al., "Part-dependent Label Noise" (NeurIPS 2020), as most papers use it.

Each image has its own probability of a wrong label, near the client's level, and a random projection of its pixels
gives the wrong class. The projections are so large that the wrong class is nearly a function of the image. Different
from the paper: a client of level 0 has no wrong label at all.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.noise.base import KindConfig, NoiseKind, NoisyClient, Population, drawn
from fednoil.seeds import Seed

_SPREAD = 0.1  # standard deviation of the images' chances around the level


class InstanceConfig(KindConfig):
    kind: Literal["instance"] = "instance"


class Instance(NoiseKind):
    """q ~ N(level, 0.1²) within [0, 1] for each image; wrong class by softmax(x · W_y) without y; one W for all."""

    Config = InstanceConfig

    def __init__(self, config: InstanceConfig, population: Population, seed: Seed) -> None:
        super().__init__(config, population, seed)
        pixels, classes = int(np.prod(population.image_shape)), population.num_classes
        shape = (classes, pixels, classes)
        self._weights = seed.child("projection").numpy().standard_normal(shape, dtype=np.float32)

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        if client.level == 0:
            return client.labels
        chance = flip_chances(len(client.labels), client.level, rng)
        return drawn(label_chances(self._normalised(client.images), client.labels, chance, self._weights), rng)

    def _normalised(self, images: np.ndarray) -> np.ndarray:
        """As networks see them, flattened: float64 [n, pixels]."""
        if images.ndim == 2:
            return images.astype(np.float64)
        mean, std = (np.array(numbers)[:, None, None] for numbers in (self.population.mean, self.population.std))
        return ((images / 255 - mean) / std).reshape(len(images), -1)


def flip_chances(count: int, level: float, rng: np.random.Generator) -> np.ndarray:
    """Draws from N(level, 0.1²) that lie in [0, 1]: float64 [count]."""
    chances = rng.normal(level, _SPREAD, count)
    while len(outside := np.flatnonzero((chances < 0) | (chances > 1))):
        chances[outside] = rng.normal(level, _SPREAD, len(outside))
    return chances


def label_chances(images: np.ndarray, labels: np.ndarray, chance: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """P(given class) of each image [n, pixels] with true label [n] and chance to be wrong [n], by the projections
    [C, pixels, C]: float64 [n, C]."""
    found = np.zeros((len(labels), weights.shape[2]))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        scores = images[rows] @ weights[label].astype(np.float64)
        scores[:, label] = -np.inf
        exponents = np.exp(scores - scores.max(1, keepdims=True))
        found[rows] = chance[rows, None] * exponents / exponents.sum(1, keepdims=True)
        found[rows, label] = 1 - chance[rows]
    return found
