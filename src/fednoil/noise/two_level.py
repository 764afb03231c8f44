"""FedCorr's levels: some clients are clean, and the others differ (Xu et al., CVPR 2022).

Its labels are those of symmetric noise with `noise.true_class = true`, which draws new labels from all classes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.noise.base import LevelsConfig, NoiseLevels
from fednoil.seeds import Seed


class TwoLevelConfig(LevelsConfig):
    levels: Literal["two-level"] = "two-level"
    rho: float = Field(default=0.6, ge=0, le=1, description="ρ: the chance that a client is noisy")
    tau: float = Field(default=0.5, ge=0, le=1, description="τ: the lowest level of a noisy client")


class TwoLevel(NoiseLevels):
    """A client is noisy with chance ρ; its level is then uniform between τ and 1, otherwise 0."""

    Config = TwoLevelConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        rng = seed.child("levels").numpy()
        noisy = rng.random(len(sizes)) < self.config.rho
        return two_levels(noisy, rng.random(len(sizes)), self.config.tau)


def two_levels(noisy: np.ndarray, uniform: np.ndarray, tau: float) -> np.ndarray:
    """The levels of clients that are `noisy` or not, from numbers in [0, 1): float64 [K]."""
    return np.where(noisy, tau + (1 - tau) * uniform, 0.0)
