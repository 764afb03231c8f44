"""Datasets by name, and the user's own: images, labels, class names and normalisation as one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fednoil.data import cache
from fednoil.data.base import DataConfig, Normalisation, PictureSource, Source
from fednoil.data.dataset import Dataset, DatasetInfo, Owners, Split
from fednoil.data.decoded import Decoded, assemble, check_classes
from fednoil.data.elsewhere import ARRAYS, SITES
from fednoil.data.images import Progress
from fednoil.data.sources import (
    AXIS,
    SOURCES,
    SourceStatus,
    as_asked,
    catalogue,
    clients_of,
    forms,
    is_own,
    open_source,
)
from fednoil.data.vectors import is_vector, measured, scaled
from fednoil.errors import UserError

__all__ = [
    "AXIS",
    "SITES",
    "SOURCES",
    "DataConfig",
    "Dataset",
    "Decoded",
    "Source",
    "SourceStatus",
    "Split",
    "as_asked",
    "assemble",
    "catalogue",
    "check_own",
    "clients_of",
    "forms",
    "is_own",
    "load",
    "normalised",
    "of_arrays",
    "open_source",
    "with_scale",
]

# A channel that is the same in every training image has no spread to divide by.
_SMALLEST_STD = 0.01


def load(
    data: DataConfig | str, data_dir: Path | None = None, *, site: bool = False, progress: Progress | None = None
) -> Dataset:
    """Load the dataset that a section or a name refers to; well-known datasets are searched for in `data_dir` first.

    A `site` has a part of a federation's data and may lack some of the classes; its vectors are returned unscaled,
    those of others scaled. `progress` is called as pictures are decoded, if they have to be.
    """
    source = open_source(data, data_dir)
    dataset = _load(source, progress)
    if site and is_vector(dataset.image_shape):
        return dataset
    if not site:
        check_classes(source.config.name, dataset.train.labels, dataset.class_names)
    return normalised(dataset, source.config)


def check_own(name: str, where: str) -> None:
    """Refuse a site's data that can't be read; pictures are decoded later, so they need only be there. `where` begins
    the refusal."""
    try:
        source = open_source(name)
        source.files() if source.cached else _load(source, None)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def normalised(dataset: Dataset, config: DataConfig) -> Dataset:
    """The dataset with the normalisation that `config` sets, otherwise with its own; vectors are scaled by it."""
    channels = dataset.image_shape[0]
    mean, std = config.normalisation or (dataset.mean, dataset.std)
    if config.normalisation is not None and not len(mean) == len(std) == channels:
        what, unit = ("rows", "column") if is_vector(dataset.image_shape) else ("images", "channel")
        raise UserError(
            f"data.normalisation has lists of {len(mean)} and {len(std)} numbers; the {what} of '{config.name}' have "
            f"{channels} {unit}{'s' if channels > 1 else ''}"
        )
    if is_vector(dataset.image_shape):
        return with_scale(dataset, mean, std)
    if config.normalisation is None:
        return dataset
    return cache.remember_hash(dataclasses.replace(dataset, mean=mean, std=std), dataset.hash)


def with_scale(dataset: Dataset, mean: tuple[float, ...], std: tuple[float, ...]) -> Dataset:
    """Unscaled vectors, scaled by these means and standard deviations of their columns."""
    train, test = (Split(scaled(split.images, mean, std), split.labels) for split in (dataset.train, dataset.test))
    return cache.remember_hash(dataclasses.replace(dataset, train=train, test=test, mean=mean, std=std), dataset.hash)


def _load(source: Source, progress: Progress | None) -> Dataset:
    """The dataset with its own normalisation, from the cache if that is quicker."""
    name, files = source.config.name, source.files()
    entry = cache.entry(source.key(), files) if source.cached and files is not None else None
    if entry is not None and (cached := cache.load(entry, name)) is not None:
        return cached
    with cache.Draft(entry) as draft:
        if isinstance(source, PictureSource):
            decoded = source.decode(draft.room, progress)
        else:
            decoded = source.read() if files is None else files.read()
            if not isinstance(decoded, Decoded):
                got = "None" if decoded is None else f"a {type(decoded).__name__}"
                raise UserError(f"data.name = '{name}': its read must return a Decoded, not {got}")
        return draft.finish(_dataset(name, decoded, source.normalisation))


def of_arrays(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray] | None,
    class_names: Sequence[str] | None,
    owners: Owners | None = None,
) -> Dataset:
    """A dataset of (images uint8 [N, C, H, W] or vectors float32 [N, D], labels [N]) that a program gives; without a
    test pair it has no test images."""
    empty = (train[0][:0], train[1][:0])
    decoded = assemble("data", train, train if test is None else test, class_names, DatasetInfo(owners=owners))
    if test is None:
        decoded = dataclasses.replace(decoded, test=Split(*empty))
    check_classes("data", decoded.train.labels, decoded.class_names)
    return _dataset(ARRAYS, decoded, None)


def _dataset(name: str, decoded: Decoded, normalisation: Normalisation | None) -> Dataset:
    if is_vector(decoded.train.images.shape[1:]):
        scale = measured(decoded.train.images, decoded.about.columns)
        normalisation = scale.mean, scale.std
    mean, std = normalisation or _statistics(decoded.train.images)
    return Dataset(name, decoded.train, decoded.test, decoded.class_names, mean, std, decoded.about)


def _statistics(images: np.ndarray) -> Normalisation:
    """Mean and std a channel of uint8 [N, C, H, W], scaled to 0..1 and rounded to 4 digits.

    By a histogram of the 256 values, whose counts are exact whatever the order of summation.
    """
    means, stds = [], []
    levels = np.arange(256) / 255
    for channel in range(images.shape[1]):
        counts = np.zeros(256, np.int64)
        step = max(1, (1 << 20) // (images.shape[2] * images.shape[3]))  # bincount widens to int64: 8 bytes a pixel
        for start in range(0, len(images), step):
            counts += np.bincount(images[start : start + step, channel].ravel(), minlength=256)
        share = counts / counts.sum()
        mean = float(share @ levels)
        means.append(round(mean, 4))
        stds.append(max(round(float(np.sqrt(share @ (levels - mean) ** 2)), 4), _SMALLEST_STD))
    return tuple(means), tuple(stds)
