"""What a client may believe of its labels, once the model it receives knows enough: how likely each is to be correct,
and what else its samples are.

If a share c of the labels is correct and the others are any wrong class, a label to which the model gives probability
g is correct with odds c·g : (1 − c)(1 − g)/(C − 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

_MOST = 1e9  # of the odds, so that their squares can be added


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """softmax(logits/τ) of the probabilities [n, C] that softmax(logits) gave: float64."""
    return torch.softmax(probabilities.double().clamp_min(1e-300).log() / temperature, dim=1)


def odds(probabilities: Tensor, labels: Tensor, share: float) -> Tensor:
    """How much likelier each label [n] is correct than wrong, by the model's probabilities [n, C] and the share of
    correct labels: [n]."""
    given = probabilities.gather(1, labels[:, None])[:, 0]
    wrong = (1 - share) / (probabilities.shape[1] - 1)
    return (share * given / (wrong * (1 - given))).clamp(1 / _MOST, _MOST)


def believed(probabilities: Tensor, labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The likeliest class of each sample by the model's probabilities [n, C] and its label [n] together, and how likely
    it is: [n], [n]."""
    wrong = (1 - share) / (probabilities.shape[1] - 1)
    chances = torch.full_like(probabilities, wrong).scatter(1, labels[:, None], share)
    weights = probabilities * chances
    certainty, guess = (weights / weights.sum(1, keepdim=True)).max(1)
    return guess, certainty
