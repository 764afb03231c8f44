"""Parquet shards of images, as the Hugging Face hub stores image datasets, or of paths and labels."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fednoil.data.base import PathSource, PictureSource
from fednoil.data.copy import Copy
from fednoil.data.decoded import Decoded, Files, assemble, name_classes
from fednoil.data.images import Encoded, Shape, decode
from fednoil.data.raw import Listing, Raw
from fednoil.data.shards import (
    LABEL_COLUMNS,
    Shard,
    is_text,
    labels_of_shards,
    listing_of,
    paths_in,
    raw_of,
    site_column,
    wanted_columns,
)
from fednoil.errors import UserError
from fednoil.files import naming

_NUMBERED = re.compile(r"-(\d+)-of-(\d+)\.parquet$")


class ParquetCopy(Copy):
    """Image shards, in a folder or a single file: the label column of the training shards changes, rows and other
    columns stay as they are."""

    def __init__(self, root: Path) -> None:
        self._root, self.places = root, (root,) if root.is_dir() else ()
        self.alone = bool(shards(root, "test"))
        self.shards, names = labels_of_shards({path: read_table(path) for path in training_files(root)})
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
            with naming(target):
                pq.write_table(shard.relabelled(table, labels), target, row_group_size=rows)
        except pa.ArrowException as error:
            raise UserError(f"{shard.path} can't be copied ({error})") from error


class Parquet(PictureSource, PathSource):
    how = "train*.parquet and, if you like, test*.parquet with images, or their paths, and labels"
    description = "your own image shards"
    rewrites = ParquetCopy

    def find(self, path: Path) -> Files:
        files = (*training_files(path), *test_files(path))
        return Files(path, (*files, *(own for file in files for own in _pictures(file))), self.decode)

    def listing(self) -> Listing:
        train, test = training_files(self.path), test_files(self.path)
        read = [{file: read_table(file) for file in files} for files in (train, test)]
        return listing_of(f"parquet:{self.path}", *read)

    def labelled(self) -> Raw:
        return raw_of(f"parquet:{self.path}", {file: read_table(file) for file in training_files(self.path)})

    def clients(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for file in training_files(self.path):
            if column := site_column(pq.read_schema(file).names):
                found |= dict.fromkeys(str(site) for site in pq.read_table(file, columns=[column])[0].to_pylist())
        return tuple(found)


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
        raw = raw_of(f"parquet:{folder}", {file: read_table(file, (label,)) for file in files})
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


def test_files(path: Path) -> tuple[Path, ...]:
    """The files test*.parquet of a folder, all of them or none."""
    files = shards(path, "test")
    if files:
        _check_numbers(path, "test", files)
    return files


def read_table(path: Path, label_columns: Sequence[str] = LABEL_COLUMNS) -> pa.Table:
    """The image column, the label column and, if there is one, the column of sites of one shard, in this order."""
    return read_columns(path, str(path), lambda schema: wanted_columns(path, schema, label_columns))


def read_columns(path: Path, where: str, wanted: Callable[[pa.Schema], list[str]] | None = None) -> pa.Table:
    """A file's wanted columns in this order, or all of them."""
    try:
        with pq.ParquetFile(path) as file:
            names = wanted(file.schema_arrow) if wanted else None
            table = file.read(columns=names)
        table = table.select(names) if names else table
        table.validate(full=True)  # text may not be UTF-8
        return table
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{where} can't be read as parquet ({error}); get the file again") from error


def _pictures(path: Path) -> list[Path]:
    """The files that a shard names instead of holding them; what is wrong with it is found when it is read."""
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            column = wanted_columns(path, schema)[0]
            leaf = f"{column}.path" if pa.types.is_struct(schema.field(column).type) else column
            if leaf == column and not is_text(schema.field(column).type):
                return []
            table = file.read(columns=[leaf])
            return paths_in(path, table.column(0)) if table.num_columns else []
    except (pa.ArrowException, OSError, ValueError, UserError):
        return []
