"""Noise manifests: an exact round trip, a hash that means something, and every way a file can be wrong."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import tiny_arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from made_labels import dataset_of, true_labels

from fednoil.config.loading import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_experiment
from fednoil.labels import Labels, Truth
from fednoil.manifest import SCHEMA, manifest_hash, read_manifest, write_manifest
from fednoil.noise import apply
from fednoil.partition import partition
from fednoil.seeds import Seed

DATA_HASH = "ab12" * 16
LABELS = np.array([2, 0, 1, 2, 0, 1, 2])
PARTS = (np.array([1, 4, 6]), np.array([0, 2]))
GIVEN = Labels((np.array([0, 1, 2]), np.array([2, 0])))
TRUTH = Truth((np.array([0, 0, 2]), np.array([2, 1])))

Value = tuple[tuple[np.ndarray, ...], Labels, Truth]


def write(path: Path, truth: Truth = TRUTH) -> None:
    write_manifest(path, PARTS, GIVEN, truth, DATA_HASH, 3)


def read(path: Path) -> Value:
    return read_manifest(path, LABELS, 3, DATA_HASH)


def check_same(a: Value, b: Value) -> None:
    """The same indices, given labels and truth, in the same order and type."""
    pairs = [(a[0], b[0]), (a[1].given, b[1].given)]
    assert a[2].known == b[2].known
    if a[2].known:
        pairs.append((true_labels(a[2]), true_labels(b[2])))
    for left, right in pairs:
        assert len(left) == len(right)
        assert all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(left, right, strict=True))


@settings(deadline=None, max_examples=20)
@given(
    kind=st.sampled_from(["none", "unknown", "symmetric", "pair"]),
    split=st.sampled_from(["iid", "shards"]),
    clients=st.integers(4, 9),
    root=st.integers(0, 1000),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, kind: str, split: str, clients: int, root: int) -> None:
    path = tmp_path_factory.mktemp("manifest") / "noise.parquet"
    labels = np.tile(np.arange(7), 30)
    config = load_config({"partition": {"kind": split, "clients": clients}, "noise": {"kind": kind}})
    parts = partition(labels, 7, config.partition, Seed(root))
    noisy, truth = apply(dataset_of(labels, 7), parts, config.noise, Seed(root))
    write_manifest(path, parts, noisy, truth, DATA_HASH, 7)
    back = read_manifest(path, labels, 7, DATA_HASH)
    check_same((parts, noisy, truth), back)
    assert manifest_hash(*back) == manifest_hash(parts, noisy, truth)


def test_file_by_hand(tmp_path: Path) -> None:
    write(tmp_path / "m.parquet")
    table = pq.read_table(tmp_path / "m.parquet")
    assert table.schema.equals(SCHEMA)
    assert table.to_pydict() == {
        "client": [0, 0, 0, 1, 1],
        "index": [1, 4, 6, 0, 2],
        "given": [0, 1, 2, 2, 0],
        "true": [0, 0, 2, 2, 1],
    }
    assert table.schema.metadata == {
        b"fednoil_version": b"1",
        b"data_hash": DATA_HASH.encode(),
        b"num_classes": b"3",
        b"noise_hash": manifest_hash(PARTS, GIVEN, TRUTH).encode(),
    }


def test_unknown_truth_is_null(tmp_path: Path) -> None:
    write(tmp_path / "m.parquet", Truth(None))
    assert pq.read_table(tmp_path / "m.parquet").column("true").to_pylist() == [None] * 5
    assert read(tmp_path / "m.parquet")[2].known is False


def test_hash_depends_on_every_part() -> None:
    other_parts = (np.array([1, 4, 5]), PARTS[1])
    moved = (np.array([1, 4]), np.array([0, 2, 6]))
    moved_given = Labels((np.array([0, 1]), np.array([2, 0, 2])))
    moved_truth = Truth((np.array([0, 0]), np.array([2, 1, 2])))
    other_given = Labels((np.array([0, 1, 1]), GIVEN.given[1]))
    other_truth = Truth((np.array([0, 0, 1]), np.array([2, 1])))
    hashes = [
        manifest_hash(PARTS, GIVEN, TRUTH),
        manifest_hash(other_parts, GIVEN, TRUTH),
        manifest_hash(moved, moved_given, moved_truth),
        manifest_hash(PARTS, other_given, TRUTH),
        manifest_hash(PARTS, GIVEN, other_truth),
        manifest_hash(PARTS, GIVEN, Truth(None)),
    ]
    assert len(set(hashes)) == len(hashes)


def test_hash_ignores_order_and_type() -> None:
    parts = (PARTS[0][::-1], PARTS[1])
    given_ = Labels((GIVEN.given[0][::-1].astype(np.int32), GIVEN.given[1]))
    truth = Truth((true_labels(TRUTH)[0][::-1], true_labels(TRUTH)[1]))
    assert manifest_hash(parts, given_, truth) == manifest_hash(PARTS, GIVEN, TRUTH)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.parquet"
    write(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"m\.parquet can't be written: No space left on device"):
        write(path, Truth(None))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_writing_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    path.write_text("old")
    write(path)
    check_same(read(path), (PARTS, GIVEN, TRUTH))
    assert list(tmp_path.iterdir()) == [path]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be written: No such file or directory"):
        write(tmp_path / "missing" / "m.parquet")


def test_clients_must_hold_something(tmp_path: Path) -> None:
    empty = (np.array([], dtype=np.int64), np.array([1]))
    with pytest.raises(ValueError, match="one sample for each"):
        manifest_hash(empty, Labels((empty[0], np.array([0]))), Truth(None))
    with pytest.raises(ValueError, match="given labels don't match"):
        manifest_hash(PARTS, Labels((GIVEN.given[0], np.array([0]))), Truth(None))


def rewrite(path: Path, **columns: object) -> None:
    """Replace columns of a good manifest, or drop those that are None; keep its metadata."""
    write(path)
    table = pq.read_table(path)
    metadata = table.schema.metadata
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.remove_column(place)
        if values is not None:
            table = table.add_column(place, name, pa.array(values))
    pq.write_table(table.replace_schema_metadata(metadata), path)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"given": None}, "needs the column given exactly once.*client, index, given, true"),
        ({"true": None}, "needs the column true exactly once"),
        ({"client": [0, 0, 0, 2, 2]}, "2 clients, so column client must hold 0 to 1, but 1 is missing"),
        ({"client": [1, 1, 1, 2, 2]}, "0 is missing"),
        ({"client": [-1, 0, 0, 1, 1]}, "3 clients.*0 is missing .there is -1"),
        ({"index": [1, 4, 7, 0, 2]}, "column index holds 7; it must be 0 to 6"),
        ({"index": [1, 4, -1, 0, 2]}, "column index holds -1; it must be 0 to 6"),
        ({"index": [1, 4, 6, 0, 4]}, "index 4 appears more than once"),
        ({"given": [0, 1, 3, 2, 0]}, "column given holds 3; it must be 0 to 2"),
        ({"given": [0, 1, -2, 2, 0]}, "column given holds -2; it must be 0 to 2"),
        ({"given": [0, 1, None, 2, 0]}, "column given has empty values"),
        ({"given": [None] * 5}, "column given has type null; it must be int32"),
        ({"given": ["a", "b", "c", "d", "e"]}, "column given has type string; it must be int32"),
        ({"index": [1.0, 4.0, 6.0, 0.0, 2.0]}, "column index has type double; it must be int64"),
        ({"index": np.array([2**63, 1, 2, 3, 4], dtype=np.uint64)}, "column index has numbers too large"),
        ({"true": [0, 0, None, 2, 1]}, "column true is empty in some rows only"),
        ({"true": [0, 0, 2, 2, 2]}, "true label of index 2 is 2, but the data says 1"),
        ({"given": [0, 1, 2, 2, 1]}, "don't match its noise_hash"),
        ({"true": [None] * 5}, "don't match its noise_hash"),
    ],
)
def test_bad_columns(tmp_path: Path, columns: dict[str, object], words: str) -> None:
    rewrite(tmp_path / "bad.parquet", **columns)
    with pytest.raises(UserError, match=rf"bad\.parquet: .*{words}"):
        read(tmp_path / "bad.parquet")


def test_wider_types_and_other_order_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    columns = {"client": [1, 0, 0, 1, 0], "index": [2, 6, 1, 0, 4], "given": [0, 2, 0, 2, 1]}
    rewrite(path, **columns, true=[1, 2, 0, 2, 0])
    assert pq.read_schema(path).field("given").type == pa.int64()
    check_same(read(path), (PARTS, GIVEN, TRUTH))


@pytest.mark.parametrize("key", ["fednoil_version", "data_hash", "num_classes", "noise_hash"])
def test_missing_metadata(tmp_path: Path, key: str) -> None:
    path = tmp_path / "m.parquet"
    write(path)
    table = pq.read_table(path)
    kept = {name: value for name, value in table.schema.metadata.items() if name != key.encode()}
    pq.write_table(table.replace_schema_metadata(kept), path)
    with pytest.raises(UserError, match=f"has no metadata {key}"):
        read(path)


def test_other_format(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write(path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | {b"fednoil_version": b"\xff2"}), path)
    with pytest.raises(UserError, match=r"fednoil_version is .2, and must be 1"):
        read(path)


def test_other_data(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write(path)
    with pytest.raises(UserError, match="hash ab12ab12ab12, but this data has hash cd34cd34cd34") as caught:
        read_manifest(path, LABELS, 3, "cd34" * 16)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="is for 3 classes, but this data has 4"):
        read_manifest(path, LABELS, 4, DATA_HASH)


def test_empty_file_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write(path)
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(UserError, match="has no rows"):
        read(path)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.parquet: no such file"):
        read(tmp_path / "none.parquet")
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path)
    path = tmp_path / "m.parquet"
    for content in (b"", b"not a parquet file at all"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"m\.parquet: can't be read as a parquet file"):
            read(path)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_damaged_files_never_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / "m.parquet"
    write(path)
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    result = None
    with contextlib.suppress(UserError):
        result = read(path)
    if result is not None:
        # Only bytes that don't matter, such as statistics, may change unnoticed.
        check_same(result, (PARTS, GIVEN, TRUTH))


def test_an_experiment_from_a_manifest_has_its_clients_and_labels(values: dict[str, Any], tmp_path: Path) -> None:
    """And one of other data, with as many images and the same labels, is refused."""
    made = make_experiment(load_config(values)).setting
    path = tmp_path / "noise.parquet"
    write_manifest(path, made.parts, made.labels, made.truth, made.dataset.hash, made.dataset.num_classes)
    values |= {"noise": {"kind": "manifest", "file": str(path)}, "run": {**values["run"], "seed": 7}}
    again = make_experiment(load_config(values)).setting
    for one, other in ((made.parts, again.parts), (made.labels.given, again.labels.given)):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    arrays = tiny_arrays()
    arrays["x_train"] += 1
    np.savez(tmp_path / "other.npz", **arrays)
    values["data"]["name"] = f"npz:{tmp_path / 'other.npz'}"
    with pytest.raises(UserError, match="use the data it was written for"):
        make_experiment(load_config(values))
