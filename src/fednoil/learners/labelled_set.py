"""FedNoiL's labelled set D^x: the beginning of an order of a client's samples, drawn by weight and maybe by class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fednoil.seeds import Seeds, gumbel, open_uniform

_TINY = 1e-12


def drawn_order(
    weight: Tensor, labels: Tensor, seeds: Seeds, epochs: Sequence[int], aside: Tensor, lead: int, num_classes: int
) -> Tensor:
    """Orders [K · E, n] of the samples of K clients, numbered one client after another: drawn by weights [K, n] without
    replacement (Eq. 6), one for each of the E names in `epochs`.

    What is at the places `aside` of each client comes last. Among the first `lead` of the others each class of the
    given labels [K, n] is by its frequency.
    """
    clients, count = weight.shape
    noise = gumbel(seeds.child("draw").keys(epochs, weight.device), count).unflatten(0, (clients, -1))
    race = (weight.double() + _TINY).log()[:, None] + noise
    first = torch.arange(0, clients * count, count, device=weight.device)[:, None, None]
    order = race.argsort(dim=2, descending=True, stable=True)
    if len(aside):  # before the classes' shares are counted, which are those of what can be drawn
        last = torch.zeros_like(weight[0], dtype=torch.bool).index_fill_(0, aside, True)
        order = order.gather(2, last[order].byte().argsort(dim=2, stable=True))
    if lead:
        begin = open_uniform(seeds.child("class").keys(epochs, weight.device), num_classes)
        drawable = order[..., : count - len(aside)]
        fair = by_class(labels[:, None].expand_as(order).gather(2, drawable), begin.unflatten(0, (clients, -1)))
        order = order.gather(2, led_by(fair[..., :lead], count))
    return (order + first).flatten(0, 1)


def by_class(labels: Tensor, begin: Tensor) -> Tensor:
    """An order [..., n] of places in labels [..., n] whose beginnings, of any length, have each class by its frequency;
    within a class as they came. `begin` [..., C], in (0, 1), says how soon the first of each class is due: drawn at
    random, a class of one label is in the first tenth of every tenth order."""
    counts = labels.new_zeros(begin.shape).scatter_add(-1, labels, torch.ones_like(labels))
    grouped = labels.argsort(dim=-1, stable=True)
    of = labels.gather(-1, grouped)
    place = torch.arange(labels.shape[-1], device=labels.device) - (counts.cumsum(-1) - counts).gather(-1, of)
    due = (place + begin.gather(-1, of)) / counts.gather(-1, of)
    return torch.empty_like(due).scatter_(-1, grouped, due).argsort(dim=-1, stable=True)


def led_by(first: Tensor, count: int) -> Tensor:
    """An order [..., n] of n = `count` places: those in `first` [..., k], in its order, then the rest as they came."""
    place = torch.arange(count, device=first.device)
    rank = (place + count).repeat(*first.shape[:-1], 1)
    return rank.scatter_(-1, first, place[: first.shape[-1]].expand_as(first)).argsort(dim=-1)
