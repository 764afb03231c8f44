"""FedNoiL's labelled set D^x: the beginning of an order of a client's samples, drawn by weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fednoil.seeds import Seeds, gumbel

_TINY = 1e-12


def drawn_order(weight: Tensor, seeds: Seeds, epochs: Sequence[int], aside: Tensor) -> Tensor:
    """Orders [K · E, n] of the samples of K clients, numbered one client after another: drawn by weights [K, n] without
    replacement (Eq. 6), one for each of the E names in `epochs`. What is at the places `aside` of each client comes
    last."""
    clients, count = weight.shape
    noise = gumbel(seeds.child("draw").keys(epochs, weight.device), count).unflatten(0, (clients, -1))
    race = (weight.double() + _TINY).log()[:, None] + noise
    first = torch.arange(0, clients * count, count, device=weight.device)[:, None, None]
    order = race.argsort(dim=2, descending=True, stable=True)
    if len(aside):
        last = torch.zeros_like(weight[0], dtype=torch.bool).index_fill_(0, aside, True)
        order = order.gather(2, last[order].byte().argsort(dim=2, stable=True))
    return (order + first).flatten(0, 1)
