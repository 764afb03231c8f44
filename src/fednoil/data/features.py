"""Features or embeddings: a float array in an .npz file, or a column of lists in a parquet file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from fednoil.data.arrays import NpzCopy, load_arrays, split_labels
from fednoil.data.copy import Copy
from fednoil.data.decoded import name_classes
from fednoil.data.raw import Listing, Raw, numbered
from fednoil.data.tabular import TableCopy, is_parquet, read_grid, rows_of
from fednoil.data.vector_sources import VectorSource
from fednoil.data.vectors import check_finite
from fednoil.errors import UserError


class _ListsCopy(TableCopy):
    word = "features"


class _ArraysCopy(NpzCopy):
    def __init__(self, path: Path) -> None:
        self.path = path
        where = f"features:{path}"
        if not path.is_file():
            raise UserError(f"{where} is not a file; give an .npz with x_train and y_train")
        listing = _of_npz(path, where)
        self.alone, self.named = listing.test is not None, listing.train.class_names is not None
        self.labels = listing.train.labels
        self.classes = name_classes(where, self.labels, listing.train.class_names)


def _copy(path: Path) -> Copy:
    return _ListsCopy(path) if is_parquet(path) else _ArraysCopy(path)


class Features(VectorSource):
    how = "an .npz with x_train [N, D], y_train and maybe x_test, y_test, or a parquet file with lists and labels"
    description = "your own features or embeddings"
    rewrites: ClassVar[Callable[[Path], Copy] | None] = staticmethod(_copy)

    def listing(self) -> Listing:
        where = self.config.name
        return _of_parquet(self.path, where) if is_parquet(self.path) else _of_npz(self.path, where)


def _of_npz(path: Path, where: str) -> Listing:
    values = load_arrays(path, where)
    both = bool(values.keys() & {"x_test", "y_test"})
    parts = ("train", "test") if both else ("train",)
    if missing := [key for part in parts for key in (f"x_{part}", f"y_{part}") if key not in values]:
        raise UserError(
            f"{where} lacks {', '.join(missing)}; it needs x_train, y_train and, for testing, x_test, y_test"
        )
    labels, names = split_labels(values, where, [f"y_{part}" for part in parts])
    found = [_rows(values[f"x_{part}"], f"{where}: x_{part}") for part in parts]
    if len({rows.shape[1] for rows in found}) > 1:
        raise UserError(
            f"{where}: x_test has {found[1].shape[1]} columns, x_train {found[0].shape[1]}; they must agree"
        )
    classes, columns = None if names is None else tuple(names), tuple(numbered(found[0].shape[1]))
    raws = []
    for part, rows, own in zip(parts, found, labels, strict=True):
        if own.shape != (len(rows),) or own.dtype.kind not in "iu":
            kind = f"{own.dtype} of shape {own.shape}"
            raise UserError(f"{where}: y_{part} is {kind}; expected {len(rows)} whole numbers or text")
        raws.append(Raw(numbered(len(rows)), own.astype(np.int64), rows, classes, columns=columns))  # pyright: ignore[reportArgumentType]
    return Listing(where, *raws)


def _of_parquet(path: Path, where: str) -> Listing:
    grid = read_grid(path, where)
    read = {name: grid.cells(name) for name in grid.features}
    lists = {name: cells for name, cells in read.items() if not isinstance(cells, list) and cells.ndim == 2}
    if len(lists) != 1:
        has = f"{len(lists)} columns" if lists else "no column"
        raise UserError(f"{where} has {has} of lists of numbers; it needs one (a table of columns is table:{path})")
    name, cells = next(iter(lists.items()))
    rows = _rows(cells, f"{where}: column '{name}'")
    return rows_of(grid, rows, tuple(numbered(rows.shape[1])))


def _rows(values: np.ndarray, what: str) -> np.ndarray:
    if values.ndim != 2 or values.dtype.kind not in "fiu" or not values.size:
        raise UserError(f"{what} is {values.dtype} of shape {values.shape}; it must be numbers of shape [N, D]")
    rows = values.astype(np.float32)
    check_finite(rows, what)
    return rows
