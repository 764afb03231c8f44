"""Levels of very different clients: a fixed number of noisy ones among clean ones, or nearly clean and nearly wrong."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fednoil.noise.base import LevelsConfig, NoiseLevels
from fednoil.noise.two_level import TwoLevelConfig, two_levels
from fednoil.seeds import Seed


class FixedConfig(TwoLevelConfig):
    levels: Literal["fixed"] = "fixed"  # pyright: ignore[reportIncompatibleVariableOverride]
    rho: float = Field(default=0.6, ge=0, le=1, description="ρ: the share of clients that are noisy")


class Fixed(NoiseLevels):
    """Exactly floor(ρ · K) clients, drawn at random, are noisy, with a level between the two `ratios`, as in FedNoRo
    and FedGR."""

    Config = FixedConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        rng, clients = seed.child("levels").numpy(), len(sizes)
        noisy = np.zeros(clients, bool)
        noisy[rng.permutation(clients)[: int(self.config.rho * clients + 1e-9)]] = True
        return two_levels(noisy, rng.random(clients), *self.config.ratios)


class BetaConfig(LevelsConfig):
    levels: Literal["beta"] = "beta"


class Beta(NoiseLevels):
    """Each client's level is drawn from Beta(shape, shape), and clients are sorted by it; FedNed's extreme noise."""

    Config = BetaConfig
    shape: ClassVar[float] = 0.1  # small: clients are nearly clean or nearly all wrong

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        return np.sort(seed.child("levels").numpy().beta(self.shape, self.shape, len(sizes)))
