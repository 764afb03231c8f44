"""Parquet shards of encoded images, as the Hugging Face hub stores image datasets.

A shard has an image column (a struct with `bytes`, or plain binary) and a label column of whole numbers or texts; a
column `site` or `annotator` says whose each image is. Names of classes that are numbers come from the schema's metadata
when the shards carry it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fednoil.columns import to_numbers
from fednoil.data.base import PathSource, PictureSource
from fednoil.data.copy import Copy
from fednoil.data.decoded import Decoded, Files, assemble, name_classes
from fednoil.data.images import Encoded, Shape, decode
from fednoil.data.raw import Listing, Raw, named, numbered
from fednoil.errors import UserError
from fednoil.files import naming

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label", "labels")
SITE_COLUMNS = ("site", "annotator")
_NUMBERED = re.compile(r"-(\d+)-of-(\d+)\.parquet$")


@dataclass(frozen=True)
class Shard:
    """A training shard: its file, the name of its label column, the labels [N], and the texts that they number where
    the column holds these."""

    path: Path
    column: str
    labels: np.ndarray
    names: tuple[str, ...] | None = None


class ParquetCopy(Copy):
    """Image shards, in a folder or a single file: the label column of the training shards changes, rows and other
    columns stay as they are."""

    def __init__(self, root: Path) -> None:
        self._root, self.places = root, (root,) if root.is_dir() else ()
        self.alone = bool(shards(root, "test"))
        self.shards, names = read_labels(training_files(root))
        self.labels = np.concatenate([shard.labels for shard in self.shards]).astype(np.int64)
        self.classes = name_classes(f"parquet:{root}", self.labels, names)
        self.named = names is not None

    def write(self, out: Path, labels: np.ndarray) -> None:
        if not self._root.is_dir():
            return self._write_shard(self.shards[0], out, labels)
        out.mkdir()
        start = 0
        for shard in self.shards:
            self._write_shard(shard, out / shard.path.name, labels[start : start + len(shard.labels)])
            start += len(shard.labels)
        for path in shards(self._root, "test"):
            with naming(out / path.name):
                shutil.copy2(path, out / path.name)

    @staticmethod
    def _write_shard(shard: Shard, target: Path, labels: np.ndarray) -> None:
        try:
            with pq.ParquetFile(shard.path) as file:
                table, groups = file.read(), file.metadata
                rows = max(1, groups.row_group(0).num_rows) if groups.num_row_groups else None
            place = table.schema.get_field_index(shard.column)
            field = table.schema.field(place)
            kept = np.where(labels < 0, 0, labels)
            column = kept if shard.names is None else np.array(shard.names)[kept].tolist()
            table = table.set_column(place, field, pa.array(column, _plain(field.type)).cast(field.type))
            with naming(target):
                pq.write_table(table.filter(pa.array(labels >= 0)), target, row_group_size=rows)
        except pa.ArrowException as error:
            raise UserError(f"{shard.path} can't be copied ({error})") from error


class Parquet(PictureSource, PathSource):
    how = "train*.parquet and, if you like, test*.parquet with images and labels"
    description = "your own image shards"
    rewrites = ParquetCopy

    def find(self, path: Path) -> Files:
        files = (*training_files(path), *test_files(path))
        return Files(path, files, self.decode)

    def listing(self) -> Listing:
        return read_listing(self.path)

    def labelled(self) -> Raw:
        return read_labelled(self.path)

    def clients(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for file in training_files(self.path):
            if column := site_column(pq.read_schema(file).names):
                found |= dict.fromkeys(str(site) for site in pq.read_table(file, columns=[column])[0].to_pylist())
        return tuple(found)


def site_column(names: Sequence[str]) -> str | None:
    """The column that says whose each image is: its site, or the person who has labelled it."""
    return next((name for name in SITE_COLUMNS if name in names), None)


def shards(folder: Path, split: str) -> tuple[Path, ...]:
    """The files `<split>*.parquet` in `folder`, sorted by name."""
    return tuple(sorted(path for path in folder.glob(f"{split}*.parquet") if path.is_file()))


def find_known(folder: Path, label: str, class_names: tuple[str, ...], shape: Shape) -> Files:
    """The shards of a dataset that everybody knows; some training shards are enough, the test set must be whole."""
    train, test = training_files(folder), test_files(folder)
    return Files(folder, (*train, *test), lambda: _read_known(folder, train, test, label, class_names, shape))


def _check_numbers(folder: Path, split: str, paths: tuple[Path, ...]) -> None:
    """Shards of two different cuts would repeat images; a test set with a hole would score something else."""
    totals = {int(match[2]) for path in paths if (match := _NUMBERED.search(path.name))}
    if len(totals) > 1:
        raise UserError(f"{folder} mixes {split} shards of {sorted(totals)} files; keep one set")
    if split == "test" and totals and len(paths) < (total := totals.pop()):
        raise UserError(f"{folder} has {len(paths)} of {total} test shards; get the rest")


def _read_known(
    folder: Path, train: Sequence[Path], test: Sequence[Path], label: str, class_names: tuple[str, ...], shape: Shape
) -> Decoded:
    splits: list[tuple[np.ndarray, np.ndarray]] = []
    for files in (train, test):
        raw = _raw(f"parquet:{folder}", files, (label,))
        if raw.class_names not in (None, class_names):
            raise UserError(f"{folder}: its classes are another dataset's; use data.name = 'parquet:{folder}'")
        images = np.empty((len(raw.items), *shape), np.uint8)
        for row, why in decode(raw.pictures, images, exact=True).items():
            where = raw.pictures[row]
            raise UserError(f"{where.where if isinstance(where, Encoded) else row} {why}; get the file again")
        splits.append((images, raw.labels))
    return assemble(str(folder), splits[0], splits[1], class_names)


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
        found.append(Shard(path, table.column_names[1], labels_in(path, table)))
    if found and found[0].labels.dtype.kind == "U":
        numbers, names = named(str(files[0].parent), [shard.labels for shard in found])
        found = [replace(shard, labels=own, names=names) for shard, own in zip(found, numbers, strict=True)]
    return found, names


def test_files(path: Path) -> tuple[Path, ...]:
    """The files test*.parquet of a folder, all of them or none."""
    files = shards(path, "test")
    if files:
        _check_numbers(path, "test", files)
    return files


def read_table(path: Path, label_columns: Sequence[str]) -> pa.Table:
    """The image column, the label column and, if there is one, the column of sites of one shard, in this order."""
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
            found = [image, label, *([site] if (site := site_column(names)) else [])]
            if twice := next((name for name in found if names.count(name) > 1), None):
                raise UserError(f"{path} has {names.count(twice)} columns '{twice}'; keep one")
            return file.read(columns=found).select(found)
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


def encoded(path: Path, table: pa.Table) -> list[Encoded]:
    """The pictures of a shard; one without bytes can't be read later."""
    column = table.column(0)
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = pa.chunked_array([c.field("bytes") for c in column.chunks], column.type.field("bytes").type)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise UserError(f"{path}: column '{table.column_names[0]}' is {column.type}; expected image bytes")
    return [Encoded(f"{path}, row {i}", data or b"") for i, data in enumerate(column.to_pylist())]


def labels_in(path: Path, table: pa.Table) -> np.ndarray:
    """The labels: int64 [N], or texts."""
    column = table.column(1)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not (pa.types.is_integer(column.type) or text) or column.null_count:
        kind = f"{column.type} with {column.null_count} empty rows" if column.null_count else str(column.type)
        raise UserError(
            f"{path}: column '{table.column_names[1]}' is {kind}; expected whole numbers or texts in all rows"
        )
    if text:
        return np.array(column.to_pylist(), np.str_)
    try:
        return to_numbers(column)
    except OverflowError as error:
        raise UserError(f"{path}: column '{table.column_names[1]}' has no labels: {error}; use 0, 1, 2, …") from None


def _sites(path: Path, table: pa.Table) -> list[str] | None:
    """Whose each row is."""
    if table.num_columns < 3:
        return None
    column = table.column(2)
    if column.null_count or pa.types.is_floating(column.type):
        name = table.column_names[2]
        raise UserError(f"{path}: column '{name}' must name a site in every row, as text or a whole number")
    return [str(site) for site in column.to_pylist()]


def read_listing(path: Path) -> Listing:
    """One file, or the files train*.parquet of a folder, and its files test*.parquet if it has any."""
    where, train, test = f"parquet:{path}", training_files(path), test_files(path)
    if not test:
        return Listing(where, _raw(where, train))
    both = _raw(where, (*train, *test))
    count = sum(pq.read_metadata(file).num_rows for file in train)
    return Listing(where, _cut(both, 0, count), _cut(both, count, len(both.items)))


def read_labelled(path: Path) -> Raw:
    """One file, or the files train*.parquet of a folder."""
    return _raw(f"parquet:{path}", training_files(path))


def _cut(raw: Raw, start: int, stop: int) -> Raw:
    """Some of the rows, counted from 0."""
    sites = None if raw.sites is None else raw.sites[start:stop]
    rows = numbered(stop - start)
    return replace(raw, items=rows, labels=raw.labels[start:stop], pictures=raw.pictures[start:stop], sites=sites)


def _raw(where: str, files: Sequence[Path], label_columns: Sequence[str] = LABEL_COLUMNS) -> Raw:
    """The rows of several shards."""
    tables = {file: read_table(file, label_columns) for file in files}
    stored = {names for table in tables.values() if (names := names_in(table.schema)) is not None}
    if len(stored) > 1:
        raise UserError(f"{where}: the shards' class names differ; all shards must be of one dataset")
    pictures = [picture for file, table in tables.items() for picture in encoded(file, table)]
    labels = [labels_in(file, table) for file, table in tables.items()]
    if len({found.dtype.kind == "U" for found in labels}) > 1:
        raise UserError(f"{where}: labels are texts in some shards and numbers in others; use one of both")
    names = next(iter(stored), None)
    if labels[0].dtype.kind == "U":
        labels, names = named(where, labels)
    sites = [_sites(file, table) for file, table in tables.items()]
    if any(found is None for found in sites) and any(found is not None for found in sites):
        raise UserError(
            f"{where}: some shards have a column '{SITE_COLUMNS[0]}' and others don't; all must have it, or none"
        )
    whose = None if sites[0] is None else [site for found in sites for site in found or ()]
    numbers = np.concatenate(labels).astype(np.int64)
    return Raw(numbered(len(pictures)), numbers, pictures, names, sites=whose)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values, where they are stored as places in a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind
