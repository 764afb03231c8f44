"""What a source gives before it becomes a dataset, and the checks that hold for every source.

A source first says which files it would read (`Files`); only when no cached copy fits are they decoded into
`Decoded`. Every decoder ends in `assemble`, so a wrong label or an empty class reads the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fednoil.data.dataset import DatasetInfo, Split
from fednoil.data.raw import MOST_CLASSES
from fednoil.errors import UserError

_AMOUNTS = 20  # different numbers, from which on labels that hardly repeat are no classes


@dataclass(frozen=True)
class Decoded:
    """Checked images and labels of both splits, and one name for each class."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
    about: DatasetInfo = field(default_factory=DatasetInfo)


@dataclass(frozen=True)
class Files:
    """Where a source is, every file that its content depends on, and how to decode them."""

    where: Path
    paths: tuple[Path, ...]
    read: Callable[[], Decoded]


def channels_first(images: np.ndarray, what: str) -> np.ndarray:
    """Turn uint8 [N, H, W] or [N, H, W, 1 or 3] into contiguous uint8 [N, C, H, W]."""
    if images.dtype != np.uint8:
        raise UserError(f"{what} holds {images.dtype}; images must be uint8 pixels in 0..255")
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        hint = "; put the channels last" if images.ndim == 4 and images.shape[1] in (1, 3) else ""
        raise UserError(f"{what} has shape {images.shape}; it must be [N, H, W] or [N, H, W, 1 or 3]{hint}")
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def assemble(
    where: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    class_names: Sequence[str] | None,
    about: DatasetInfo | None = None,
) -> Decoded:
    """Check (images uint8 [N, C, H, W], labels [N]) of both splits; without names, classes are numbered.

    There may be no test images at all; their empty array then has the training images' shape.
    """
    train_labels = _labels(f"{where}: train", *train)
    test_labels = _labels(f"{where}: test", *test)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise UserError(
            f"{where}: test images are {_shape(test[0])}, training images {_shape(train[0])}; they must agree"
        )
    present = np.unique(train_labels)
    count = len(class_names) if class_names is not None else max(int(present[-1]), 0) + 1
    for part, labels in (("train", train_labels), ("test", test_labels)):
        _in_range(f"{where}: {part}", labels, count)
    if count > MOST_CLASSES:
        _missing(where, present, count, None)
    names = _names(where, class_names if class_names is not None else [str(i) for i in range(count)])
    return Decoded(Split(train[0], train_labels), Split(test[0], test_labels), names, about or DatasetInfo())


def name_classes(where: str, labels: np.ndarray, class_names: Sequence[str] | None) -> tuple[str, ...]:
    """The classes of one site's labels int64 [N], which may lack some; without names, classes are numbered."""
    if not len(labels):
        raise UserError(f"{where} has no labels; at least one is needed")
    _in_range(f"{where}:", labels, MOST_CLASSES if class_names is None else len(class_names))
    names = [str(i) for i in range(max(2, labels.max() + 1))] if class_names is None else class_names
    return _names(where, names)


def check_classes(where: str, train_labels: np.ndarray, class_names: Sequence[str]) -> None:
    """Refuse a dataset that can't train a classifier by itself; one site among several may lack classes."""
    count = len(class_names)
    if count > _AMOUNTS and 2 * count > len(train_labels) and _are_amounts(class_names):
        raise UserError(
            f"{where}: {count} classes for {len(train_labels)} samples, such as {class_names[0]} and {class_names[1]}; "
            "labels must be classes, not amounts"
        )
    _missing(where, np.unique(train_labels), count, class_names)
    if count < 2:
        raise UserError(f"{where}: there is only one class; a classifier needs at least two")


def _are_amounts(class_names: Sequence[str]) -> bool:
    """Whether the classes are called by numbers, other than 0, 1, 2, … or 1, 2, …"""
    try:
        values = sorted(map(float, class_names))
    except ValueError:
        return False
    return values not in (list(range(len(values))), list(range(1, len(values) + 1)))


def _missing(where: str, present: np.ndarray, count: int, class_names: Sequence[str] | None) -> None:
    """Refuse data that lack one of `count` classes, and name the first one that is not `present`."""
    if len(present) < count:
        missing = next(i for i in range(count) if i >= len(present) or present[i] != i)
        name = f" ('{class_names[missing]}')" if class_names and class_names[missing] != str(missing) else ""
        raise UserError(f"{where}: class {missing}{name} has no training image; every class needs one")


def _labels(what: str, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Check one split's labels against its images; int64 [N]."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{what} labels are {labels.dtype} of shape {labels.shape}; expected integers [N]")
    if len(images) != len(labels):
        raise UserError(f"{what} has {len(images)} images and {len(labels)} labels; the numbers must agree")
    if images.size == 0:
        raise UserError(f"{what} has no images (shape {images.shape}); at least one is needed")
    return labels.astype(np.int64)


def _in_range(what: str, labels: np.ndarray, count: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= count))
    if len(wrong):
        first = int(wrong[0])
        raise UserError(f"{what} label {labels[first]} (number {first}) is out of range; use 0..{count - 1}")


def _names(where: str, names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not name.strip() or not name.isprintable():
            raise UserError(f"{where}: class name '{name}' is not one line of readable text; rename it")
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise UserError(f"{where}: class name '{twice}' stands for two classes; names must differ")
    return tuple(names)


def _shape(images: np.ndarray) -> str:
    channels, height, width = images.shape[1:]
    return f"{width}×{height} pixels with {channels} channel{'s' if channels > 1 else ''}"
