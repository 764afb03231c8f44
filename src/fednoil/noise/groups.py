"""Levels by group: equal groups of clients, each with its own noise ratio."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fednoil.errors import UserError
from fednoil.noise.base import LevelsConfig, NoiseLevels
from fednoil.seeds import Seed


class GroupsConfig(LevelsConfig):
    levels: Literal["groups"] = "groups"
    ratios: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = Field(
        default=(0.4,),
        min_length=1,
        description="the level of each group of clients, at least 0 and below 1",
    )


class Groups(NoiseLevels):
    """G ratios make G groups: client k of K, counted from 0, is in group floor(G · k / K)."""

    Config = GroupsConfig

    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        ratios, clients = self.config.ratios, len(sizes)
        if len(ratios) > clients:
            raise UserError(
                f"noise.ratios has {len(ratios)} ratios, {list(ratios)}, but partition.clients = {clients}: "
                f"give at most {clients}, one per group of clients"
            )
        return np.array(ratios)[self.groups(clients)]

    def groups(self, clients: int) -> np.ndarray:
        return np.arange(clients, dtype=np.int64) * len(self.config.ratios) // clients
