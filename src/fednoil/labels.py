"""The labels of a federation: what the clients see and, kept apart, what is true.

The true labels are a closed value of their own, `Truth`. Everybody may pass it on and take subsets; `open_truth` is for
the metrics, for measuring the audit, and for the file that stores it (`fednoil.manifest`). Code that trains can reach
neither; `tests/test_architecture.py` reads the imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fednoil.errors import UserError

NO_CLASS = -1
"""The true label of an image that shows none of the classes."""


@dataclass(frozen=True, eq=False)
class Labels:
    """What the clients see: one array of `given` labels int64 [n_k] per client."""

    given: tuple[np.ndarray, ...]


class Truth:
    """The true labels int64 [n_k] of each client, closed; `Truth(None)` if nobody knows them."""

    __slots__ = ("_closed",)

    def __init__(self, labels: Sequence[np.ndarray] | None) -> None:
        self._closed = None if labels is None else tuple(labels)

    @property
    def known(self) -> bool:
        return self._closed is not None

    def pooled(self) -> Truth:
        """All clients' labels as those of one client."""
        return Truth(None if self._closed is None else (np.concatenate(self._closed),))

    def kept(self, masks: Sequence[np.ndarray]) -> Truth:
        """Only the labels of each client where its mask, bool [n_k], is true."""
        if self._closed is None:
            return self
        return Truth([labels[mask] for labels, mask in zip(self._closed, masks, strict=True)])

    def __repr__(self) -> str:
        return f"Truth({'known' if self.known else None})"


def open_truth(truth: Truth) -> tuple[np.ndarray, ...] | None:
    """The true labels int64 [n_k] of each client, None if nobody knows them; not for code that trains."""
    return truth._closed


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
