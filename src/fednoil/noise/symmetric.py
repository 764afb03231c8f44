"""Symmetric noise: a wrong label is any of the other classes with equal chance."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.noise.base import ExactConfig, NoiseKind, NoisyClient, picked


class SymmetricConfig(ExactConfig):
    kind: Literal["symmetric"] = "symmetric"
    true_class: bool = Field(
        default=False,
        description="draw new labels from all classes, the true one too: of those that are replaced, 1/C stay right",
    )


class Symmetric(NoiseKind):
    """With level ρ a label stays with chance 1 − ρ and becomes each other class with ρ / (C − 1).

    With `true_class` a label is replaced with chance ρ by any of the C classes, so that ρ (C − 1) / C are wrong.
    """

    Config = SymmetricConfig

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        replaced = picked(len(client.labels), client.level, self.config.exact, rng)
        step = rng.integers(0 if self.config.true_class else 1, client.num_classes, size=len(client.labels))
        return np.where(replaced, (client.labels + step) % client.num_classes, client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        classes = client.num_classes
        others = client.level / (classes if self.config.true_class else classes - 1)
        matrix = np.full((classes, classes), others)
        np.fill_diagonal(matrix, 1 - others * (classes - 1))
        return matrix
