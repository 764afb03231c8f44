"""Measures beside accuracy, of logits and labels: for classes of different sizes, for rankings, for probabilities.

Shares are in percent; AUROC is 0.5 for chance and 1 for a perfect ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 15
"""Of equal width, by the probability of the predicted class, for the calibration error."""


@dataclass(frozen=True)
class Measures:
    """`confusion` counts samples by label and predicted class, [C][C]; the rest is derived, and None where it is
    undefined: for a class without samples, or one that all samples have.

    Balanced accuracy is the mean recall, and macro F1 the mean F1, over the classes that have samples (F1: or
    predictions). AUROC is the mean of each class against the rest. Calibration error is the mean distance of confidence
    and accuracy over the bins, by samples.
    """

    confusion: tuple[tuple[float, ...], ...]
    auroc_by_class: tuple[float | None, ...]
    calibration_error: float

    @property
    def recall(self) -> tuple[float | None, ...]:
        return tuple(_share(row[c], sum(row)) for c, row in enumerate(self.confusion))

    @property
    def precision(self) -> tuple[float | None, ...]:
        columns = list(zip(*self.confusion, strict=True))
        return tuple(_share(column[c], sum(column)) for c, column in enumerate(columns))

    @property
    def f1(self) -> tuple[float | None, ...]:
        columns = list(zip(*self.confusion, strict=True))
        return tuple(
            _share(2 * row[c], sum(row) + sum(columns[c])) if sum(row) + sum(columns[c]) else None
            for c, row in enumerate(self.confusion)
        )

    @property
    def accuracy(self) -> float:
        total = sum(map(sum, self.confusion))
        return 100.0 * sum(row[c] for c, row in enumerate(self.confusion)) / total

    @property
    def overall(self) -> dict[str, float | None]:
        """The numbers that a round's record has."""
        return {
            "balanced_accuracy": _mean(self.recall),
            "macro_f1": _mean(self.f1),
            "auroc": _mean(self.auroc_by_class),
            "calibration_error": self.calibration_error,
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, rounded, for a file."""
        overall = {name: _rounded(value) for name, value in {"accuracy": self.accuracy, **self.overall}.items()}
        by_class = {"recall": self.recall, "precision": self.precision, "f1": self.f1, "auroc": self.auroc_by_class}
        counts = [[int(n) if float(n).is_integer() else round(n, 3) for n in row] for row in self.confusion]
        per_class = {name: [_rounded(value) for value in values] for name, values in by_class.items()}
        return {"samples": round(sum(map(sum, self.confusion))), **overall, "per_class": per_class, "confusion": counts}


def measure(logits: Tensor, labels: Tensor) -> Measures:
    """The measures of logits [N, C] against labels [N]; the work is done where the logits are."""
    labels, classes = labels.to(logits.device), logits.shape[1]
    probabilities = torch.softmax(logits.double(), 1)
    confidence, predicted = probabilities.max(1)
    confusion = torch.bincount(labels * classes + predicted, minlength=classes**2)
    bins = (confidence * BINS).long().clamp_(0, BINS - 1)  # what is no number has a bin, too
    gaps = torch.zeros(BINS, dtype=torch.float64, device=logits.device)
    gaps.index_add_(0, bins, (predicted == labels).double() - confidence)
    numbers = torch.cat([confusion.double(), _auroc(probabilities, labels), gaps.abs().sum()[None]]).tolist()
    counts, areas = numbers[: classes**2], numbers[classes**2 : -1]
    return Measures(
        tuple(tuple(counts[c * classes : (c + 1) * classes]) for c in range(classes)),
        tuple(None if area != area else area for area in areas),
        100.0 * numbers[-1] / len(labels),
    )


def _auroc(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The area of each class against the rest [C], NaN where one side is empty: the chance that a sample of the class
    ranks above one of the rest, ties by half."""
    columns = probabilities.T.contiguous()
    ordered = columns.sort(1).values
    below, upto = (torch.searchsorted(ordered, columns, right=right) for right in (False, True))
    ranks = (below + upto + 1).double() / 2
    own = labels[None] == torch.arange(len(columns), device=labels.device)[:, None]
    count = own.sum(1).double()
    return ((ranks * own).sum(1) - count * (count + 1) / 2) / (count * (len(labels) - count))


def mean_measures(found: Sequence[Measures], weights: Sequence[float]) -> Measures:
    """The weighted measures of several models; their samples are counted together."""
    if len(found) == 1:
        return found[0]
    shares = [weight / sum(weights) for weight in weights]

    def mean(values: Sequence[float | None]) -> float | None:
        pairs = [(share, value) for share, value in zip(shares, values, strict=True) if value is not None]
        return sum(s * v for s, v in pairs) if len(pairs) == len(shares) else None

    tables = list(zip(*(one.confusion for one in found), strict=True))
    return Measures(
        tuple(tuple(mean(cells) or 0.0 for cells in zip(*rows, strict=True)) for rows in tables),
        tuple(mean(areas) for areas in zip(*(one.auroc_by_class for one in found), strict=True)),
        mean([one.calibration_error for one in found]) or 0.0,
    )


def _share(part: float, whole: float) -> float | None:
    return 100.0 * part / whole if whole else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
