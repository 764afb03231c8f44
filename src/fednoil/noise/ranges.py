"""Levels within a range: rising from client to client, or drawn at random."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from fednoil.noise.base import LevelsConfig, NoiseLevels
from fednoil.seeds import Seed


class RangeConfig(LevelsConfig):
    """The keys of levels within a range."""

    ratios: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(0.0, 0.4), description="the lowest and the highest level of a client"
    )

    @field_validator("ratios")
    @classmethod
    def _from_lowest_to_highest(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(value) != 2 or value[0] > value[1]:
            raise ValueError("must be two numbers, the lowest level and the highest, such as [0.3, 0.5]")
        return value


class LinearLevelsConfig(RangeConfig):
    levels: Literal["linear"] = "linear"


class LinearLevels(NoiseLevels):
    """Client k of K has low + k · (high − low) / K, so that the highest level is never reached, as in FedRN and
    FNBench."""

    Config = LinearLevelsConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        low, high = self.config.ratios
        return low + np.arange(len(sizes)) * (high - low) / len(sizes)


class UniformLevelsConfig(RangeConfig):
    levels: Literal["uniform"] = "uniform"


class UniformLevels(NoiseLevels):
    """Each client draws its level between the two, as in FedNoisy's localized noise."""

    Config = UniformLevelsConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        low, high = self.config.ratios
        return seed.child("levels").numpy().uniform(low, high, len(sizes))
