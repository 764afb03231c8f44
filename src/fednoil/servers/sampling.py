"""Whom to train in a round."""

from __future__ import annotations

import math

from fednoil.seeds import Seed


def number_selected(fraction: float, clients: int) -> int:
    """m = round(fraction · K), at least one."""
    return max(1, math.floor(fraction * clients + 0.5))


def sample_uniform(clients: int, count: int, seed: Seed) -> list[int]:
    """`count` distinct clients, each equally likely, in the order of their ids."""
    return sorted(int(k) for k in seed.numpy().choice(clients, size=count, replace=False))
