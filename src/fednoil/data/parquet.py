"""Parquet shards of encoded images, as the Hugging Face hub stores image datasets.

A shard has an image column (a struct with `bytes`, or plain binary) and an integer label column. Class names
come from the schema's metadata when the shards carry it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fednoil.columns import to_numbers
from fednoil.data.base import PathSource
from fednoil.data.decoded import Decoded, Files, assemble
from fednoil.data.images import Encoded, decode
from fednoil.data.raw import Raw, numbered
from fednoil.errors import UserError

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label", "labels")
_NUMBERED = re.compile(r"-(\d+)-of-(\d+)\.parquet$")


@dataclass(frozen=True)
class Shard:
    """A training shard: its file, the name of its label column, the labels [N]."""

    path: Path
    column: str
    labels: np.ndarray


class Parquet(PathSource):
    how = "train*.parquet and test*.parquet with images and labels"
    description = "your own image shards"

    def find(self, path: Path) -> Files:
        return find(path)

    def labelled(self) -> Raw:
        return read_labelled(self.path)


def shards(folder: Path, split: str) -> tuple[Path, ...]:
    """The files `<split>*.parquet` in `folder`, sorted by name."""
    return tuple(sorted(path for path in folder.glob(f"{split}*.parquet") if path.is_file()))


def find(
    folder: Path,
    labels: Sequence[str] = LABEL_COLUMNS,
    class_names: tuple[str, ...] | None = None,
    rgb: bool = False,
) -> Files:
    """The shards in `folder`; some training shards are enough, the test set must be whole."""
    if not folder.is_dir():
        raise UserError(f"parquet:{folder} is not a folder; give one with train*.parquet and test*.parquet")
    train, test = shards(folder, "train"), shards(folder, "test")
    for split, paths in (("train", train), ("test", test)):
        if not paths:
            raise UserError(f"{folder} has no {split}*.parquet; train*.parquet and test*.parquet are needed")
        _check_numbers(folder, split, paths)
    return Files(folder, (*train, *test), lambda: _read(folder, train, test, labels, class_names, rgb))


def _check_numbers(folder: Path, split: str, paths: tuple[Path, ...]) -> None:
    """Shards of two different cuts would repeat images; a test set with a hole would score something else."""
    totals = {int(match[2]) for path in paths if (match := _NUMBERED.search(path.name))}
    if len(totals) > 1:
        raise UserError(f"{folder} mixes {split} shards of {sorted(totals)} files; keep one set")
    if split == "test" and totals and len(paths) < (total := totals.pop()):
        raise UserError(f"{folder} has {len(paths)} of {total} test shards; get the rest")


def _read(
    folder: Path,
    train: tuple[Path, ...],
    test: tuple[Path, ...],
    label_columns: Sequence[str],
    class_names: tuple[str, ...] | None,
    rgb: bool,
) -> Decoded:
    tables = {path: read_table(path, label_columns) for path in (*train, *test)}
    stored = {names for table in tables.values() if (names := names_in(table.schema)) is not None}
    if len(stored) > 1:
        raise UserError(f"{folder}: the shards' class names differ; all shards must be of one dataset")
    if class_names is not None and stored and stored != {class_names}:
        raise UserError(f"{folder}: its classes are another dataset's; use data.name = 'parquet:{folder}'")
    pictures = [[p for path in split for p in encoded(path, tables[path])] for split in (train, test)]
    labels = [np.concatenate([integer_labels(path, tables[path]) for path in split]) for split in (train, test)]
    for split, found in zip(("train", "test"), pictures, strict=True):
        if not found:
            raise UserError(f"{folder}: the {split} shards have no rows")
    images = decode(*pictures, rgb=rgb)
    names = class_names or next(iter(stored), None)
    return assemble(str(folder), (images[0], labels[0]), (images[1], labels[1]), names)


def training_files(path: Path) -> tuple[Path, ...]:
    """One site's labelled images: the file itself, or the files train*.parquet of a folder."""
    files = (path,) if path.is_file() else shards(path, "train")
    if not files:
        raise UserError(f"parquet:{path} is neither a file nor a folder with train*.parquet")
    if len(files) > 1:
        _check_numbers(path, "train", files)
    return files


def read_labels(files: Sequence[Path]) -> tuple[list[Shard], tuple[str, ...] | None]:
    """The labels of training shards and their class names if they are stored; no image is decoded."""
    found: list[Shard] = []
    names = None
    for path in files:
        table = read_table(path, LABEL_COLUMNS)
        names = names or names_in(table.schema)
        found.append(Shard(path, table.column_names[1], integer_labels(path, table)))
    return found, names


def read_table(path: Path, label_columns: Sequence[str]) -> pa.Table:
    """The image column and the label column of one shard, in this order."""
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            image = next((name for name in IMAGE_COLUMNS if name in names), None)
            label = next((name for name in label_columns if name in names), None)
            if image is None or label is None:
                what, wanted = ("image", IMAGE_COLUMNS) if image is None else ("label", tuple(label_columns))
                raise UserError(
                    f"{path} has no {what} column ({' or '.join(wanted)}); its columns are {', '.join(names)}"
                )
            if twice := next((name for name in (image, label) if names.count(name) > 1), None):
                raise UserError(f"{path} has {names.count(twice)} columns '{twice}'; keep one")
            return file.read(columns=[image, label]).select([image, label])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as parquet ({error}); get the file again") from error


def names_in(schema: pa.Schema) -> tuple[str, ...] | None:
    """Names of the label column's classes from the schema metadata; None when they are not there."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[schema.names[1]]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(names) if names and isinstance(names, list) and all(isinstance(n, str) for n in names) else None


def encoded(path: Path, table: pa.Table, *, whole: bool = True) -> list[Encoded]:
    """The pictures of a shard; one without bytes is refused, or can't be read later if the shard needn't be `whole`."""
    column = table.column(0)
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = pa.chunked_array([c.field("bytes") for c in column.chunks], column.type.field("bytes").type)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise UserError(f"{path}: column '{table.column_names[0]}' is {column.type}; expected image bytes")
    if column.null_count and whole:
        raise UserError(f"{path}: {column.null_count} rows have no image bytes; every row needs them")
    return [Encoded(f"{path}, row {i}", data or b"") for i, data in enumerate(column.to_pylist())]


def integer_labels(path: Path, table: pa.Table) -> np.ndarray:
    """The labels, int64 [N]."""
    column = table.column(1)
    if not pa.types.is_integer(column.type) or column.null_count:
        kind = f"{column.type} with {column.null_count} empty rows" if column.null_count else str(column.type)
        raise UserError(f"{path}: column '{table.column_names[1]}' is {kind}; expected integers in all rows")
    try:
        return to_numbers(column)
    except OverflowError as error:
        raise UserError(f"{path}: column '{table.column_names[1]}' has no labels: {error}; use 0, 1, 2, …") from None


def read_labelled(path: Path) -> Raw:
    """One file, or the files train*.parquet of a folder."""
    files = training_files(path)
    tables = {file: read_table(file, LABEL_COLUMNS) for file in files}
    stored = {names for table in tables.values() if (names := names_in(table.schema)) is not None}
    if len(stored) > 1:
        raise UserError(f"parquet:{path}: the shards' class names differ; all shards must be of one dataset")
    pictures = [picture for file, table in tables.items() for picture in encoded(file, table, whole=False)]
    labels = np.concatenate([integer_labels(file, table) for file, table in tables.items()])
    return Raw(numbered(len(pictures)), labels.astype(np.int64), pictures, next(iter(stored), None))
