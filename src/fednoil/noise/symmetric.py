"""Symmetric noise: a wrong label is any of the other classes with equal chance."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.noise.base import KindConfig, NoiseKind, NoisyClient, picked


class SymmetricConfig(KindConfig):
    kind: Literal["symmetric"] = "symmetric"
    exact: bool = Field(default=False, description="replace a fixed number of labels instead of drawing for each one")


class Symmetric(NoiseKind):
    """With level ρ a label stays with chance 1 − ρ and becomes each other class with ρ / (C − 1)."""

    Config = SymmetricConfig

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        wrong = picked(len(client.labels), client.level, self.config.exact, rng)
        step = rng.integers(1, client.num_classes, size=len(client.labels))
        return np.where(wrong, (client.labels + step) % client.num_classes, client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        matrix = np.full((client.num_classes, client.num_classes), client.level / (client.num_classes - 1))
        np.fill_diagonal(matrix, 1 - client.level)
        return matrix
