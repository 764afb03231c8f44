"""The noise manifest: a parquet file that says which client holds which sample with which label.

One row per sample, sorted by client and then by index: `client`, `index` into the training set, `given`
label, `true` label (null throughout if unknown). The file's metadata ties it to one dataset and to its own
content, so a run on the wrong data or on an edited file stops instead of giving numbers that mean nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fednoil.columns import to_column, to_numbers
from fednoil.errors import UserError
from fednoil.files import write_bytes
from fednoil.labels import NO_CLASS, Labels, Truth, open_truth

VERSION = "1"
"""The version of this file format, not of the package."""

SCHEMA = pa.schema(
    [
        pa.field("client", pa.int32(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("given", pa.int32(), nullable=False),
        pa.field("true", pa.int32(), nullable=True),
    ]
)

Parts = tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class _Rows:
    """The columns of a manifest, each int64 [rows], sorted by client and then by index."""

    client: np.ndarray
    index: np.ndarray
    given: np.ndarray
    true: np.ndarray | None

    def sort(self) -> _Rows:
        order = np.lexsort((self.index, self.client))
        true = None if self.true is None else self.true[order]
        return _Rows(self.client[order], self.index[order], self.given[order], true)

    def hash(self) -> str:
        """SHA-256 over the columns as little-endian int64, and whether the truth is known."""
        digest = hashlib.sha256(f"fednoil manifest {VERSION} {len(self.client)}".encode())
        for column in (self.client, self.index, self.given, self.true):
            digest.update(b"null" if column is None else column.astype("<i8").tobytes())
        return digest.hexdigest()


def manifest_hash(parts: Parts, labels: Labels, truth: Truth) -> str:
    """SHA-256 (hex) of who holds which sample with which given and true label.

    The order of a client's samples doesn't count: a manifest doesn't keep it.
    """
    return _rows(parts, labels, truth).hash()


def write_manifest(
    path: str | Path, parts: Parts, labels: Labels, truth: Truth, data_hash: str, num_classes: int
) -> None:
    """Write a manifest; whatever was at `path` stays whole until the new file is complete."""
    path = Path(path)
    rows = _rows(parts, labels, truth)
    metadata = {
        "fednoil_version": VERSION,
        "data_hash": data_hash,
        "num_classes": str(num_classes),
        "noise_hash": rows.hash(),
    }
    columns = [getattr(rows, name) for name in SCHEMA.names]
    arrays = [
        pa.nulls(len(rows.client), kind) if column is None else to_column(column, kind)
        for column, kind in zip(columns, SCHEMA.types, strict=True)
    ]
    table = pa.table(arrays, schema=SCHEMA.with_metadata(metadata))
    try:
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer)
        write_bytes(path, memoryview(buffer.getvalue()))
    except OSError as error:
        raise UserError(f"noise manifest {path} can't be written: {error.strerror or error}") from error


def read_manifest(
    path: str | Path, dataset_labels: np.ndarray, num_classes: int, data_hash: str
) -> tuple[Parts, Labels, Truth]:
    """Read a manifest and check it against the training set's labels [N], classes and hash.

    Indices come back sorted within a client.
    """
    path = Path(path)
    table = _read_table(path)
    found = table.schema.metadata or {}
    metadata = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in found.items()}
    _check_metadata(path, metadata, num_classes, data_hash)
    rows = _columns(path, table).sort()
    _check_rows(path, rows, dataset_labels, num_classes)
    if rows.hash() != metadata["noise_hash"]:
        raise _bad(path, "its rows don't match its noise_hash, so it was changed: write it again")
    return _split(rows)


def label_counts(path: str | Path) -> tuple[list[int], list[float] | None]:
    """Each client's number of samples and, if true labels are known, its realised noise ratio in percent; needs no
    dataset."""
    path = Path(path)
    rows = _columns(path, _read_table(path))
    samples = np.bincount(rows.client)
    if rows.true is None or not samples.all():
        return samples.tolist(), None
    wrong = np.bincount(rows.client, weights=rows.given != rows.true, minlength=len(samples))
    return samples.tolist(), (100.0 * wrong / samples).tolist()


def class_count(path: str | Path) -> int:
    """The number of classes of the data; needs no dataset."""
    return int((_read_table(Path(path)).schema.metadata or {})[b"num_classes"])


def _rows(parts: Parts, labels: Labels, truth: Truth) -> _Rows:
    """The three values as sorted columns."""
    if not parts or not all(len(part) for part in parts):
        raise ValueError("a noise manifest needs at least one client, and one sample for each")
    sizes, known = [len(part) for part in parts], open_truth(truth)
    for name, arrays in (("given", labels.given), ("true", known)):
        if arrays is not None and [len(a) for a in arrays] != sizes:
            raise ValueError(f"{name} labels don't match the partition's sizes")
    client = np.repeat(np.arange(len(parts), dtype=np.int64), sizes)
    true = None if known is None else np.concatenate(known)
    return _Rows(client, np.concatenate(parts), np.concatenate(labels.given), true).sort()


def _split(rows: _Rows) -> tuple[Parts, Labels, Truth]:
    """The sorted columns as one array per client."""
    starts = np.flatnonzero(np.diff(rows.client)) + 1
    parts, given = (tuple(np.split(column, starts)) for column in (rows.index, rows.given))
    true = None if rows.true is None else tuple(np.split(rows.true, starts))
    return parts, Labels(given), Truth(true)


def _bad(path: Path, what: str) -> UserError:
    return UserError(f"noise manifest {path}: {what}")


def _read_table(path: Path) -> pa.Table:
    """The four columns and the metadata of the file."""
    if not path.is_file():
        raise _bad(path, "no such file; noise.file must be the path of a parquet file")
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            missing = [name for name in SCHEMA.names if names.count(name) != 1]
            if missing:
                raise _bad(
                    path,
                    f"needs the column {missing[0]} exactly once; "
                    f"it has {', '.join(names) or 'none'} and must have {', '.join(SCHEMA.names)}",
                )
            return file.read(columns=SCHEMA.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _bad(path, f"can't be read as a parquet file ({error})") from error


def _check_metadata(path: Path, metadata: dict[str, str], num_classes: int, data_hash: str) -> None:
    """Check that the file has this format and is about this dataset."""
    for key in ("fednoil_version", "data_hash", "num_classes", "noise_hash"):
        if key not in metadata:
            raise _bad(path, f"has no metadata {key}; write it with fednoil.manifest.write_manifest")
    if metadata["fednoil_version"] != VERSION:
        raise _bad(path, f"fednoil_version is {metadata['fednoil_version']}, and must be {VERSION}")
    if metadata["data_hash"] != data_hash:
        raise _bad(
            path,
            f"is for the data with hash {metadata['data_hash'][:12]}, but this data has hash "
            f"{data_hash[:12]}: use the data it was written for",
        )
    if metadata["num_classes"] != str(num_classes):
        raise _bad(path, f"is for {metadata['num_classes']} classes, but this data has {num_classes}")


def _columns(path: Path, table: pa.Table) -> _Rows:
    """The columns as int64, with nulls in `true` alone, and there in all rows or in none."""
    if not table.num_rows:
        raise _bad(path, "has no rows; it needs one per sample")
    nulls = table.column("true").null_count
    if 0 < nulls < table.num_rows:
        raise _bad(path, "column true is empty in some rows only; fill it in all of them or in none")
    client, index, given = (_integers(path, table, name) for name in ("client", "index", "given"))
    return _Rows(client, index, given, None if nulls else _integers(path, table, "true"))


def _integers(path: Path, table: pa.Table, name: str) -> np.ndarray:
    """A column of whole numbers without nulls: int64 [rows]."""
    column = table.column(name)
    if not pa.types.is_integer(column.type):
        raise _bad(path, f"column {name} has type {column.type}; it must be {SCHEMA.field(name).type}")
    if column.null_count:
        raise _bad(path, f"column {name} has empty values; each row needs one")
    try:
        return to_numbers(column)
    except OverflowError as error:
        raise _bad(path, f"column {name} has numbers too large for int64") from error


def _check_rows(path: Path, rows: _Rows, dataset_labels: np.ndarray, num_classes: int) -> None:
    """Clients 0..K-1, each sample at most once, labels in range, truth as in the dataset."""
    clients = np.unique(rows.client)
    if not np.array_equal(clients, np.arange(len(clients))):
        missing = next(k for k in range(len(clients)) if clients[k] != k)
        raise _bad(
            path,
            f"has {len(clients)} clients, so column client must hold 0 to {len(clients) - 1}, "
            f"but {missing} is missing (there is {clients[missing]})",
        )
    for name, column, size in (
        ("index", rows.index, len(dataset_labels)),
        ("given", rows.given, num_classes),
    ):
        wrong = column[(column < 0) | (column >= size)]
        if len(wrong):
            raise _bad(path, f"column {name} holds {wrong[0]}; it must be 0 to {size - 1}")
    indices, counts = np.unique(rows.index, return_counts=True)
    if len(indices) < len(rows.index):
        raise _bad(path, f"index {indices[counts > 1][0]} appears more than once; a sample has one client and label")
    if rows.true is not None:
        if (rows.true == NO_CLASS).any():
            raise _bad(
                path, "has images of no class, which it doesn't hold; make them again with noise.kind = 'openset'"
            )
        wrong = np.flatnonzero(rows.true != dataset_labels[rows.index])
        if len(wrong):
            row = wrong[0]
            raise _bad(
                path,
                f"true label of index {rows.index[row]} is {rows.true[row]}, but the data says "
                f"{dataset_labels[rows.index[row]]}",
            )
