"""Batches planned ahead: orders of samples as index tensors, every batch full."""

from __future__ import annotations

import torch
from torch import Tensor


def full_batches(order: Tensor, batch_size: int) -> Tensor:
    """Cut each row of `order` [E, n] into full batches: [E, steps, batch_size], steps = ceil(n / batch_size).

    The last batch wraps round to the start of its row, so that shapes are static and BatchNorm never sees
    padding; a row shorter than a batch is repeated.
    """
    epochs, count = order.shape
    steps = -(-count // batch_size)
    position = torch.arange(steps * batch_size, device=order.device) % count
    return order[:, position].view(epochs, steps, batch_size)
