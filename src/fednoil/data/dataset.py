"""The value that every data source produces: images, labels, names, normalisation, a hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Split:
    """Images uint8 [N, channels, height, width] and their labels int64 [N]."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A decoded dataset. `mean` and `std` are per channel, for pixels scaled to 0..1."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width

    @cached_property
    def hash(self) -> str:
        """SHA-256 over shapes, pixels, labels and class names."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            for array in (split.images, split.labels):
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        digest.update("\0".join(self.class_names).encode())
        return digest.hexdigest()
