"""The labels of a federation: what the clients see, and apart from it what is true.

The true labels are a value of their own, `Truth`, that is handed to the metrics alone, so that a learner can't read
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fednoil.errors import UserError


@dataclass(frozen=True, eq=False)
class Labels:
    """What the clients see: one array of `given` labels int64 [n_k] per client."""

    given: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Truth:
    """The true `labels` int64 [n_k] of each client, for metrics only; None where nobody knows them."""

    labels: tuple[np.ndarray, ...] | None


def noise_ratios(labels: Labels, truth: Truth) -> np.ndarray | None:
    """The realised share of wrong labels of each client: float64 [K], or None if the truth is unknown."""
    if truth.labels is None:
        return None
    pairs = zip(labels.given, truth.labels, strict=True)
    return np.array([np.count_nonzero(given != true) / max(len(true), 1) for given, true in pairs])


def check_labels(labels: np.ndarray, num_classes: int) -> None:
    """Raise `UserError` unless `labels` are whole numbers [N] in 0..num_classes-1."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"training labels have type {labels.dtype} and shape {labels.shape}: "
            "they must be whole numbers, one per sample"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise UserError(
            f"training label {labels[wrong[0]]} of sample {wrong[0]} is out of range: "
            f"with {num_classes} classes labels must be 0 to {num_classes - 1}"
        )
