"""The contract of a copy: a source's data written again with other labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fednoil.errors import UserError


class Sample(Protocol):
    """How a sample is named from outside, and by whom (`where`); not all sources have all of it."""

    @property
    def where(self) -> str: ...
    @property
    def client(self) -> str: ...
    @property
    def item(self) -> str: ...
    @property
    def index(self) -> int | None: ...


class Copy(ABC):
    """Data to be copied: class names, labels int64 [N] and, if known, each sample's client int64 [N]."""

    classes: tuple[str, ...]
    labels: np.ndarray
    clients: np.ndarray | None = None
    places: tuple[Path, ...] = ()  # folders that the copy must not be in
    named: bool = True  # False: classes are numbers
    hint: str = ""  # how to add the class {} to the data
    alone: bool = True  # it has test images, so it is trained on alone; one site of several may lack classes

    @property
    def train(self) -> np.ndarray:
        """Which samples are trained on, bool [N]."""
        return np.ones(len(self.labels), bool)

    def row(self, sample: Sample) -> int:
        """The place in `labels` of the sample that is meant."""
        index = sample.index
        if not self.alone and sample.item.isdecimal():  # a run may have held out some, so rows follow the item
            index = int(sample.item)
        if index is None or sample.item not in ("", str(index)):
            raise UserError(
                f"{sample.where}: item '{sample.item}' and index '{'' if index is None else index}' must be the "
                "same row number; these may be decisions about other data"
            )
        if index >= len(self.labels):
            raise UserError(f"{sample.where}: there is no row {index}; the training set has {len(self.labels)}")
        return index

    def class_of(self, name: str) -> str:
        """The data's own name for a class that has this name elsewhere."""
        return name

    def respelled(self, cells: Sequence[Any], labels: np.ndarray) -> list[Any]:
        """The labels int64 [N] as they stand in `cells`; those that have changed as their class mostly stands there."""
        counts = Counter(zip(self.labels.tolist(), cells, strict=True)).most_common()
        usual = {label: cell for (label, cell), _ in reversed(counts)}
        return [
            cell if was == label else usual.get(label, self.classes[label] if self.named else type(cell)(label))
            for cell, was, label in zip(cells, self.labels.tolist(), labels.tolist(), strict=True)
        ]

    @abstractmethod
    def write(self, out: Path, labels: np.ndarray) -> None:
        """Write the copy with these labels int64 [N]; a sample with -1 is left out."""
