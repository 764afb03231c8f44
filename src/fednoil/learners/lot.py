"""Several clients whose epochs are planned at once, whatever their sizes.

On a GPU every operation has its price, however few numbers it works on: planned one after another, clients would take
longer than the training that is planned. So a lot's plans are rows [K, E, …] of its K clients and E epochs, as long as
the longest of them needs, and each client is given what is its own. It doesn't depend on the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from fednoil.learners.base import Client
from fednoil.seeds import Seeds, bits, permutations

_LAST = torch.iinfo(torch.int64).max
_LARGER = 4  # what a plan's rows have too much costs less than planning twice, up to this


@dataclass(frozen=True)
class Lot:
    """`client` has the samples of all, numbered one client after another."""

    client: Client
    counts: tuple[int, ...]  # samples of each client
    sizes: tuple[int, ...]  # those of them that are in D^x
    seeds: Seeds
    epochs: range
    batch_size: int

    @property
    def device(self) -> torch.device:
        return self.client.labels.device

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Steps of an epoch, which goes through D^x once."""
        return tuple(-(-size // self.batch_size) for size in self.sizes)

    @property
    def none(self) -> tuple[int, ...]:
        """Zero for each client."""
        return (0,) * len(self.counts)

    @property
    def rest(self) -> tuple[int, ...]:
        """Samples of each client that are not in D^x."""
        return tuple(count - size for count, size in zip(self.counts, self.sizes, strict=True))

    def numbers(self, values: Sequence[int]) -> Tensor | int:
        """A number for each client: int64 [K, 1, 1], or the one that all have."""
        if min(values) == max(values):
            return values[0]
        return torch.tensor(values).view(-1, 1, 1).to(self.device, non_blocking=True)

    @cached_property
    def starts(self) -> Tensor | int:
        """The number of each client's first sample."""
        return self.numbers([0, *accumulate(self.counts[:-1])])

    def keys(self, name: str) -> Tensor:
        """Keys called `name` for each epoch: [K, E]."""
        return self.seeds.child(name).keys(self.epochs, self.device).view(len(self.counts), -1)

    def keys_of(self, name: str, count: int) -> Tensor:
        """`count` such keys for each epoch: [K, E, count]."""
        paths = [(e, n) for e in self.epochs for n in range(count)]
        return self.seeds.child(name).keys_of(paths, self.device).view(len(self.counts), -1, count)

    def spread(self, values: Tensor) -> Tensor:
        """Values of all samples [N] by client: [K, n]. What is behind a client's own means nothing."""
        most = max(self.counts)
        if min(self.counts) == most:
            return values.view(-1, most)
        return values[self.numbered(torch.arange(most, device=self.device)).flatten(1)]

    def numbered(self, order: Tensor) -> Tensor:
        """Orders [K, E, n] of each client's own samples, with the numbers that they have among all."""
        most = self.numbers(self.counts) - 1
        if isinstance(most, Tensor):
            order = order.minimum(most)  # what is no sample counts nowhere, but must exist
        return order + self.starts

    def among(self, begin: Sequence[int], end: Sequence[int]) -> Tensor:
        """Which places of orders are at `begin` … `end` of their client: bool [K, 1, the largest end]."""
        place = torch.arange(max(end), device=self.device).expand(len(self.counts), 1, -1)
        return (place >= self.numbers(begin)) & (place < self.numbers(end))

    def batches(
        self, order: Tensor, begin: Sequence[int], counts: Sequence[int], widths: Sequence[int], name: str
    ) -> Tensor:
        """Shuffled batches of the `counts` samples from `begin` on in orders [K, E, n], one after another: [K, E, P].

        A set that fills fewer than an epoch's steps is repeated in a new order.
        """
        needed = [steps * width for steps, width in zip(self.steps, widths, strict=True)]
        cycles = max(-(-need // count) for need, count in zip(needed, counts, strict=True))
        keys, most, place = self.keys_of(name, cycles), max(counts), torch.arange(max(needed), device=self.device)
        own = self.numbers(counts)
        if isinstance(own, int):
            chosen = permutations(keys, most).flatten(2)[..., : len(place)]
        else:
            words = bits(keys, most).masked_fill_((torch.arange(most, device=self.device) >= own)[:, None], _LAST)
            at = (place // own).clamp(max=cycles - 1) * most + place % own  # beyond its own a client repeats itself
            chosen = words.argsort(dim=-1, stable=True).flatten(2).gather(2, at.expand(-1, len(self.epochs), -1))
        return order.gather(2, chosen + self.numbers(begin) if any(begin) else chosen)

    def cut(self, plan: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """What each client has of a plan [K, E, P, …], in batches: [E · steps, width, …]."""
        if len(set(zip(self.steps, widths, strict=True))) == 1:
            return list(plan.unflatten(2, (self.steps[0], widths[0])).flatten(1, 2).unbind(0))
        pairs = zip(plan, self.steps, widths, strict=True)
        return [own[:, : s * w].unflatten(1, (s, w)).flatten(0, 1) for own, s, w in pairs]

    def by_step(self, plan: Tensor) -> list[Tensor]:
        """What each client has of a plan with a value for each step [K, E, S, …]: [E · steps, …]."""
        if len(set(self.steps)) == 1:
            return list(plan.flatten(1, 2).unbind(0))
        return [own[:, :s].flatten(0, 1) for own, s in zip(plan, self.steps, strict=True)]


def lots(counts: Sequence[int], sizes: Sequence[int], kinds: Sequence[Hashable]) -> list[list[int]]:
    """The places of clients that are planned at once, the largest first: in a lot nobody has more than `_LARGER` times
    the samples of another, or of its D^x, all have a rest or none has, and all are of one kind."""
    found: list[list[int]] = []
    for place in sorted(range(len(counts)), key=lambda place: (counts[place] == sizes[place], -counts[place])):
        lot = [*(found[-1] if found else []), place]
        numbers = [[values[p] for p in lot] for values in (counts, sizes)]
        alike = {(counts[p] == sizes[p], kinds[p]) for p in lot}
        if found and len(alike) == 1 and all(max(of) <= _LARGER * min(of) for of in numbers):
            found[-1] = lot
        else:
            found.append([place])
    return found
