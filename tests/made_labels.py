"""A dataset that is nothing but labels, and what is true of it, for tests of partitions, noise and manifests."""

from __future__ import annotations

import numpy as np

from fednoil.data.dataset import Dataset, Split
from fednoil.labels import Truth, open_truth


def dataset_of(labels: np.ndarray, num_classes: int) -> Dataset:
    """A dataset with these training labels; its images are of no matter."""
    images = np.zeros((len(labels), 1, 2, 2), np.uint8)
    names = tuple(str(c) for c in range(num_classes))
    return Dataset("labels", Split(images, labels), Split(images[:1], labels[:1]), names, (0.5,), (0.5,))


def true_labels(truth: Truth) -> tuple[np.ndarray, ...]:
    """The labels inside, where they are known."""
    labels = open_truth(truth)
    assert labels is not None
    return labels
