"""Rows of a table: numbers and categories, from a CSV or parquet file with a column of labels.

A column of numbers stays one column; text values are categories, each with a column of zeros and ones. A cell may be
empty. A file that has a column of sites or one that says which rows are for testing is read as `csv:` reads it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fednoil.data.choice import NOTHING, Choice, chosen
from fednoil.data.copy import Copy, Sample
from fednoil.data.decoded import name_classes
from fednoil.data.parquet import read_columns
from fednoil.data.raw import Listing, Raw, counted_from_0, first_of, numbered
from fednoil.data.table import MISSING, about_sites, labels_of, line_end, places, read_rows, sites_of, splits_of
from fednoil.data.vectors import MARK, about_columns, check_categories, stem_of
from fednoil.errors import UserError, few_of
from fednoil.files import naming

_NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # as pandas writes an index, and reads it again

Cells = np.ndarray | list[str]
"""A column: float64 [N] with NaN for missing values, or strings with "" for them; for vectors float64 [N, D]."""


@dataclass(frozen=True)
class TableFile:
    """A file's columns, each of which is read when it is asked for, and which of them are labels, sites and splits."""

    where: str
    columns: Sequence[str]
    count: int
    role: dict[str, str]
    read: Callable[[int], Cells]
    file: Path
    choice: Choice
    at: Callable[[int], str] = counted_from_0  # where a row is, for messages

    def cells(self, name: str) -> Cells:
        if self.columns.count(name) > 1:
            raise UserError(f"{self.where} has two columns '{name}'; their names must differ")
        return self.read(self.columns.index(name))

    def texts(self, role: str) -> list[str] | None:
        """The column with this role as strings; whole numbers are written without a decimal point."""
        if role not in self.role:
            return None
        cells = self.cells(self.role[role])
        if isinstance(cells, list):
            return cells
        if cells.ndim > 1 or not np.isfinite(cells).all() or (cells != np.floor(cells)).any():
            raise UserError(f"{self.where}: column '{self.role[role]}' must have a whole number or a text in each row")
        return [str(int(cell)) for cell in cells]

    @property
    def features(self) -> list[str]:
        others = {*self.role.values(), *self.choice.drop}
        return [name for name in self.columns if name not in others and not _NAMELESS.fullmatch(name)]


def read_grid(path: Path, where: str, needed: Sequence[str] = ("label",)) -> TableFile:
    """The file's columns; `needed` are roles that it must have."""
    file = chosen(path)[0]
    if not file.is_file():
        raise UserError(f"{where} is not a file; give a CSV or parquet file{' with labels' * bool(needed)}")
    if is_parquet(path):
        return _parquet(path, where, needed)
    rows = read_rows(path, where, needed)
    role = {name: rows.header[place] for name, place in rows.place.items()}
    lines = rows.lines
    return TableFile(
        where, rows.header, len(lines), role, lambda k: [line[k].strip() for line in lines], file, rows.choice, rows.at
    )


def is_parquet(path: Path) -> bool:
    return chosen(path)[0].suffix.lower() == ".parquet"


def _parquet(path: Path, where: str, needed: Sequence[str]) -> TableFile:
    file, choice = chosen(path)
    return grid_of(read_columns(file, where), where, needed, file, choice)


def grid_of(
    table: pa.Table, where: str, needed: Sequence[str] = (), file: Path = Path(), choice: Choice = NOTHING
) -> TableFile:
    """The columns of a table in memory."""
    names = table.column_names
    place, choice = places(where, names, needed, choice)
    role = {name: names[column] for name, column in place.items()}
    return TableFile(where, names, len(table), role, lambda k: _cells(where, names[k], table.column(k)), file, choice)


def _cells(where: str, name: str, column: pa.ChunkedArray) -> Cells:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_boolean(kind):
        column, kind = column.cast(pa.int8()), pa.int8()
    if _is_number(kind):
        try:
            return column.cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            raise UserError(f"{where}: column '{name}' has numbers beyond 2^53; make them text, or remove it") from None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ["" if text is None else text.strip() for text in column.to_pylist()]
    lists = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind)
    if lists and _is_number(kind.value_type):
        rows = column.to_pylist()
        sizes = {-1 if row is None else len(row) for row in rows}
        if len(sizes) == 1 and -1 not in sizes:
            return np.array(rows, np.float64)
        raise UserError(f"{where}: column '{name}' has lists of different lengths; all rows need the same")
    raise UserError(f"{where}: column '{name}' is {kind}; a table has numbers and text: convert it, or remove it")


def _is_number(kind: pa.DataType) -> bool:
    """A column without a value, as which pandas writes one of nothing but None, may be one of numbers."""
    found = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    return any(own(kind) for own in found)


def _numbers_in(grid: TableFile, name: str, texts: Sequence[str]) -> np.ndarray | None:
    """A column of strings as numbers float64 [N]; None if it holds categories."""
    found, wrong = np.full(len(texts), np.nan), []
    for row, text in enumerate(texts):
        if text.casefold() in MISSING:
            continue
        try:
            found[row] = float(text)
        except ValueError:
            wrong.append(row)
    if not wrong:
        return found
    if np.isnan(found).all():
        return None
    first = str(texts[wrong[0]])
    hint = " (a decimal point is needed)" if first.replace(",", "", 1).lstrip("-").isdecimal() else ""
    what = f"column '{name}' has text ('{first[:40]}') in {first_of(wrong, grid.at)}, and numbers elsewhere{hint}"
    raise UserError(f"{grid.where}: {what}; correct it, leave it empty, or make all of them text, such as c3")


def encoded(grid: TableFile, wanted: Sequence[str] = ()) -> tuple[np.ndarray, tuple[str, ...]]:
    """All features as numbers float32 [N, D], NaN where they are missing, and what the columns are called. With
    `wanted` columns only those of the file that they come from are read."""
    found: list[np.ndarray] = []
    names: list[str] = []
    stems, empty = {stem_of(name): MARK in name for name in wanted}, {n[:-1] for n in wanted if n.endswith(MARK)}
    for name in grid.columns if wanted else grid.features:  # a label's usual name may be a model's column
        if wanted and name not in stems and f"{name}[0]" not in stems:
            continue
        cells: Cells = np.full(grid.count, np.nan) if name in empty else grid.cells(name)
        if stems.get(name) and not isinstance(cells, list) and cells.ndim == 1:  # True in a CSV file is 1 elsewhere
            cells = ["" if np.isnan(cell) else {0.0: "False", 1.0: "True"}.get(cell, f"{cell:g}") for cell in cells]
        if MARK in name:
            raise UserError(f"{grid.where}: the name of column '{name}' has a '{MARK}'; rename it")
        if isinstance(cells, list):
            numbers = None if stems.get(name) else _numbers_in(grid, name, cells)
            if numbers is None:
                own, called = _categories(cells, name)
                if not wanted:
                    check_categories(grid.where, name, called)
                found, names = [*found, *own], [*names, *called]
                continue
            cells = numbers
        if cells.ndim == 2:
            found, names = [*found, *cells.T], [*names, *(f"{name}[{k}]" for k in range(cells.shape[1]))]
            continue
        found.append(cells)
        names.append(name + MARK * bool(np.isnan(cells).all()))
    if lost := sorted(stems.keys() - map(stem_of, names)):
        raise UserError(f"{grid.where} has no column '{lost[0]}'; it has {few_of(grid.features, 8) or 'no other'}")
    if not found:
        besides = ", ".join(grid.role.values())
        raise UserError(f"{grid.where} has no column{' besides ' * bool(besides)}{besides}; it needs features")
    with np.errstate(over="ignore"):  # what is too large is infinite
        values = np.stack(found, 1).astype(np.float32)
    if (infinite := np.isinf(values)).any():
        row, column = (int(place) for place in np.argwhere(infinite)[0])
        raise UserError(
            f"{grid.where}: column '{names[column]}' is too large in {grid.at(row)}; correct it, or leave it empty"
        )
    return values, tuple(names)


def doubtful_columns(grid: TableFile, values: np.ndarray, names: Sequence[str]) -> list[str]:
    """Lines about columns without a name, and about those that may not be what they seem."""
    lost = [f"column {place}" for place, name in enumerate(grid.columns, 1) if _NAMELESS.fullmatch(name)]
    return [f"without a name and left out: {few_of(lost)}"] * bool(lost) + about_columns(
        values, names, grid.texts("label") or []
    )


def _categories(cells: Sequence[str], name: str) -> tuple[list[np.ndarray], list[str]]:
    known = sorted({cell for cell in cells if cell.casefold() not in MISSING}) or [""]
    texts = np.array(cells)
    missing = np.array([cell.casefold() in MISSING for cell in cells])
    return [np.where(missing, np.nan, texts == text) for text in known], [f"{name}{MARK}{text}" for text in known]


def rows_of(grid: TableFile, values: np.ndarray, columns: tuple[str, ...], notices: Sequence[str] = ()) -> Listing:
    """The rows as a listing; a row is called by its id, or by its number in the file."""
    where, (labels, names) = grid.where, labels_of(grid.where, grid.texts("label") or [], grid.at)
    sites = sites_of(where, grid.texts("site"), grid.at)
    splits = np.array(splits_of(where, grid.texts("split"), len(values), grid.at))
    items, said = np.array(names_of(grid)), [*notices, *about_sites(grid.role.get("site", ""), grid.choice)]

    def part(split: str) -> Raw:
        rows = np.flatnonzero(splits == split)
        whose = None if sites is None else [sites[row] for row in rows]
        return Raw(items[rows].tolist(), labels[rows], values[rows], names, [], said, whose, columns)  # pyright: ignore[reportArgumentType]

    return Listing(where, part("train"), part("test") if "test" in splits else None)


def names_of(grid: TableFile) -> list[str]:
    """What rows are called: by the column of ids, or by their numbers."""
    ids = grid.texts("id")
    if ids is None:
        return numbered(grid.count)
    if "" in ids:
        raise UserError(f"{grid.where}: {grid.at(ids.index(''))} has no id in column '{grid.role['id']}'")
    first = {name: row for row, name in reversed([*enumerate(ids)])}
    if twice := next((name for row, name in enumerate(ids) if first[name] != row), None):
        raise UserError(f"{grid.where} has the id '{twice}' twice in column '{grid.role['id']}'; rows need their own")
    return ids


class TableCopy(Copy):
    """A table: the column of labels changes, dropped rows go, everything else stays."""

    word = "table"

    def __init__(self, path: Path) -> None:
        self.path = path
        where = f"{self.word}:{path}"
        self.grid = read_grid(path, where)
        self.labels, names = labels_of(where, self.grid.texts("label") or [], self.grid.at)
        splits = splits_of(where, self.grid.texts("split"), len(self.labels), self.grid.at)
        self._train = np.array([split == "train" for split in splits])
        self._rows = {name: row for row, name in enumerate(names_of(self.grid))}
        self.named, self.alone = names is not None, not self._train.all()
        self.classes = name_classes(where, self.labels, names)

    @property
    def train(self) -> np.ndarray:
        return self._train

    def row(self, sample: Sample) -> int:
        if sample.item not in self._rows:
            raise UserError(f"{sample.where}: {self.word}:{self.path} has no row '{sample.item}'")
        return self._rows[sample.item]

    def write(self, out: Path, labels: np.ndarray) -> None:
        column, kept = self.grid.role["label"], labels >= 0
        with naming(out):
            if is_parquet(self.path):
                table = read_columns(self.grid.file, f"{self.word}:{self.path}")
                place = table.schema.get_field_index(column)
                field = table.schema.field(place)
                plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
                cells = self.respelled(table.column(place).cast(plain).to_pylist(), labels)
                new = pa.array(cells, plain).cast(field.type)
                pq.write_table(table.set_column(place, field, new).filter(pa.array(kept)), out)
                return
            rows = read_rows(self.path, f"{self.word}:{self.path}", ("label",))
            place = rows.place["label"]
            cells = self.respelled([line[place] for line in rows.lines], labels)
            for line, cell in zip(rows.lines, cells, strict=True):
                line[place] = cell
            with out.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator=line_end(rows.file)).writerows(
                    [rows.header, *(line for line, keep in zip(rows.lines, kept, strict=True) if keep)]
                )
