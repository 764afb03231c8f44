"""Symmetric noise: a wrong label is any of the other classes with equal chance."""

from __future__ import annotations

from typing import ClassVar, Literal

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

    Config: ClassVar[type[KindConfig]] = SymmetricAllConfig

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        replaced = picked(len(client.labels), client.level, rng)
        return np.where(replaced, rng.integers(0, self.drawn_from(client), size=len(client.labels)), client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        found = (1 - client.level) * np.eye(client.num_classes)
        found[:, : self.drawn_from(client)] += client.level / self.drawn_from(client)
        return found

    def drawn_from(self, client: NoisyClient) -> int:
        """How many classes, from the first one on, a new label can name."""
        return client.num_classes


class SymmetricTenConfig(KindConfig):
    kind: Literal["symmetric-ten"] = "symmetric-ten"


class SymmetricTen(SymmetricAll):
    """As `symmetric-all`, but new labels name the first ten classes, however many there are: FedCorr's code as it runs
    on CIFAR-100, where its paper has all classes."""

    Config = SymmetricTenConfig

    def drawn_from(self, client: NoisyClient) -> int:
        return min(10, client.num_classes)
