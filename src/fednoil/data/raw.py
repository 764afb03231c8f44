"""Labelled images as they lie, one by one, before any is decoded: what an audit reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fednoil.data.images import Encoded

Picture = Encoded | np.ndarray


@dataclass(frozen=True)
class Raw:
    """What to call each image, its label, its picture or its pixels uint8 [C, H, W], and what was left out and why."""

    items: list[str]
    labels: np.ndarray  # int64 [N]
    pictures: Sequence[Picture]
    class_names: tuple[str, ...] | None
    skipped: list[tuple[str, str]] = field(default_factory=list)  # item, reason
    notices: list[str] = field(default_factory=list)


def numbered(count: int) -> list[str]:
    """What images without names of their own are called: the numbers of their rows."""
    return [str(row) for row in range(count)]


def readable(name: str) -> str:
    """The name of a file; bytes in it that aren't text are shown as bytes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
