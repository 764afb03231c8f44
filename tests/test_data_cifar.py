"""CIFAR archives, and the reader that keeps their pickles from running anything."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednoil.data import DataConfig, load
from fednoil.data.cifar import CIFAR10, CIFAR100, Layout
from fednoil.data.restricted import load_dict
from fednoil.errors import UserError


def py2_bytes(value: bytes) -> bytes:
    """A Python 2 str: SHORT_BINSTRING or BINSTRING."""
    short = len(value) < 256
    return (b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value


def py2_int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def py2_batch(images: np.ndarray, labels: list[int], label_key: bytes) -> bytes:
    """What Python 2 wrote: protocol 2, text as byte strings, the array through numpy.core.multiarray."""
    dtype = b"cnumpy\ndtype\n" + py2_bytes(b"u1") + py2_int(0) + py2_int(1) + b"\x87R"
    dtype += b"(" + py2_int(3) + py2_bytes(b"|") + b"NNN" + py2_int(-1) + py2_int(-1) + py2_int(0) + b"tb"
    shape = py2_int(images.shape[0]) + py2_int(images.shape[1]) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + py2_int(0) + b"\x85"
    array += py2_bytes(b"b") + b"\x87R(" + py2_int(1) + shape + dtype + b"\x89"
    array += py2_bytes(images.tobytes()) + b"tb"
    items = py2_bytes(b"data") + array + py2_bytes(label_key)
    items += b"](" + b"".join(py2_int(label) for label in labels) + b"e"
    return b"\x80\x02}(" + items + b"u."


def batches(layout: Layout) -> dict[str, bytes]:
    """Every official file with one image of each class; pixel values say which file and image it is."""
    classes = len(layout.class_names)
    made = {}
    for number, name in enumerate(layout.members):
        images = np.zeros((classes, 3072), np.uint8)
        images[:, 0], images[:, 1024], images[:, 33] = number, np.arange(classes), 200
        made[name] = py2_batch(images, list(range(classes)), layout.label_key.encode())
    return made


def write_archive(path: Path, layout: Layout, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {**contents, "readme.html": b"<html>"}.items():
            info = tarfile.TarInfo(f"{layout.folder}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def write_folder(root: Path, layout: Layout, contents: dict[str, bytes]) -> Path:
    folder = root / layout.folder
    folder.mkdir(parents=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name)
@pytest.mark.parametrize("form", ["archive", "archive in subfolder", "folder", "folder itself"])
def test_official_files(tmp_path: Path, layout: Layout, form: str) -> None:
    root, contents = tmp_path / "data", batches(layout)
    (root / layout.name).mkdir(parents=True)
    if form.startswith("archive"):
        write_archive((root if form == "archive" else root / layout.name) / layout.archive, layout, contents)
    else:
        folder = write_folder(root, layout, contents)
        root = folder if form == "folder itself" else root
    data = load(DataConfig(name=layout.name), root)
    classes = len(layout.class_names)
    assert data.train.images.shape == (classes * len(layout.train), 3, 32, 32)
    assert data.class_names == layout.class_names
    assert data.train.labels.tolist() == list(range(classes)) * len(layout.train)
    # Red plane first, rows inside a plane: byte 33 is red at row 1, column 1; byte 1024 is green's first.
    numbers = [n for n in range(len(layout.train)) for _ in range(classes)]
    assert data.train.images[:, 0, 0, 0].tolist() == numbers
    assert data.test.images[:, 1, 0, 0].tolist() == list(range(classes))
    assert (data.test.images[:, 0, 1, 1] == 200).all()
    assert data.test.images[0, 0, 0, 0] == len(layout.train)


def test_class_names_are_whole() -> None:
    assert len(CIFAR10.class_names) == len(set(CIFAR10.class_names)) == 10
    assert len(CIFAR100.class_names) == len(set(CIFAR100.class_names)) == 100
    assert list(CIFAR100.class_names) == sorted(CIFAR100.class_names)


def test_normalisation_is_the_usual_one(tmp_path: Path) -> None:
    write_folder(tmp_path, CIFAR10, batches(CIFAR10))
    data = load(DataConfig(name="cifar10"), tmp_path)
    assert (data.mean, data.std) == ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))


def test_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / CIFAR10.archive
    noise = {"data_batch_1": np.random.default_rng(0).bytes(100_000)}  # does not compress away
    write_archive(path, CIFAR10, {**batches(CIFAR10), **noise})
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(UserError, match=r"cifar-10-python\.tar\.gz can't be read .*cut short"):
        load(DataConfig(name="cifar10"), tmp_path)


def test_archive_without_a_member(tmp_path: Path) -> None:
    contents = batches(CIFAR10)
    del contents["data_batch_3"]
    write_archive(tmp_path / CIFAR10.archive, CIFAR10, contents)
    with pytest.raises(UserError, match="lacks cifar-10-batches-py/data_batch_3"):
        load(DataConfig(name="cifar10"), tmp_path)


def test_a_link_in_the_archive_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(batches(CIFAR100)["train"])
    with tarfile.open(tmp_path / CIFAR100.archive, "w:gz") as tar:
        link = tarfile.TarInfo("cifar-100-python/train")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        tar.addfile(link)
    with pytest.raises(UserError, match="lacks cifar-100-python/train"):
        load(DataConfig(name="cifar100"), tmp_path)


def test_folder_without_a_batch(tmp_path: Path) -> None:
    contents = batches(CIFAR10)
    del contents["test_batch"]
    write_folder(tmp_path, CIFAR10, contents)
    with pytest.raises(UserError, match="cifar-10-batches-py lacks test_batch"):
        load(DataConfig(name="cifar10"), tmp_path)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            py2_batch(np.zeros((10, 3000), np.uint8), list(range(10)), b"labels"),
            r"\(10, 3000\); expected an array",
        ),
        (py2_batch(np.zeros((10, 3072), np.uint8), list(range(9)), b"labels"), "10 images and 9 labels"),
        (py2_batch(np.zeros((1, 3072), np.uint8), [10], b"labels"), r"label 10 is out of range; use 0\.\.9"),
        (py2_batch(np.zeros((1, 3072), np.uint8), [1], b"fine_labels"), "'labels' is not a list of integers"),
        (pickle.dumps([1, 2], 2), "it holds a list, not a dict"),
        (pickle.dumps({"labels": [1]}, 2), "'data' is missing"),
        (
            pickle.dumps({"data": np.zeros((1, 3072)), "labels": [1]}, 2),
            "'data' holds float64; expected uint8",
        ),
        (b"not a pickle", "is refused"),
        (b"", "is refused"),
    ],
)
def test_bad_batch(tmp_path: Path, batch: bytes, message: str) -> None:
    write_folder(tmp_path, CIFAR10, {**batches(CIFAR10), "data_batch_2": batch})
    with pytest.raises(UserError, match=rf"data_batch_2.*{message}"):
        load(DataConfig(name="cifar10"), tmp_path)


class Hostile:
    """Pickles into a call of `function` with `argument`."""

    def __init__(self, function: Any, argument: str) -> None:
        self.call = function, (argument,)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return self.call


def test_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    hostile = pickle.dumps({"data": Hostile(os.system, f"touch {mark}")}, 2)
    write_folder(tmp_path, CIFAR10, {**batches(CIFAR10), "data_batch_1": hostile})
    with pytest.raises(UserError, match=r"data_batch_1 is refused: .*it asks for posix\.system"):
        load(DataConfig(name="cifar10"), tmp_path)
    assert not mark.exists()
    pickle.loads(hostile)  # the same bytes do run when nothing holds them back
    assert mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n.",
        b"c__builtin__\ngetattr\n.",
        # BUILD on the functions handed out: they can't be changed from inside the file
        b"c_codecs\nencode\n(N}S'__call__'\nNstb.",
        b"cnumpy\ndtype\n}S'x'\nI1\nsb.",
        b"cnumpy\nndarray\n)\x81.",
        b"c_codecs\nencode\n(Vrot13\nVrot13\ntR.",
        b"\x80\x02cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
        b"}r\xff\xff\xff\x00.",  # a memo slot that would cost 128 MB, and could say 34 GB
    ],
)
def test_other_ways_out_are_closed(data: bytes) -> None:
    with pytest.raises(UserError, match="x is refused"):
        load_dict(data, "x")


def test_array_with_too_few_bytes_is_refused() -> None:
    good = py2_batch(np.zeros((2, 3), np.uint8), [0, 1], b"labels")
    assert load_dict(good, "x")["labels"] == [0, 1]
    with pytest.raises(UserError, match=r"6 bytes for an array of shape \(2, 4\)"):
        load_dict(good.replace(py2_int(2) + py2_int(3), py2_int(2) + py2_int(4)), "x")


@settings(deadline=None, max_examples=30)
@given(
    dtype=st.sampled_from(["u1", "<i2", ">i4", "<f8", "?"]),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    protocol=st.integers(0, 4),
    fortran=st.booleans(),
    extra=st.dictionaries(
        st.text(), st.lists(st.integers()) | st.binary(min_size=1) | st.text() | st.floats(allow_nan=False)
    ),
)
def test_plain_values_come_back(
    dtype: str, shape: tuple[int, ...], protocol: int, fortran: bool, extra: dict[str, Any]
) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    value = {**extra, "array": np.asfortranarray(array) if fortran else array}
    back = load_dict(pickle.dumps(value, protocol), "x")
    assert np.array_equal(np.asarray(back.pop("array")), array)
    assert back == {key: item for key, item in value.items() if key != "array"}


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_damaged_pickle_is_a_user_error_or_a_dict(data: st.DataObject) -> None:
    good = bytearray(py2_batch(np.zeros((2, 3), np.uint8), [0, 1], b"labels"))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UserError):  # anything else that comes out fails the test
        assert isinstance(load_dict(bytes(good), "x"), dict)


def test_array_shape_must_be_sizes() -> None:
    good = py2_batch(np.zeros((2, 3), np.uint8), [0, 1], b"labels")
    for size in (py2_int(-3), py2_bytes(b"ab")):  # bytes times a number would be a very long string
        with pytest.raises(UserError, match="invalid shape"):
            load_dict(good.replace(py2_int(2) + py2_int(3), py2_int(2) + size), "x")
