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


def clean_shares(confidences: Sequence[Tensor], num_classes: int) -> list[float]:
    """The most probable share c of clean labels of each client, given g_i = model's probability of the given label
    [n]: in (0, 1).

    If a label is clean with chance c and otherwise one of the C − 1 wrong classes, then
    P(ỹ_i | x_i) = c·g_i + (1 − c)(1 − g_i)/(C − 1), and the log-likelihood is concave in c. A Beta(2, 2) prior,
    worth two samples, keeps c off 0 and 1 and gives 1/2 for a model that finds all classes equally likely; one with
    random weights prefers some classes and gives less. A search by its derivative; the host waits once.
    """
    g, own = pad_sequence(list(confidences), True).double(), _own(confidences)
    other = (1 - g) / (num_classes - 1)
    gain = g - other
    if own is not None:
        gain, other = gain.where(own, 0.0), other.where(own, 1.0)
    low = torch.full_like(g[:, 0], _EPS)
    high = 1 - low
    tries = max(1, min(_AT_ONCE, _NUMBERS.get(g.device.type, 1 << 22) // max(1, g.numel())))
    parts = torch.arange(tries + 2, dtype=g.dtype, device=g.device) / (tries + 1)
    for _ in range(math.ceil(_BITS / math.log2(tries + 1))):
        ends = torch.lerp(low[:, None], high[:, None], parts)
        c = ends[:, 1:-1]
        slope = (gain[:, None] / (other[:, None] + c[..., None] * gain[:, None]).clamp_min(_EPS)).sum(-1)
        rising = (slope + 1 / c - 1 / (1 - c) > 0).sum(-1, keepdim=True)  # at the first of them, up to the best
        low, high = (ends.gather(-1, rising + after)[:, 0] for after in (0, 1))
    return ((low + high) / 2).tolist()


def _own(rows: Sequence[Tensor]) -> Tensor | None:
    """Which numbers of rows that were made equally long are their own; None if they were that before."""
    if len({len(row) for row in rows}) == 1:
        return None
    return pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], True)
