"""Batches planned ahead: orders of samples and their views as tensors, every batch full."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fednoil.augment import weak_plan
from fednoil.learners.base import Client
from fednoil.seeds import Seed, permutations
from fednoil.tensors import Tensors


def full_batches(order: Tensor, batch_size: int) -> Tensor:
    """Cut each row of `order` [E, n] into full batches: [E, steps, batch_size], steps = ceil(n / batch_size).

    The last batch wraps round to the start of its row, so that shapes are static and BatchNorm never sees
    padding; a row shorter than a batch is repeated.
    """
    epochs, count = order.shape
    steps = -(-count // batch_size)
    position = torch.arange(steps * batch_size, device=order.device) % count
    return order[:, position].view(epochs, steps, batch_size)


def shuffled(client: Client, seed: Seed, epochs: range, batch_size: int) -> Tensor:
    """All samples of a client in a new order each epoch, as places among its own: [E · steps, batch_size]."""
    order = permutations(seed.keys(epochs, client.index.device), len(client))
    return full_batches(order, batch_size).flatten(0, 1)


def weak_views(seed: Seed, epochs: range, chosen: Tensor, pad: int, *, flip: bool = True) -> Tensor:
    """Parameters of a weak view for each sample of the batches `chosen` [E · steps, size]: [E · steps, size, 3]."""
    keys = seed.keys(epochs, chosen.device)
    return weak_plan(keys, chosen.numel() // len(keys), pad, flip=flip).view(*chosen.shape, -1)


def side_by_side(found: Sequence[Tensors]) -> Tensors:
    """What is known about several clients' samples, one client after another."""
    return found[0] if len(found) == 1 else {name: torch.cat([one[name] for one in found]) for name in found[0]}


def onto(rows: Tensor, values: Tensor, count: int) -> Tensor:
    """The sums [count, C] of the values [B, C] that belong to each of `count` rows, by their numbers [B].

    By comparison: a scatter in place would go client by client under vmap, and not give the same bits each time.
    """
    own = rows == torch.arange(count, device=rows.device)[:, None]
    return own.to(values.dtype) @ values
