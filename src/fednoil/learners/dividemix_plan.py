"""The batches of one epoch of DivideMix, both networks of several clients in as many operations as one network of one.

A set, labelled or unlabelled, is used in a random order, and repeated in new ones until it fills all steps. What
doesn't depend on how many samples are labelled (`draw`) is made for as many steps as all samples would fill: the host
would only wait for these numbers meanwhile. The rest (`fill`) takes what it needs of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fednoil.augment import weak_plan
from fednoil.learners.base import Client, Turn
from fednoil.seeds import Path, Seed, keys_of, orders, permutations
from fednoil.tensors import Tensors

_SETS = ("labelled", "unlabelled")
_VIEWS = ("first", "second")


@dataclass(frozen=True)
class Part:
    """One network of one client in one epoch; it draws from the client's `seed`."""

    client: int  # its place among those that are planned at once
    net: str
    samples: int  # of the client
    first: int  # place of the first of them among those of all clients
    row: int  # which row of the tables of all clients has the split that it trains on
    seed: Seed


@dataclass(frozen=True)
class Draws:
    """What a part draws regardless of its split, for as many steps as all samples of its client fill."""

    views: Tensor  # [sets, views, steps · size, 3], and more
    share: Tensor  # [steps]
    partner: Tensor  # [steps, 4 · size]: who is mixed with whom where there are unlabelled samples
    keys: Tensor  # [steps]: for those where there are none


def parts_of(clients: Sequence[Client], turns: Sequence[Turn], epoch: int) -> list[Part]:
    """Both networks of each client; each trains on the other's split."""
    parts, first = [], 0
    for place, (client, turn) in enumerate(zip(clients, turns, strict=True)):
        for net, by in (("a", 1), ("b", 0)):
            parts.append(Part(place, net, len(client), first, 2 * place + by, turn.seed.child("epoch", epoch)))
        first += len(client)
    return parts


def draw(
    parts: Sequence[Part], size: int, pad: int, mix: float, device: torch.device, *, flip: bool = True
) -> list[Draws]:
    """The draws of each part for batches of `size`; `mix` is α of the Beta, `pad` the largest shift of a view, and
    without `flip` none is mirrored."""
    most = [-(-part.samples // size) for part in parts]
    wanted: list[tuple[Seed, list[Path]]] = []
    for part in parts:
        wanted.append((part.seed, [(name, part.net, view, 0) for name in _SETS for view in _VIEWS]))
    for part, steps in zip(parts, most, strict=True):
        wanted.append((part.seed.child("partner", part.net), [(step,) for step in range(steps)]))
    of_views, of_partners = keys_of(wanted, device).tensor_split([len(parts) * len(_SETS) * len(_VIEWS)])
    views = weak_plan(of_views.view(len(parts), len(_SETS), len(_VIEWS)), max(most) * size, pad, flip=flip)
    generators = (part.seed.child("mix", part.net).numpy() for part in parts)
    beta = np.concatenate([g.beta(mix, mix, steps) for g, steps in zip(generators, most, strict=True)])
    share = torch.from_numpy(np.maximum(beta, 1 - beta).astype(np.float32)).to(device, non_blocking=True)
    partner = permutations(of_partners, len(_SETS) * len(_VIEWS) * size)
    each = (views.unbind(0), share.split(most), partner.split(most), of_partners.split(most))
    return [Draws(*own) for own in zip(*each, strict=True)]


class Division(NamedTuple):
    """How many samples a part takes as labelled, and what it has drawn."""

    part: Part
    draws: Draws
    labelled: int


@dataclass(frozen=True)
class _Members:
    """A set that a part goes through: the `size` samples from place `begin` of its split on, until batches have `count`
    of them."""

    place: int  # of its split among all
    name: str
    begin: int
    size: int
    count: int

    @property
    def cycles(self) -> int:
        return -(-self.count // self.size)


def fill(splits: Sequence[Division], everyone: Client, tables: Tensors, size: int) -> list[Tensors]:
    """The batches of each split.

    Rows of the tables [R, width] belong to splits: `order` has the labelled samples in front and the others after them,
    `chance` how probably each label is clean. `everyone` has the samples of all clients, one client after another.
    """
    if not splits:
        return []
    sets = [_Members(at, "labelled", 0, one.labelled, -(-one.labelled // size) * size) for at, one in enumerate(splits)]
    for one in sets[:]:
        if rest := splits[one.place].part.samples - one.size:
            sets.append(_Members(one.place, "unlabelled", one.size, rest, one.count))
    batches: list[Tensors] = [{} for _ in splits]
    for one, found in zip(sets, _gathered(splits, sets, everyone, tables), strict=True):
        views = splits[one.place].draws.views[_SETS.index(one.name), :, : one.count].unflatten(1, (-1, size))
        cut = {name: tensor[: one.count].view(-1, size) for name, tensor in found.items()}
        before = "u_" if one.name == "unlabelled" else ""
        batches[one.place] |= {before + name: t for name, t in (cut | dict(zip(_VIEWS, views, strict=True))).items()}
    for (_, draws, _), batch in zip(splits, batches, strict=True):
        steps, mixed = len(batch["index"]), "u_index" in batch
        batch["share"] = draws.share[:steps]
        batch["partner"] = draws.partner[:steps] if mixed else permutations(draws.keys[:steps], len(_VIEWS) * size)
    return batches


def _gathered(
    splits: Sequence[Division], sets: Sequence[_Members], everyone: Client, tables: Tensors
) -> Iterator[Tensors]:
    """Each set's samples in random orders, as many as all its cycles have; of the first ones, which are labelled, with
    labels and chances."""
    lengths = [one.size * one.cycles for one in sets]
    some = lengths[: len(splits)]
    member, first, row = _shuffled(splits, sets, tables["order"])
    sample, few = member + first, sum(some)
    index = everyone.index[sample].split(lengths)
    labels = everyone.labels[sample[:few]].split(some)
    chance = tables["chance"].flatten()[(member + row)[:few]].split(some)
    for own in zip(index, labels, chance, strict=False):
        yield dict(zip(("index", "labels", "chance"), own, strict=True))
    for own in index[len(some) :]:
        yield {"index": own}


def _shuffled(splits: Sequence[Division], sets: Sequence[_Members], order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The members of the sets, numbered within their client, one set after another, each as often as it has cycles;
    with the place of the client's first sample and that of the split in the tables: int64 [all lengths] each."""
    wanted, rows = [], []
    for one in sets:
        part = splits[one.place].part
        start = part.row * order.shape[1]
        wanted.append((part.seed, [(one.name, part.net, "order", cycle) for cycle in range(one.cycles)]))
        rows += [(one.size, start + one.begin, part.first, start)] * one.cycles
    table = torch.cat([keys_of(wanted)[None], torch.tensor(rows).T]).to(order.device, non_blocking=True)
    place, owner = orders(table[0], table[1], sum(row[0] for row in rows))
    begin, first, row = table[2:, owner]
    return order.flatten()[place + begin], first, row
