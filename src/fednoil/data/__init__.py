"""Datasets by name, and the user's own: images, labels, class names and normalisation as one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fednoil.data import cache
from fednoil.data.arrays import read_mini
from fednoil.data.dataset import Dataset, Split
from fednoil.data.decoded import Decoded, assemble, check_classes
from fednoil.data.given import ARRAYS
from fednoil.data.sources import (
    FASHION_NORMALISATION,
    KNOWN,
    MINI,
    OWN_FORMS,
    SITES,
    Normalisation,
    is_own,
    locate,
    search,
)
from fednoil.errors import UserError
from fednoil.section import Section

__all__ = [
    "ARRAYS",
    "OWN_FORMS",
    "SITES",
    "DataConfig",
    "Dataset",
    "SourceStatus",
    "Split",
    "catalogue",
    "is_own",
    "load",
    "normalised",
    "of_arrays",
]

# A channel that is the same in every training image has no spread to divide by.
_SMALLEST_STD = 0.01

Values = Annotated[tuple[float, ...], Field(min_length=1)]
Positive = Annotated[float, Field(gt=0)]


class DataConfig(Section):
    """`name` is a known dataset or the user's own `folder:PATH`, `npz:FILE`, `parquet:PATH`; in a federation also
    `sites`, each site's own.

    `mean` and `std` replace the dataset's own normalisation: one number a channel, for pixels in 0..1.
    """

    name: str = Field(
        default=MINI,
        description="fashion-mnist-mini, fashion-mnist, cifar10, cifar100, or your own: folder:PATH, npz:FILE, "
        "parquet:PATH; in a federation also sites: each site's own",
    )
    mean: Values | None = Field(default=None, description="of each channel, for pixels in 0..1; none: the dataset's")
    std: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = Field(
        default=None, description="of each channel, for pixels in 0..1; none: the dataset's"
    )
    validation: float = Field(
        default=0.0, ge=0, lt=1, description="share of each client's samples that is kept out of training"
    )


@dataclass(frozen=True)
class SourceStatus:
    """A known dataset: whether it is on this machine, where, how to get it, and what it is."""

    name: str
    found: bool
    where: str
    how: str
    description: str


def load(config: DataConfig, data_dir: Path | None = None, *, site: bool = False) -> Dataset:
    """Load the dataset that `config` names; known datasets are searched in `data_dir` first.

    A `site` has a part of a federation's data and may lack some of the classes.
    """
    if config.name == SITES:
        raise UserError(f"data.name = '{SITES}' means the data of a federation's sites: `fednoil federation run`")
    if config.name == ARRAYS:
        raise UserError(f"data.name = '{ARRAYS}' means data that a program gives: fednoil.run(data=...) in Python")
    dataset = _load(config.name, data_dir)
    if not site:
        check_classes(config.name, dataset.train.labels, dataset.class_names)
    return normalised(dataset, config)


def normalised(dataset: Dataset, config: DataConfig) -> Dataset:
    """The dataset with the mean and std that `config` asks for, else with its own."""
    channels = dataset.image_shape[0]
    for key, values in (("mean", config.mean), ("std", config.std)):
        if values is not None and len(values) != channels:
            raise UserError(
                f"data.{key} has {len(values)} numbers; the images of '{config.name}' have {channels} "
                f"channel{'s' if channels > 1 else ''}"
            )
    if config.mean is None and config.std is None:
        return dataset
    changed = dataclasses.replace(dataset, mean=config.mean or dataset.mean, std=config.std or dataset.std)
    return cache.remember_hash(changed, dataset.hash)


def catalogue(data_dir: Path | None = None) -> list[SourceStatus]:
    """Every known dataset, and whether and where it was found; nothing is decoded."""
    rows = [
        SourceStatus(
            name=MINI,
            found=True,
            where="inside the package",
            how="comes with FedNoiL",
            description="Fashion-MNIST, 3,000 + 1,000 of its images, 10 classes",
        )
    ]
    for name, known in KNOWN.items():
        try:
            files = search(name, data_dir)
            where = str(files.where) if files is not None else ""
        except UserError as error:
            files, where = None, str(error)
        rows.append(SourceStatus(name, files is not None, where, known.how, known.description))
    return rows


def _load(name: str, data_dir: Path | None) -> Dataset:
    """The dataset with its own normalisation, from the cache where that is quicker."""
    if name == MINI:
        return _dataset(name, read_mini(), FASHION_NORMALISATION)
    files = locate(name, data_dir)
    # An .npz is already decoded: a second copy on disk would save little.
    entry = None if name.startswith("npz:") else cache.entry(name, files)
    if entry is not None and (cached := cache.load(entry, name)) is not None:
        return cached
    dataset = _dataset(name, files.read(), KNOWN[name].normalisation if name in KNOWN else None)
    if entry is not None:
        cache.store(entry, dataset)
    return dataset


def of_arrays(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray] | None,
    class_names: Sequence[str] | None,
) -> Dataset:
    """A dataset of (images uint8 [N, C, H, W], labels [N]) that a program gives; without a test pair it has no test
    images."""
    empty = (train[0][:0], train[1][:0])
    decoded = assemble("data", train, train if test is None else test, class_names)
    if test is None:
        decoded = dataclasses.replace(decoded, test=Split(*empty))
    check_classes("data", decoded.train.labels, decoded.class_names)
    return _dataset(ARRAYS, decoded, None)


def _dataset(name: str, decoded: Decoded, normalisation: Normalisation | None) -> Dataset:
    mean, std = normalisation or _statistics(decoded.train.images)
    return Dataset(name, decoded.train, decoded.test, decoded.class_names, mean, std)


def _statistics(images: np.ndarray) -> Normalisation:
    """Mean and std a channel of uint8 [N, C, H, W], scaled to 0..1 and rounded to 4 digits.

    By a histogram of the 256 values, whose counts are exact whatever the order of summation.
    """
    means, stds = [], []
    levels = np.arange(256) / 255
    for channel in range(images.shape[1]):
        counts = np.zeros(256, np.int64)
        for start in range(0, len(images), 1024):  # bincount widens to int64: 8 bytes a pixel
            counts += np.bincount(images[start : start + 1024, channel].ravel(), minlength=256)
        share = counts / counts.sum()
        mean = float(share @ levels)
        means.append(round(mean, 4))
        stds.append(max(round(float(np.sqrt(share @ (levels - mean) ** 2)), 4), _SMALLEST_STD))
    return tuple(means), tuple(stds)
