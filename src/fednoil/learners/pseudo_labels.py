"""Pseudo-labels: a model's predictions on weak views, which of them are certain enough, the loss on them, and how often
each sample was trained with which."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import weak
from fednoil.learners.base import Client, chunks
from fednoil.models.network import Network
from fednoil.tensors import Tensors

_GRAIN = 8  # equal batches have a multiple of this size, so that few shapes occur over the rounds


@torch.no_grad()
def taught(net: Network, client: Client, plans: Tensor) -> Tensor:
    """The mean softmax over weak views [n, views, 3] of each sample, of which pseudo-labels are made (Eq. 7–8):
    [n, C]."""
    views, found = plans.shape[1], []
    for rows in chunks(len(client), client.pool, views):
        index = client.index[rows].expand(views, -1)
        images = weak(client.pool, index, plans[rows].transpose(0, 1)).flatten(0, 1)
        found.append(torch.softmax(net(images).float(), dim=1).unflatten(0, index.shape).mean(0))
    return torch.cat(found)


def unlabelled_loss(logits: Tensor, pseudo: Tensor, mask: Tensor) -> Tensor:
    """L_u (Eq. 7) of logits [B, C], with pseudo-labels [B] where `mask` [B] says so.

    The mean counts rejected samples too.
    """
    return (F.cross_entropy(logits, pseudo, reduction="none") * mask).mean()


def alike(batches: Sequence[Tensors]) -> Sequence[Tensors]:
    """Plans whose unlabelled batches have one size; where more than half as many samples would have to be added as
    there are, one of a few sizes."""
    sizes = [batch["u_index"].shape[1] for batch in batches]
    widest = -(-max(sizes) // _GRAIN) * _GRAIN
    if widest * len(sizes) > 1.5 * sum(sizes):
        return [_widened(batch, _rung(size)) for batch, size in zip(batches, sizes, strict=True)]
    return [_widened(batch, widest) for batch in batches]


def _rung(size: int) -> int:
    """The next of the sizes 8, 16, 24, 32, 48, 64, 96, 128, … (for a grain of 8)."""
    grain = max(_GRAIN, (1 << (size - 1).bit_length()) // 4)
    return -(-size // grain) * grain


def _widened(batch: Tensors, size: int) -> Tensors:
    """A plan whose unlabelled batches have `size` samples: more of the same, which the mask leaves out of L_u."""
    own, more = batch["u_index"].shape[1], size - batch["u_index"].shape[1]
    wide = {}
    for name, tensor in batch.items():
        if name == "u_weight":
            wide[name] = tensor * (size / own)  # of a mean that now counts more samples
        elif name.startswith("u_"):
            first = tensor[:, :1].expand(-1, more, *tensor.shape[2:])
            wide[name] = torch.cat([tensor, torch.zeros_like(first) if name == "u_mask" else first], dim=1)
        else:
            wide[name] = tensor
    return wide


def decided(probs: Tensor, xi: float) -> tuple[Tensor, Tensor]:
    """The most probable class […] of probabilities […, C], and whether it has at least `xi` […]."""
    certainty, label = probs.max(-1)
    return label, certainty >= xi


def count_votes(votes: Tensor, position: Tensor, labels: Tensor, mask: Tensor) -> None:
    """Add one to votes[position, label] [n, C] for each sample that is trained with that pseudo-label."""
    votes.view(-1).scatter_add_(0, position * votes.shape[1] + labels, mask.long())
