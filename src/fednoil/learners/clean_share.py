"""How many of a client's labels are clean, judged by the global model alone."""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 60
_EPS = 1e-6


def clean_share(confidence: Tensor, num_classes: int) -> float:
    """The most probable share c of clean labels, given g_i = model's probability of the given label: in (0, 1).

    If a label is clean with chance c and otherwise one of the C − 1 wrong classes, then
    P(ỹ_i | x_i) = c·g_i + (1 − c)(1 − g_i)/(C − 1), and the log-likelihood is concave in c. A Beta(2, 2) prior,
    worth two samples, keeps c off 0 and 1 and gives 1/2 for a model that finds all classes equally likely; one with
    random weights prefers some classes and gives less. Bisection on the derivative; one host synchronisation.
    """
    g = confidence.double()
    other = (1 - g) / (num_classes - 1)
    gain = g - other
    low = torch.tensor(_EPS, dtype=torch.float64, device=g.device)
    high = 1 - low
    for _ in range(_STEPS):
        c = (low + high) / 2
        slope = (gain / (other + c * gain).clamp_min(_EPS)).sum() + 1 / c - 1 / (1 - c)
        rising = slope > 0
        low, high = torch.where(rising, c, low), torch.where(rising, high, c)
    return float((low + high) / 2)
