"""Tables of images and labels in the columns that the Hugging Face hub gives them, whichever files they come from.

An image column holds encoded pictures (a struct with `bytes`, or plain binary) or paths of pictures (texts, or a struct
whose `path` stands in where it has no bytes), the label column whole numbers or text; a column `site` or `annotator`
says whose each image is. Names of classes that are numbers come from the schema's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fednoil.columns import to_numbers
from fednoil.data.images import Encoded
from fednoil.data.raw import Listing, Raw, named, numbered
from fednoil.errors import UserError

IMAGE_COLUMNS = ("img", "image", "path", "file", "filename")
LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")
SITE_COLUMNS = ("site", "annotator")


@dataclass(frozen=True)
class Shard:
    """A training shard: its file, the name of its label column, the labels [N], and the names that they number where
    the column holds these."""

    path: Path
    column: str
    labels: np.ndarray
    names: tuple[str, ...] | None = None

    def relabelled(self, table: pa.Table, labels: np.ndarray) -> pa.Table:
        """The shard's whole table with these labels [N]; rows with -1 are left out."""
        place = table.schema.get_field_index(self.column)
        field = table.schema.field(place)
        kept = np.where(labels < 0, 0, labels)
        column = kept if self.names is None else np.array(self.names)[kept].tolist()
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        return table.set_column(place, field, pa.array(column, kind).cast(field.type)).filter(pa.array(labels >= 0))


def site_column(names: Sequence[str]) -> str | None:
    """The column that names each image's site, or the person who has labelled it."""
    return next((name for name in SITE_COLUMNS if name in names), None)


def wanted_columns(path: Path, schema: pa.Schema, label_columns: Sequence[str] = LABEL_COLUMNS) -> list[str]:
    """The image column, the label column and, if there is one, the column of sites of a shard, in this order."""
    names, kinds = schema.names, {name: own.get("_type") for name, own in _features(schema).items()}
    image = next((name for name in IMAGE_COLUMNS if name in names), _of_kind(kinds, names, "Image"))
    stored = _of_kind(kinds, names, "ClassLabel") if label_columns == LABEL_COLUMNS else None
    label = next((name for name in label_columns if name in names), stored)
    if image is None or label is None:
        other = "; if its rows are not pictures, write table:FILE" if image is None else ""
        what, usual = ("image", IMAGE_COLUMNS) if image is None else ("label", tuple(label_columns))
        raise UserError(
            f"{path} has no {what} column ({' or '.join(usual)}); its columns are {', '.join(names)}{other}"
        )
    found = [image, label, *([site] if (site := site_column(names)) else [])]
    if twice := next((name for name in found if names.count(name) > 1), None):
        raise UserError(f"{path} has {names.count(twice)} columns '{twice}'; keep one")
    return found


def names_in(schema: pa.Schema) -> tuple[str, ...] | None:
    """Names of the label column's classes from the schema metadata; None when they are not there."""
    names = _features(schema).get(schema.names[1], {}).get("names")
    return tuple(names) if names and isinstance(names, list) and all(isinstance(n, str) for n in names) else None


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """What the hub's library has written about the columns."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: own for name, own in features.items() if isinstance(own, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _of_kind(kinds: Mapping[str, Any], names: Sequence[str], kind: str) -> str | None:
    return next((name for name in names if kinds.get(name) == kind), None)


def encoded(path: Path, table: pa.Table) -> list[Encoded]:
    """The pictures of a shard, as pieces of its memory; one without bytes and without a path can't be read later."""
    column = table.column(0)
    kind, paths = column.type, None
    if pa.types.is_struct(kind) and (kind.get_field_index("bytes") >= 0 or kind.get_field_index("path") >= 0):
        paths, column = _child(column, "path"), _child(column, "bytes")
        column = None if column is None or pa.types.is_null(column.type) else column
    elif is_text(kind):
        paths, column = column, None
    if column is not None and not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise UserError(
            f"{path}: column '{table.column_names[0]}' is {kind}; expected encoded images or paths of images"
        )
    files = [None] * len(table) if paths is None or not is_text(paths.type) else paths.to_pylist()
    found = []
    for row, data in enumerate([None] * len(table) if column is None else _buffers(column)):
        own = files[row]
        if data is None and own:
            found.append(Encoded(str(own), path.parent / own))
        else:
            found.append(Encoded(f"{path}, row {row}", b"" if data is None else data))
    return found


def paths_in(path: Path, column: pa.ChunkedArray) -> list[Path]:
    """The files that an image column names, as far as they are there."""
    texts = _child(column, "path") if pa.types.is_struct(column.type) else column
    if texts is None or not is_text(texts.type):
        return []
    places = (path.parent / own for own in texts.to_pylist() if own)
    return [place for place in places if place.is_file()]


def _child(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray | None:
    if column.type.get_field_index(name) < 0:
        return None
    return pa.chunked_array([chunk.field(name) for chunk in column.chunks], column.type.field(name).type)


def _buffers(column: pa.ChunkedArray) -> Iterator[memoryview | None]:
    return (None if value is None else memoryview(value) for value in (own.as_buffer() for own in column))


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def labels_in(path: Path, table: pa.Table) -> np.ndarray:
    """The labels: int64 [N], or strings."""
    column = table.column(1)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    text = is_text(column.type)
    if not (pa.types.is_integer(column.type) or text) or column.null_count:
        kind = f"{column.type} with {column.null_count} empty rows" if column.null_count else str(column.type)
        raise UserError(
            f"{path}: column '{table.column_names[1]}' is {kind}; expected whole numbers or text in all rows"
        )
    if text:
        return np.array(column.to_pylist(), np.str_)
    try:
        return to_numbers(column)
    except OverflowError as error:
        raise UserError(f"{path}: column '{table.column_names[1]}' has no labels: {error}; use 0, 1, 2, …") from None


def sites_in(path: Path, table: pa.Table) -> list[str] | None:
    """Whose each row is."""
    if table.num_columns < 3:
        return None
    column = table.column(2)
    if column.null_count or pa.types.is_floating(column.type):
        name = table.column_names[2]
        raise UserError(f"{path}: column '{name}' must name a site in every row, as text or a whole number")
    return [str(site) for site in column.to_pylist()]


def raw_of(where: str, tables: Mapping[Path, pa.Table]) -> Raw:
    """The rows of several shards, of which the wanted columns were read."""
    stored = {names for table in tables.values() if (names := names_in(table.schema)) is not None}
    if len(stored) > 1:
        raise UserError(f"{where}: the shards' class names differ; all shards must be of one dataset")
    pictures = [picture for file, table in tables.items() for picture in encoded(file, table)]
    labels = [labels_in(file, table) for file, table in tables.items()]
    if len({found.dtype.kind == "U" for found in labels}) > 1:
        raise UserError(f"{where}: labels are text in some shards and numbers in others; use one or the other")
    names = next(iter(stored), None)
    if labels[0].dtype.kind == "U":
        labels, names = named(where, labels)
    sites = [sites_in(file, table) for file, table in tables.items()]
    if any(found is None for found in sites) and any(found is not None for found in sites):
        raise UserError(
            f"{where}: some shards have a column '{SITE_COLUMNS[0]}' and others don't; all must have it, or none"
        )
    whose = None if sites[0] is None else [site for found in sites for site in found or ()]
    numbers = np.concatenate(labels).astype(np.int64)
    return Raw(numbered(len(pictures)), numbers, pictures, names, sites=whose)


def listing_of(where: str, train: Mapping[Path, pa.Table], test: Mapping[Path, pa.Table]) -> Listing:
    """Shards for training and, if there are some, for testing."""
    if not test:
        return Listing(where, raw_of(where, train))
    both = raw_of(where, {**train, **test})
    count = sum(len(table) for table in train.values())
    return Listing(where, _cut(both, 0, count), _cut(both, count, len(both.items)))


def labels_of_shards(tables: Mapping[Path, pa.Table]) -> tuple[list[Shard], tuple[str, ...] | None]:
    """The labels of training shards and their class names if they are stored; no image is decoded."""
    found: list[Shard] = []
    names = None
    for path, table in tables.items():
        names = names or names_in(table.schema)
        found.append(Shard(path, table.column_names[1], labels_in(path, table)))
    if found and found[0].labels.dtype.kind == "U":
        numbers, names = named(str(found[0].path.parent), [shard.labels for shard in found])
        found = [replace(shard, labels=own, names=names) for shard, own in zip(found, numbers, strict=True)]
    return found, names


def _cut(raw: Raw, start: int, stop: int) -> Raw:
    """Some of the rows, counted from 0."""
    sites = None if raw.sites is None else raw.sites[start:stop]
    rows = numbered(stop - start)
    return replace(raw, items=rows, labels=raw.labels[start:stop], pictures=raw.pictures[start:stop], sites=sites)
