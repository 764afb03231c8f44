"""Labelled images as stored, one by one, before any is decoded: what an audit reads, and what a run decodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fednoil.data.images import Picture
from fednoil.errors import UserError, counted, few_of

MOST_CLASSES = 100_000  # a larger label is a damaged one, and naming every class up to it would fill the memory


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


def renumbered(labels: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[str, ...] | None, list[str]]:
    """Training labels, and test labels if there are some, as numbers from 0. If they are other numbers, such as 1 to C
    or 0, 1 and 3, these name the classes, and a notice says so."""
    present = np.unique(labels[0])
    known = all(np.isin(own, present).all() for own in labels)
    last = int(present[-1]) if len(present) else -1  # unsigned numbers know no -1
    if last + 1 == len(present) or present[0] < 0 or last >= MOST_CLASSES or not known:
        return list(labels), None, []
    names = tuple(map(str, present.tolist()))
    whole = last - present[0] == len(present) - 1
    shown = f"{names[0]} to {names[-1]}" if whole and len(names) > 2 else few_of(names)
    notice = f"labels are {shown}, and so the classes are called"
    return [np.searchsorted(present, own) for own in labels], names, [notice]


def with_names(listing: Listing) -> Listing:
    """The listing with classes that are numbered from 0, or have names."""
    parts = [listing.train] + ([] if listing.test is None else [listing.test])
    labels, names, notices = renumbered([part.labels for part in parts])
    if names is None or listing.train.class_names is not None:
        return listing
    new = [replace(part, labels=own, class_names=names) for part, own in zip(parts, labels, strict=True)]
    return Listing(listing.where, replace(new[0], notices=[*new[0].notices, *notices]), *new[1:])


def numbered(count: int) -> list[str]:
    """Names for images that have none: the numbers of their rows."""
    return [str(row) for row in range(count)]


def counted_from_0(row: int) -> str:
    return f"row {row} (counted from 0)"


def first_of(rows: Sequence[int], at: Callable[[int], str]) -> str:
    """`line 3`, or `line 3 and 2 more rows`."""
    return at(rows[0]) + f" and {counted(len(rows) - 1, 'more row')}" * (len(rows) > 1)


def named(
    where: str, texts: Sequence[np.ndarray], at: Callable[[int], str] = counted_from_0
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Text labels as numbers int64 [N], one array per list, and the classes that they number; `at` says where a row
    is."""
    for labels in texts:
        if empty := [row for row, text in enumerate(labels) if not str(text).strip()]:
            raise UserError(f"{where} has no label in {first_of(empty, at)}; every row needs one")
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
