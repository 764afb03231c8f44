"""MixMatch (Berthelot et al., NeurIPS 2019) as DivideMix trains with it: sharpened guesses, mixed pairs, the loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_LEAST = 1e-19  # below, the gradient of a quotient by it, which has its square, isn't finite in float32


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised."""
    powered = probs ** (1 / temperature)
    return powered / powered.sum(1, keepdim=True)


def refine(probs: Tensor, labels: Tensor, chance: Tensor, temperature: float) -> Tensor:
    """w·given + (1 − w)·prediction, sharpened."""
    given = F.one_hot(labels, probs.shape[1])
    return sharpen(chance[:, None] * given + (1 - chance[:, None]) * probs, temperature)


def mixed(rows: Tensor, share: Tensor | float, partner: Tensor) -> Tensor:
    """share · each row + (1 − share) · that of its partner [B]."""
    return share * rows + (1 - share) * rows[partner]


def negative_entropy(logits: Tensor) -> Tensor:
    """Mean Σ_c p_c log p_c."""
    return (torch.softmax(logits, 1) * torch.log_softmax(logits, 1)).sum(1).mean()


def uneven(probs: Tensor) -> Tensor:
    """Σ_c (1/C) ln((1/C) / q_c) of the mean prediction q of probabilities [B, C]; below 1e-19 q counts as that."""
    even = 1 / probs.shape[1]
    return (even * (even / probs.mean(0).clamp_min(_LEAST)).log()).sum()


def mixmatch_loss(logits: Tensor, targets: Tensor, labelled: int, weight: Tensor | float) -> Tensor:
    """L_x + λ L_u + L_reg: the first `labelled` rows by cross-entropy, the rest by squared error, and a flat prior."""
    log_probs, probs = torch.log_softmax(logits, 1), torch.softmax(logits, 1)
    loss = -(targets[:labelled] * log_probs[:labelled]).sum(1).mean()
    if labelled < len(logits):
        loss = loss + weight * (probs[labelled:] - targets[labelled:]).square().mean()
    return loss + uneven(probs)
