"""How many of a client's labels are clean, judged by the global model alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BITS = 60  # to which a share is found
_AT_ONCE = 64  # shares that are tried at once, at most: on a GPU a try costs a launch, not its numbers
_NUMBERS = {"cpu": 1 << 15, "cuda": 1 << 22}  # of these tries together, at most
_EPS = 1e-6
_SPREAD = 0.5  # of log T a priori: a model that is e times too confident is two deviations away
_LOG_T = (-1.0, 2.0, 13)  # temperatures that are tried, from 0.4 to 7.4


def clean_share(confidence: Tensor, num_classes: int) -> float:
    """The most probable share c of clean labels, given g_i = model's probability of the given label: in (0, 1).

    If a label is clean with chance c and otherwise one of the C − 1 wrong classes, then
    P(ỹ_i | x_i) = c·g_i + (1 − c)(1 − g_i)/(C − 1), and the log-likelihood is concave in c. A Beta(2, 2) prior,
    worth two samples, keeps c off 0 and 1 and gives 1/2 for a model that finds all classes equally likely; one with
    random weights prefers some classes and gives less. A search by its derivative; one host synchronisation.
    """
    return float(_most_probable(confidence.double(), num_classes)[0])


def calibrated_share(probabilities: Tensor, labels: Tensor) -> float:
    """The same for a model that may be more confident than it is accurate: c together with a temperature T of its
    probabilities [n, C] at τ = 1, the most probable pair.

    If the model contradicts clean labels, a higher T explains them better than wrong labels do: the given label is then
    more often the model's second choice than its last. log T has mean 0 and deviation 1/2 a priori, since few labels
    can't distinguish a weak model from wrong labels. It needs labels that the model was not trained on: those that it
    has memorised look clean.
    """
    log_t = torch.linspace(*_LOG_T, dtype=torch.float64, device=probabilities.device)
    logits = probabilities.double().clamp_min(1e-300).log() / log_t.exp()[:, None, None]
    at = labels.expand(len(log_t), -1)[..., None]
    shares, fit = _most_probable(torch.softmax(logits, dim=2).gather(2, at)[..., 0], probabilities.shape[1])
    return float(shares[(fit - (log_t / _SPREAD) ** 2 / 2).argmax()])


def _most_probable(g: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The most probable c of each row of confidences [..., n], and the logarithm of its probability up to a constant:
    both [...]."""
    other = (1 - g) / (num_classes - 1)
    gain = g - other
    low = torch.full_like(g[..., 0], _EPS)
    high = 1 - low
    tries = max(1, min(_AT_ONCE, _NUMBERS.get(g.device.type, 1 << 22) // max(1, g.numel())))
    parts = torch.arange(tries + 2, dtype=g.dtype, device=g.device) / (tries + 1)
    for _ in range(math.ceil(_BITS / math.log2(tries + 1))):
        ends = torch.lerp(low[..., None], high[..., None], parts)
        c = ends[..., 1:-1]
        slope = (gain[..., None, :] / (other[..., None, :] + c[..., None] * gain[..., None, :]).clamp_min(_EPS)).sum(-1)
        rising = (slope + 1 / c - 1 / (1 - c) > 0).sum(-1, keepdim=True)  # at the first of them, up to the best
        low, high = (ends.gather(-1, rising + after)[..., 0] for after in (0, 1))
    c = (low + high) / 2
    fit = (other + c[..., None] * gain).clamp_min(_EPS).log().sum(-1)
    return c, fit + c.log() + (1 - c).log()
