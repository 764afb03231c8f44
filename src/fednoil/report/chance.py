"""Whether a difference is more than chance: Student's and Welch's t-tests, two-sided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

CHANCE = 0.05  # a difference with a larger p is not distinguishable from none
FEW_SEEDS = 3  # with fewer a spread says little, and nothing is tested


@dataclass(frozen=True)
class SampleStats:
    """Mean, standard deviation and number of values; one value alone has no deviation."""

    mean: float
    std: float | None
    count: int


def sample_of(values: Sequence[float]) -> SampleStats:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return SampleStats(float(np.mean(values)), std, len(values))


def paired_p(differences: Sequence[float]) -> float | None:
    """Student's paired test; None with fewer than three pairs."""
    if len(differences) < FEW_SEEDS:
        return None
    found = sample_of(differences)
    return _p(found.mean, (found.std or 0.0) / math.sqrt(found.count), found.count - 1)


def unpaired_p(a: SampleStats, b: SampleStats) -> float | None:
    """Welch's test; a single value is assumed to have the other sample's deviation. None without one of
    three values."""
    known = max((a, b), key=lambda sample: sample.count if sample.std is not None else 0)
    if known.std is None or known.count < FEW_SEEDS:
        return None
    if a.std is None or b.std is None:
        return _p(a.mean - b.mean, known.std * math.sqrt(1 / a.count + 1 / b.count), known.count - 1)
    parts = (a.std**2 / a.count, b.std**2 / b.count)
    below = parts[0] ** 2 / (a.count - 1) + parts[1] ** 2 / (b.count - 1)
    freedom = sum(parts) ** 2 / below if below else a.count + b.count - 2
    return _p(a.mean - b.mean, math.sqrt(sum(parts)), freedom)


def _p(difference: float, error: float, freedom: float) -> float:
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(difference) / error))
