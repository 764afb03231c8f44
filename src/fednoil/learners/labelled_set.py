"""FedNoiL's labelled set D^x: the beginning of an order of a client's samples, drawn by weight."""

from __future__ import annotations

from torch import Tensor

from fednoil.seeds import gumbel

_TINY = 1e-12


def drawn_order(weight: Tensor, keys: Tensor, late: Tensor | None = None) -> Tensor:
    """Orders [K, E, n] of the samples of K clients, drawn by weights [K, n] without replacement (Eq. 6), one for each
    of the keys [K, E]. What is late [K, n] comes last, the latest at the very end."""
    race = (weight.double() + _TINY).log()[:, None] + gumbel(keys, weight.shape[1])
    order = race.argsort(dim=2, descending=True, stable=True)
    if late is None:
        return order
    return order.gather(2, late[:, None].expand(order.shape).gather(2, order).argsort(dim=2, stable=True))
