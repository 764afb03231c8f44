"""Whom to train in a round: uniformly, or by how clean the global model finds the clients' labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fednoil.seeds import Seed, gumbel


def number_selected(fraction: float, clients: int) -> int:
    """m = round(fraction · K), at least one."""
    return max(1, math.floor(fraction * clients + 0.5))


def client_scores(confidences: Sequence[Tensor], sampling: str) -> list[float]:
    """What each client tells the server: Σ_i conf_i (`score`, Eq. 5) or its mean (`score_mean`), from conf [n]."""
    totals = torch.stack([confidence.double().sum() for confidence in confidences]).tolist()
    if sampling == "score_mean":
        return [total / len(confidence) for total, confidence in zip(totals, confidences, strict=True)]
    return totals


def private_score(score: float, size: int, sampling: str, scale: float, u: float) -> float:
    """The score with Laplace noise from one uniform number u in (0, 1), back in the range of a score.

    `scale` is R/ε: confidences lie in [0, 1], so one sample of `size` moves their sum by at most 1 and their mean by
    1/size, and R queries share ε. Moving the result back into the range uses nothing of the data.
    """
    unit = 1.0 if sampling == "score" else 1 / size
    noise = scale * unit * math.copysign(math.log1p(-2 * abs(u - 0.5)), u - 0.5)
    return min(max(score + noise, 0.0), size * unit)


def shares(scores: Sequence[float]) -> list[float]:
    """p_k = s_k / Σ_j s_j; equal shares where all scores are zero."""
    total = math.fsum(scores)
    return [s / total for s in scores] if total > 0 else [1 / len(scores)] * len(scores)


def draw_clients(probabilities: Sequence[float], count: int, seed: Seed) -> list[int]:
    """`count` distinct clients drawn one after another by `probabilities`, in the order of their ids.

    The `count` largest of log p_k + Gumbel noise have exactly that law.
    """
    p = torch.tensor(probabilities, dtype=torch.float64)
    noise = gumbel(torch.tensor(seed.key()), len(p))
    race = (p + 1e-300).log() + noise
    return sorted(race.topk(count).indices.tolist())
