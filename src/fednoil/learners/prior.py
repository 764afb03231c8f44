"""Logits adjusted by how often a client's labels name each class, so that its rare classes count as much as the
others."""

from __future__ import annotations

import torch
from torch import Tensor

_NEVER = -1e9  # stands for the logarithm of 0: its exponential is 0, and nothing becomes NaN


def log_prior(labels: Tensor, num_classes: int) -> Tensor:
    """ln of the share of each class among the labels [n]: float32 [C]."""
    counts = torch.bincount(labels, minlength=num_classes)
    return torch.where(counts > 0, (counts / len(labels)).log(), _NEVER)


def adjusted(logits: Tensor, prior: Tensor) -> Tensor:
    """Log-probabilities [B, C] of the logits plus `log_prior` [C]; 0, without a gradient, for classes that the client
    doesn't have."""
    return torch.where(prior > _NEVER, torch.log_softmax(logits + prior, 1), 0.0)


def adjusted_loss(logits: Tensor, prior: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of adjusted logits."""
    return -adjusted(logits, prior).gather(1, labels[:, None]).mean()
