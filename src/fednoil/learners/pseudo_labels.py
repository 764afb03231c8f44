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


def alike(batches: Sequence[Tensors]) -> Sequence[Tensors] | None:
    """Plans whose unlabelled batches have one size, with as few rejected samples as that allows; None where more than
    half as many would have to be added as there are."""
    own = [batch["u_index"].shape[1] for batch in batches]
    most = int(torch.stack([batch["u_mask"].sum(1).max() for batch in batches]).max())
    size = min(-(-max(n, 1) // _GRAIN) * _GRAIN for n in (most, max(own)))
    if size * len(own) > 1.5 * sum(min(n, size) for n in own):
        return None
    return [
        _widened(batch, size) if n < size else _narrowed(batch, size) for n, batch in zip(own, batches, strict=True)
    ]


def _narrowed(batch: Tensors, size: int) -> Tensors:
    """A plan whose unlabelled batches have `size` samples, none of them accepted that is left out."""
    first = batch["u_mask"].byte().argsort(dim=1, descending=True, stable=True)[:, :size]
    own, narrow = batch["u_index"].shape[1], dict(batch)
    for name, tensor in batch.items():
        if name == "u_weight":
            narrow[name] = tensor * (size / own)  # of a mean that now counts fewer samples
        elif name.startswith("u_"):
            narrow[name] = tensor.take_along_dim(first.view(*first.shape, *[1] * (tensor.dim() - 2)), dim=1)
    return narrow


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
