"""Kinds that change no label: the dataset's own are correct, or nobody knows, or whichever of these two fits the
data."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import model_validator

from fednoil.noise.base import KindConfig, LevelsConfig, NoiseKind, NoisyClient, UnlevelledConfig


class CleanConfig(UnlevelledConfig):
    kind: Literal["none"] = "none"


class Clean(NoiseKind):
    """The dataset's labels are assumed to be correct."""

    Config = CleanConfig
    uses_levels = False

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        return client.labels

    def matrix(self, client: NoisyClient) -> np.ndarray:
        return np.eye(client.num_classes)


class UnknownConfig(UnlevelledConfig):
    kind: Literal["unknown"] = "unknown"


class Unknown(Clean):
    """The dataset's labels are used as they are, without assuming that they are correct."""

    Config = UnknownConfig
    knows_truth = False

    def matrix(self, client: NoisyClient) -> None:
        return None


class AutoConfig(KindConfig):
    kind: Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _no_levels(self) -> AutoConfig:
        # Levels alone would make a clean run look like a noisy one.
        for key in sorted(self.model_fields_set - {"kind"}):
            if key != "levels" or getattr(self, key) != LevelsConfig.model_fields[key].default:
                raise ValueError(f'noise.{key} needs a noise.kind such as "symmetric": with "auto" no label is changed')
        return self


class Auto(Clean):
    """`none` for named datasets, `unknown` for the user's own; a whole configuration has one of these in its place."""

    Config = AutoConfig

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        raise ValueError("noise.kind = 'auto' must be resolved before noise is applied")
