"""Noise with habits: which wrong class a client takes depends on the class, by a random matrix."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.noise.base import MapConfig, NoiseKind, NoisyClient, Population, drawn, per_map, picked
from fednoil.seeds import Seed


class MatrixConfig(MapConfig):
    kind: Literal["matrix"] = "matrix"
    # Outside this range nothing changes visibly.
    kappa: float = Field(
        default=1.0, ge=1e-3, le=1e6, description="κ: large: symmetric noise; small: one wrong class for each class"
    )


class Matrix(NoiseKind):
    """T = (1 − ρ) I + ρ R with level ρ; each row of R is drawn from Dirichlet(κ, …, κ) over the other classes."""

    Config = MatrixConfig

    def __init__(self, config: MatrixConfig, population: Population, seed: Seed) -> None:
        super().__init__(config, population, seed)
        maps, self._own = per_map(config.map, population)
        rng, classes = seed.child("matrices").numpy(), population.num_classes
        others = rng.dirichlet(np.full(classes - 1, config.kappa), (maps, classes))
        self._wrong = np.zeros((maps, classes, classes))
        self._wrong[:, ~np.eye(classes, dtype=bool)] = others.reshape(maps, -1)

    def wrong(self, client: NoisyClient) -> np.ndarray:
        """R[true class, given class] of a label that is replaced: float64 [C, C]."""
        return self._wrong[self._own[client.number]]

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        replaced = picked(len(client.labels), client.level, rng)
        return np.where(replaced, drawn(self.wrong(client)[client.labels], rng), client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        return transition(client.level, self.wrong(client))


def transition(level: float, wrong: np.ndarray) -> np.ndarray:
    """(1 − level) I + level R: float64 [C, C]."""
    return (1 - level) * np.eye(len(wrong)) + level * wrong
