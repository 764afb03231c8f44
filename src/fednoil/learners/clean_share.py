"""How many of a client's labels are clean, judged by the global model alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

_BITS = 60  # to which a share is found
_AT_ONCE = 64  # shares that are tried at once, at most: on a GPU a try costs a launch, not its numbers
_NUMBERS = {"cpu": 1 << 15, "cuda": 1 << 22}  # of these tries together, at most
_EPS = 1e-6
_SPREAD = 0.5  # of log T a priori: a model that is e times too confident is two deviations away
_LOG_T = (-1.0, 2.0, 13)  # temperatures that are tried, from 0.4 to 7.4


def clean_shares(confidences: Sequence[Tensor], num_classes: int) -> list[float]:
    """The most probable share c of clean labels of each client, given g_i = model's probability of the given label
    [n]: in (0, 1).

    If a label is clean with chance c and otherwise one of the C − 1 wrong classes, then
    P(ỹ_i | x_i) = c·g_i + (1 − c)(1 − g_i)/(C − 1), and the log-likelihood is concave in c. A Beta(2, 2) prior,
    worth two samples, keeps c off 0 and 1 and gives 1/2 for a model that finds all classes equally likely; one with
    random weights prefers some classes and gives less. A search by its derivative; the host waits once.
    """
    return _most_probable(pad_sequence(list(confidences), True).double(), _own(confidences), num_classes)[0].tolist()


def calibrated_shares(probabilities: Sequence[Tensor], labels: Sequence[Tensor]) -> list[float]:
    """The same for a model that may be more confident than it is accurate: c together with a temperature T of its
    probabilities [n, C] at τ = 1, the most probable pair of each client.

    If the model contradicts clean labels, a higher T explains them better than wrong labels do: the given label is then
    more often the model's second choice than its last. log T has mean 0 and deviation 1/2 a priori, since few labels
    can't distinguish a weak model from wrong labels. It needs labels that the model was not trained on: those that it
    has memorised look clean.
    """
    probs, own = pad_sequence(list(probabilities), True, 1.0), _own(labels)
    log_t = torch.linspace(*_LOG_T, dtype=torch.float64, device=probs.device)
    logits = probs.double().clamp_min(1e-300).log()[:, None] / log_t.exp()[:, None, None]
    at = pad_sequence(list(labels), True)[:, None, :, None].expand(-1, len(log_t), -1, -1)
    g = torch.softmax(logits, dim=3).gather(3, at)[..., 0]
    shares, fit = _most_probable(g, None if own is None else own[:, None], probs.shape[2])
    best = (fit - (log_t / _SPREAD) ** 2 / 2).argmax(1, keepdim=True)
    return shares.gather(1, best)[:, 0].tolist()


def _own(rows: Sequence[Tensor]) -> Tensor | None:
    """Which numbers of rows that were made equally long are their own; None if they were that before."""
    if len({len(row) for row in rows}) == 1:
        return None
    return pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], True)


def _most_probable(g: Tensor, own: Tensor | None, num_classes: int) -> tuple[Tensor, Tensor]:
    """The most probable c of each row of confidences [..., n], of which some may not be its own, and the logarithm of
    its probability up to a constant: both [...]."""
    other = (1 - g) / (num_classes - 1)
    gain = g - other
    if own is not None:
        gain, other = gain.where(own, 0.0), other.where(own, 1.0)
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
