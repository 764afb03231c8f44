"""Pseudo-labels: which are certain enough, the loss on them, and how often each sample was trained with which."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fednoil.tensors import Tensors


def unlabelled_loss(logits: Tensor, pseudo: Tensor, mask: Tensor) -> Tensor:
    """L_u (Eq. 7) of logits [B, C], with pseudo-labels [B] or their probabilities [B, C] where `mask` [B] says so.

    The mean counts rejected samples too.
    """
    return (F.cross_entropy(logits, pseudo, reduction="none") * mask).mean()


def widened(batch: Tensors, size: int) -> Tensors:
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


def first_time(rows: Tensor, epochs: int) -> Tensor:
    """Whether a sample in the batches [E · steps, size] comes for the first time in its epoch."""
    flat = rows.view(epochs, -1)
    ordered, place = flat.sort(dim=1, stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(fresh).scatter(1, place, fresh).view(rows.shape)
