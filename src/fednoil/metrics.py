"""What is measured: accuracy, loss, convergence, noise. Accuracies and ratios are in percent.

This is the only stage that sees true labels. What can't be known (no true labels) is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Score:
    """Accuracy and mean loss on the test set, and accuracy class by class (None: no such test image)."""

    accuracy: float
    loss: float
    per_class: tuple[float | None, ...]


def score_logits(logits: Tensor, labels: Tensor) -> Score:
    """Score one model's logits [N, C] against true labels [N]."""
    right = logits.argmax(1) == labels
    per_class = []
    for c in range(logits.shape[1]):
        mine = right[labels == c]
        per_class.append(100.0 * int(mine.sum()) / len(mine) if len(mine) else None)
    loss = float(F.cross_entropy(logits.double(), labels))
    return Score(100.0 * int(right.sum()) / len(labels), loss, tuple(per_class))


def mean_score(scores: Sequence[Score], weights: Sequence[float]) -> Score:
    """The weighted mean of several models' scores."""
    if len(scores) == 1:
        return scores[0]
    shares = [w / sum(weights) for w in weights]

    def mean(values: Sequence[float]) -> float:
        return sum(s * v for s, v in zip(shares, values, strict=True))

    per_class = []
    for column in zip(*(s.per_class for s in scores), strict=True):
        known = [v for v in column if v is not None]
        per_class.append(mean(known) if len(known) == len(column) else None)
    return Score(mean([s.accuracy for s in scores]), mean([s.loss for s in scores]), tuple(per_class))


def converged(accuracies: Sequence[float]) -> bool | None:
    """Whether the last five changes of accuracy are all under 2 points; None with fewer than six rounds."""
    if len(accuracies) < 6:
        return None
    last = accuracies[-6:]
    return all(abs(b - a) < 2.0 for a, b in pairwise(last))


def selected_noise(ratios: np.ndarray | None, selected: Sequence[int]) -> float | None:
    """Mean realised noise ratio of the selected clients."""
    return None if ratios is None else 100.0 * float(np.mean(ratios[list(selected)]))


def summarise(records: Sequence[dict[str, Any]], per_class: Sequence[float | None]) -> dict[str, Any]:
    """The summary of a run from its round records."""
    accuracies = [r["test_accuracy"] for r in records]
    last = accuracies[-10:]
    return {
        "final_accuracy": accuracies[-1],
        "best_accuracy": max(accuracies),
        "last10_accuracy": sum(last) / len(last),
        "converged": converged(accuracies),
        "per_class_accuracy": list(per_class),
        "rounds": len(records),
        "train_batches": records[-1]["train_batches"],
        "bytes_down": sum(r["bytes_down"] for r in records),
        "bytes_up": sum(r["bytes_up"] for r in records),
        "wall_s": round(sum(r["wall_s"] for r in records), 3),
    }
