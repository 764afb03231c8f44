"""Levels within a range: rising from client to client, or drawn at random."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from fednoil.noise.base import LevelsConfig, NoiseLevels
from fednoil.seeds import Seed


class RangeConfig(LevelsConfig):
    """The keys of levels within a range."""

    low: float = Field(default=0.0, ge=0, le=1, description="the lowest level of a client")
    high: float = Field(default=0.4, ge=0, le=1, description="where the levels end")

    @model_validator(mode="after")
    def _ordered(self) -> RangeConfig:
        if self.low > self.high:
            raise ValueError(f"noise.low = {self.low:g} must not exceed noise.high = {self.high:g}")
        return self


class LinearConfig(RangeConfig):
    levels: Literal["linear"] = "linear"


class Linear(NoiseLevels):
    """Client k of K has low + k · (high − low) / K, so that `high` is never reached, as in FedRN and FNBench."""

    Config = LinearConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        low, high = self.config.low, self.config.high
        return low + np.arange(len(sizes)) * (high - low) / len(sizes)


class UniformConfig(RangeConfig):
    levels: Literal["uniform"] = "uniform"


class Uniform(NoiseLevels):
    """Each client draws its level between `low` and `high`, as in FedNoisy's localized noise."""

    Config = UniformConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        return seed.child("levels").numpy().uniform(self.config.low, self.config.high, len(sizes))
