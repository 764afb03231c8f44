"""How the steps of clients side by side are cut into what a GPU does at once: which steps, and of how many clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

STEPS = 8  # optimiser steps in a graph; what is left over runs in graphs of one step
_PIXELS = 1 << 24  # pixels whose views are made at once: enough to fill a GPU, without filling its memory


def rows_of(counts: Sequence[int], device: torch.device) -> Tensor | None:
    """The places of each client's steps in the concatenated plans: [K, steps]; None if all have equally many.

    A client with fewer steps repeats its last one, frozen; one without any has those of the client before it.
    """
    if len(set(counts)) == 1:
        return None
    ends = torch.tensor(counts).cumsum(0)[:, None]
    steps = torch.arange(max(counts)) + ends - torch.tensor(counts)[:, None]
    return torch.minimum(steps, ends - 1).to(device, non_blocking=True)


def side_by_side(tensors: Sequence[Tensor], rows: Tensor | None) -> Tensor:
    """The plans of several clients as one: [K, steps, ...]."""
    return torch.stack(list(tensors)) if rows is None else torch.cat(list(tensors))[rows]


def rows_alike(tensors: Sequence[Tensor], width: int) -> Tensor:
    """A state of several clients as one, [width, ...], of which the last is repeated; those with fewer rows than others
    get rows of zeros, to a number that comes again."""
    if len({tensor.shape for tensor in tensors}) > 1:
        most = max(len(tensor) for tensor in tensors)
        grain = 1 << max(0, most.bit_length() - 3)
        most = -(-most // grain) * grain
        tensors = [torch.cat([t, t.new_zeros(most - len(t), *t.shape[1:])]) for t in tensors]
    return torch.stack([*tensors, *[tensors[-1]] * (width - len(tensors))])


def pieces(steps: int, pixels: int) -> Iterator[tuple[int, int]]:
    """Spans of steps with images made at once, given the pixels of a step."""
    size = max(1, _PIXELS // max(1, pixels) // STEPS) * STEPS
    return ((start, min(start + size, steps)) for start in range(0, steps, size))


def taking_part(counts: Sequence[int], step: int) -> int:
    """How many of the first seats take part in a step: all that have it, and a few that are frozen.

    The number falls by a quarter or more at a time, because each number needs its own graphs.
    """
    needed = max(seat + 1 for seat, count in enumerate(counts) if count > step)
    busy = len(counts)
    while (fewer := busy * 3 // 4) >= needed:
        busy = fewer
    return busy


def portions(start: int, stop: int, counts: Sequence[int], most: int) -> Iterator[tuple[int, int, int, bool]]:
    """Cut steps start..stop into what a graph does at once; with the number of seats, and whether some are frozen for
    all of it or its last steps: whoever ends earlier waits, because graphs of single steps would take longer."""
    while start < stop:
        end = start + (most if stop - start >= most else 1)
        busy = taking_part(counts, start)
        yield start, end, busy, min(counts[:busy]) < end
        start = end
