"""FedNoiL's labelled set D^x: the beginning of an order of a client's samples, drawn by weight."""

from __future__ import annotations

import math

from torch import Tensor

from fednoil.seeds import gumbel

_TINY = 1e-12


def drawn_order(weight: Tensor, keys: Tensor, own: Tensor | None = None) -> Tensor:
    """Orders [K, E, n] of the samples of K clients, drawn by weights [K, n] without replacement (Eq. 6), one for each
    of the keys [K, E]. What is not a client's `own` [K, 1, n] comes last."""
    race = (weight.double() + _TINY).log()[:, None] + gumbel(keys, weight.shape[1])
    if own is not None:
        race = race.masked_fill(~own, -math.inf)
    return race.argsort(dim=2, descending=True, stable=True)
