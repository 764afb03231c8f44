"""What the nodes must agree on before round 1: the names of the classes, the size of images, the normalisation.

A site describes what it has, without sending images or labels. Classes are matched by name, so a site that lacks one
doesn't shift the numbers of the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fednoil.data import Dataset, Split

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Site:
    """What a node reports about itself: its name, its sizes, its classes by name, its images' shape, mean and std."""

    name: str
    partition: int | None
    samples: int
    held_out: int
    class_names: tuple[str, ...]
    image_shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Agreement:
    """What applies to every node of a federation."""

    class_names: tuple[str, ...]
    image_shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: list(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Agreement:
        channels, height, width = (int(n) for n in values["image_shape"])
        names = tuple(str(n) for n in values["class_names"])
        return cls(names, (channels, height, width), tuple(values["mean"]), tuple(values["std"]))

    def dataset(self, name: str) -> Dataset:
        """A dataset of this kind without images."""
        empty = Split(np.empty((0, *self.image_shape), np.uint8), np.empty(0, np.int64))
        return Dataset(name, empty, empty, self.class_names, self.mean, self.std)


def agree(sites: Sequence[Site], mean: Sequence[float] | None, std: Sequence[float] | None) -> Agreement:
    """What the sites agree on; `mean` and `std` are given if the configuration sets them.

    The shape is that of most sites; in a tie, that of the first one. The normalisation is that of the pooled pixels of
    the sites with that shape, to four digits, as for a dataset in one place.
    """
    shape = Counter(site.image_shape for site in sites).most_common(1)[0][0]
    fitting = [site for site in sites if site.image_shape == shape]
    pooled = _pool(fitting)
    return Agreement(_classes(fitting), shape, tuple(mean) if mean else pooled[0], tuple(std) if std else pooled[1])


def misfit(site: Site, agreement: Agreement) -> str | None:
    """Why a site can't take part; None if it can."""
    if site.image_shape != agreement.image_shape:
        return (
            f"its images are {_shape(site.image_shape)}, the federation's {_shape(agreement.image_shape)}; data.size "
            "brings the pictures of all sites to one size"
        )
    unknown = [name for name in site.class_names if name not in agreement.class_names]
    if unknown:
        return f"its class '{unknown[0]}' is not one of the federation's ({', '.join(agreement.class_names[:8])}…)"
    if len(agreement.class_names) < 2:
        return "the federation has only one class; a classifier needs at least two"
    return None


def _classes(sites: Sequence[Site]) -> tuple[str, ...]:
    """All names: in the order of a site that has all of them, or numerically, or alphabetically."""
    names = {name for site in sites for name in site.class_names}
    for site in sites:
        if set(site.class_names) == names:
            return site.class_names
    return tuple(sorted(names, key=int) if all(n.isdecimal() for n in names) else sorted(names))


def _pool(sites: Sequence[Site]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel over the pixels of all sites, from each site's own."""
    total = sum(site.samples for site in sites)
    means, stds = [], []
    for channel in range(sites[0].image_shape[0]):
        mean = sum(s.samples * s.mean[channel] for s in sites) / total
        square = sum(s.samples * (s.std[channel] ** 2 + s.mean[channel] ** 2) for s in sites) / total
        means.append(round(mean, 4))
        stds.append(max(round(math.sqrt(max(square - mean**2, 0.0)), 4), 0.01))
    return tuple(means), tuple(stds)


def _shape(shape: Shape) -> str:
    return f"{shape[2]}×{shape[1]} pixels with {shape[0]} channel{'s' if shape[0] > 1 else ''}"
