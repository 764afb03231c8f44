"""The value that every data source produces: images, labels, names, normalisation, a hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Split:
    """Images uint8 [N, channels, height, width], or vectors float32 [N, columns], and their labels int64 [N]."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Owners:
    """The client that each training sample belongs to, if the data say so: `numbers` int64 [N], and the clients'
    `names`, which may be none."""

    numbers: np.ndarray
    names: tuple[str, ...] = ()

    @classmethod
    def in_turn(cls, sizes: tuple[int, ...], names: tuple[str, ...] = ()) -> Owners:
        """Clients that have `sizes` samples, one client's after another's."""
        return cls(np.repeat(np.arange(len(sizes)), sizes), names)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.numbers, minlength=len(self.names)).tolist())

    def parts(self) -> tuple[np.ndarray, ...]:
        """The rows of each client."""
        return tuple(np.flatnonzero(self.numbers == k) for k in range(len(self.sizes)))


@dataclass(frozen=True, eq=False)
class DatasetInfo:
    """What is known about a dataset besides its pixels and labels."""

    items: tuple[str, ...] = ()  # names of the training samples; none: they are numbered
    owners: Owners | None = None  # None: a partition deals the samples
    notices: tuple[str, ...] = ()  # what was done to the images, in sentences
    skipped: tuple[tuple[str, str], ...] = ()  # what was left out, and why
    held_out: int = 0  # test images that were taken from the training images, because there were no others
    columns: tuple[str, ...] = ()  # of vectors; none: they are numbered
    tested: Owners | None = None  # which client each test sample belongs to, by the names of `owners`; None: unknown


@dataclass(frozen=True)
class Dataset:
    """A decoded dataset. `mean` and `std` are per channel, for pixels scaled to 0..1, or per column of vectors."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    about: DatasetInfo = field(default_factory=DatasetInfo, compare=False)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height, width; of vectors the number of columns alone."""
        return self.train.images.shape[1:]

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
