"""FedCorr's levels: some clients are clean, and the others differ (Xu et al., CVPR 2022).

Its code draws new labels from all C classes, the true one too, so its level ρ is (C − 1)/C · ρ in our terms.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fednoil.noise.base import NoiseLevels
from fednoil.noise.ranges import RangeConfig
from fednoil.seeds import Seed


class TwoLevelConfig(RangeConfig):
    levels: str = "two-level"
    rho: float = Field(default=0.6, ge=0, le=1, description="ρ: the chance that a client is noisy")
    ratios: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(0.5, 1.0), description="the lowest and the highest level of a noisy client"
    )


class TwoLevel(NoiseLevels):
    """A client is noisy with chance ρ; its level is then uniform between the two `ratios`, otherwise 0."""

    Config = TwoLevelConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        rng = seed.child("levels").numpy()
        noisy = rng.random(len(sizes)) < self.config.rho
        return two_levels(noisy, rng.random(len(sizes)), *self.config.ratios)


def two_levels(noisy: np.ndarray, uniform: np.ndarray, low: float, high: float) -> np.ndarray:
    """The levels of clients that are `noisy` or not, from numbers in [0, 1): float64 [K]."""
    return np.where(noisy, low + (high - low) * uniform, 0.0)
