"""Labelled images as stored, one by one, before any is decoded: what an audit reads, and what a run decodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fednoil.data.images import Picture
from fednoil.errors import UserError


@dataclass(frozen=True)
class Raw:
    """What to call each image, its label, its picture or its pixels uint8 [C, H, W], and what was left out and why."""

    items: list[str]
    labels: np.ndarray  # int64 [N]
    pictures: Sequence[Picture]
    class_names: tuple[str, ...] | None
    skipped: list[tuple[str, str]] = field(default_factory=list)  # item, reason
    notices: list[str] = field(default_factory=list)
    sites: list[str] | None = None  # which site each image belongs to, if the source says so
    columns: tuple[str, ...] = ()  # of samples that are vectors: `pictures` are then rows float32 [D]


@dataclass(frozen=True)
class Listing:
    """What a source has for training and, if it has a separate part, for testing; both number the same classes."""

    where: str
    train: Raw
    test: Raw | None = None


FROM_ONE = "labels are 1 to {}, and so the classes are called"


def from_one(labels: np.ndarray) -> tuple[str, ...]:
    """The names of classes that are numbered 1 to C, all of them present; () for any other labels."""
    present = np.unique(labels)
    whole = len(present) > 1 and np.array_equal(present, np.arange(len(present)) + 1)
    return tuple(str(label) for label in present) if whole else ()


def numbered(count: int) -> list[str]:
    """Names for images that have none: the numbers of their rows."""
    return [str(row) for row in range(count)]


def named(where: str, texts: Sequence[np.ndarray], first: int = 0) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Text labels as numbers int64 [N], one array per list, and the classes that they number; `first` is the number of
    the first row in messages."""
    for labels in texts:
        if empty := [row for row, text in enumerate(labels, first) if not str(text).strip()]:
            raise UserError(f"{where}: row {empty[0]} has no label; every row needs one")
    names = sorted({str(text) for labels in texts for text in labels})
    number = {name: place for place, name in enumerate(names)}
    return [np.array([number[str(text)] for text in labels], np.int64) for labels in texts], tuple(names)


def readable(name: str) -> str:
    """The name of a file; bytes that aren't text are shown escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
