"""Symmetric noise: a wrong label is any of the other classes with equal chance."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.noise.base import KindConfig, NoiseKind, NoisyClient, SpaceConfig, own_classes, picked


class SymmetricConfig(SpaceConfig):
    kind: Literal["symmetric"] = "symmetric"


class Symmetric(NoiseKind):
    """With level ρ a label stays with chance 1 − ρ and becomes each other class with ρ / (C − 1)."""

    Config = SymmetricConfig

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        replaced = picked(len(client.labels), client.level, rng)
        classes = own_classes(client, self.space)
        step = rng.integers(1, max(2, len(classes)), size=len(client.labels))
        wrong = classes[(np.searchsorted(classes, client.labels) + step) % len(classes)]
        return np.where(replaced, wrong, client.labels)

    @property
    def space(self) -> str:
        return self.config.space if self.config is not None else "all"

    def matrix(self, client: NoisyClient) -> np.ndarray:
        classes = own_classes(client, self.space)
        others = client.level / max(1, len(classes) - 1)
        matrix = np.eye(client.num_classes)
        matrix[np.ix_(classes, classes)] = others
        matrix[classes, classes] = 1 - others * (len(classes) - 1)
        return matrix


class SymmetricAllConfig(KindConfig):
    kind: Literal["symmetric-all"] = "symmetric-all"


class SymmetricAll(NoiseKind):
    """With level ρ a label is replaced with chance ρ by any of the C classes, the true one too, as FedCorr's code does:
    ρ(C − 1)/C of them are wrong."""

    Config = SymmetricAllConfig

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        replaced = picked(len(client.labels), client.level, rng)
        return np.where(replaced, rng.integers(0, client.num_classes, size=len(client.labels)), client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        classes = client.num_classes
        return (1 - client.level) * np.eye(classes) + client.level / classes
