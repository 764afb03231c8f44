"""Test sets of the clients' own: the test samples of each class, dealt as its training samples are.

Each client is then tested on the classes that it has, in its own proportions; no test sample belongs to two clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fednoil.partition.base import largest_remainder
from fednoil.seeds import Seed


def local_tests(trained: Sequence[np.ndarray], tested: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
    """The rows of each client among the labels of the test samples [N], from those of its training samples [n_k]."""
    counts = np.stack([np.bincount(labels, minlength=num_classes) for labels in trained])
    found: list[list[np.ndarray]] = [[] for _ in trained]
    for label, own in enumerate(counts.T):
        if not own.sum():
            continue
        rows = seed.child("local test", label).numpy().permutation(np.flatnonzero(tested == label))
        cuts = np.cumsum(largest_remainder(own / own.sum(), len(rows)))[:-1]
        for rows_of, part in zip(found, np.split(rows, cuts), strict=True):
            rows_of.append(part)
    return [np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64) for parts in found]
