"""The first rounds as passes over all clients, one client a round, each from where the one before ended.

FedCorr and FedDiv begin like this; FedGR visits several clients a round in the same way. Who has been visited in this
pass is part of the server's values (`visited`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_AGAIN = 1e-12  # the chance of a client that has been visited: none, as long as there are others


def unvisited_first(values: dict[str, Any], clients: Sequence[int]) -> list[float]:
    """The chances of clients in a pass."""
    visited = set(values.get("visited", ()))
    return [_AGAIN if client in visited else 1.0 for client in clients]


def after_visits(values: dict[str, Any], clients: Sequence[int], everyone: int) -> list[int]:
    """Who has been visited after `clients` were; nobody when that completes a pass over `everyone`."""
    visited = sorted({*values.get("visited", ()), *clients})
    return [] if len(visited) >= everyone else visited
