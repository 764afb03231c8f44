"""Symmetric noise: a wrong label is any of the other classes with equal chance."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.noise.base import KindConfig, NoiseKind, NoisyClient, picked


class SymmetricConfig(KindConfig):
    kind: Literal["symmetric"] = "symmetric"


class Symmetric(NoiseKind):
    """With level ρ a label stays with chance 1 − ρ and becomes each other class with ρ / (C − 1)."""

    Config = SymmetricConfig

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        replaced = picked(len(client.labels), client.level, rng)
        step = rng.integers(1, client.num_classes, size=len(client.labels))
        return np.where(replaced, (client.labels + step) % client.num_classes, client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        classes = client.num_classes
        others = client.level / (classes - 1)
        matrix = np.full((classes, classes), others)
        np.fill_diagonal(matrix, 1 - others * (classes - 1))
        return matrix
