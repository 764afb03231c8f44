"""Names, search, normalisation, the catalogue and the embedded set."""

from __future__ import annotations

import gzip
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import Field, ValidationError
from studies import ROOT, script

from fednoil.config import load_config
from fednoil.data import DataConfig, Decoded, Source, assemble, catalogue, is_own, load, open_source
from fednoil.data.idx import CLASS_NAMES, DEBIAN, IDX_FILES, FashionMnist, read_idx
from fednoil.errors import UserError
from fednoil.testing import check_source


@pytest.fixture
def no_debian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide a Fashion-MNIST that this machine may have."""

    monkeypatch.setattr(FashionMnist, "usual", (tmp_path / "nowhere",))


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


Pack = Callable[[bytes], bytes]


def write_fashion(folder: Path, count: int = 20, pack: Pack = gzip.compress) -> np.ndarray:
    """Write four tiny IDX files and return the training images [count, 28, 28]."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.arange(count * 784, dtype=np.int64).reshape(count, 28, 28).astype(np.uint8)
    labels = (np.arange(count) % 10).astype(np.uint8)
    suffix = ".gz" if pack is gzip.compress else ""
    for name, array in zip(IDX_FILES, (images, labels, images[:10], labels[:10]), strict=True):
        (folder / f"{name}{suffix}").write_bytes(pack(idx_bytes(array)))
    return images


def test_default_is_the_embedded_set() -> None:
    data = load(DataConfig())
    assert data.train.images.shape == (3000, 1, 28, 28)
    assert data.test.images.shape == (1000, 1, 28, 28)
    assert data.train.images.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    assert np.bincount(data.train.labels).tolist() == [300] * 10
    assert np.bincount(data.test.labels).tolist() == [100] * 10
    assert data.class_names == CLASS_NAMES
    assert (data.mean, data.std) == ((0.2860,), (0.3530,))
    # The first images of the original set are an ankle boot, two T-shirts and a dress.
    assert data.train.labels[:4].tolist() == [9, 0, 0, 3]
    assert abs(float(data.train.images.mean()) / 255 - 0.2860) < 0.01


def test_embedded_file_is_small() -> None:
    path = Path(__file__).parents[1] / "src/fednoil/data/mini.npz"
    assert path.stat().st_size < 1_450_000


def test_make_mini_takes_the_first_of_each_class() -> None:
    labels = np.array([3, 3, 0, 3, *range(10)])
    # Classes 1, 2, 4..9 have one sample, class 0 two, class 3 four of which the first two are kept.
    first = script(ROOT / "tools/make_mini.py", "make_mini").first_of_each(labels, 2)
    assert first.tolist() == [0, 1, 2, *range(4, 7), *range(8, 14)]


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_make_mini_reproduces_the_embedded_set() -> None:
    made, data = script(ROOT / "tools/make_mini.py", "make_mini").make(DEBIAN), load(DataConfig())
    assert np.array_equal(made["x_train"], data.train.images[:, 0])
    assert np.array_equal(made["y_test"], data.test.labels)
    assert np.array_equal(made["x_test"], data.test.images[:, 0])
    assert np.array_equal(made["y_train"], data.train.labels)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_real_fashion_mnist() -> None:
    data = load(DataConfig(name="fashion-mnist"))
    assert np.bincount(data.train.labels).tolist() == [6000] * 10
    assert np.bincount(data.test.labels).tolist() == [1000] * 10
    assert round(float(data.train.images.mean()) / 255, 4) == 0.2860
    assert round(float(data.train.images.std()) / 255, 4) == 0.3530


@pytest.mark.parametrize("sub", ["", "fashion-mnist"])
@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gz", "plain"])
def test_fashion_mnist_is_found_in_a_folder(tmp_path: Path, sub: str, pack: Callable[[bytes], bytes]) -> None:
    images = write_fashion(tmp_path / "data" / sub, pack=pack)
    data = load(DataConfig(name="fashion-mnist"), tmp_path / "data")
    assert np.array_equal(data.train.images[:, 0], images)
    assert data.train.labels.tolist() == list(range(10)) * 2
    assert len(data.test) == 10


def test_data_dir_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion(tmp_path / "env", 30)
    write_fashion(tmp_path / "given", 20)
    monkeypatch.setenv("FEDNOIL_DATA", str(tmp_path / "env"))
    assert len(load(DataConfig(name="fashion-mnist"), tmp_path / "given").train) == 20
    assert len(load(DataConfig(name="fashion-mnist")).train) == 30


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"data\.name = 'cifar1O' is unknown; .* did you mean 'cifar10'\?"):
        load(DataConfig(name="cifar1O"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("fashion-mnist", "dataset-fashion-mnist"),
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz"),
    ],
)
@pytest.mark.usefixtures("no_debian")
def test_missing_dataset_says_where_and_how(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        load(DataConfig(name=name), tmp_path)
    for part in (name, str(tmp_path / name), hint, "--data-dir", "$FEDNOIL_DATA"):
        assert part in str(error.value)


def test_missing_data_dir(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nope \(--data-dir\) does not exist"):
        load(DataConfig(name="cifar10"), tmp_path / "nope")


def test_unreadable_place_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDNOIL_DATA", "a" * 5000)
    with pytest.raises(UserError, match=r"'cifar10': a+ can't be read"):
        load(DataConfig(name="cifar10"), tmp_path)


@pytest.mark.usefixtures("no_debian")
def test_part_of_fashion_mnist_names_what_lacks(tmp_path: Path) -> None:
    write_fashion(tmp_path)
    (tmp_path / f"{IDX_FILES[3]}.gz").unlink()
    with pytest.raises(UserError, match="lacks t10k-labels-idx1-ubyte"):
        load(DataConfig(name="fashion-mnist"), tmp_path)


def test_truncated_gz(tmp_path: Path) -> None:
    write_fashion(tmp_path)
    path = tmp_path / f"{IDX_FILES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz can't be read .*get the file again"):
        load(DataConfig(name="fashion-mnist"), tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not IDX"),
        (b"\0\0\x08\x01" + bytes(8), "is not IDX"),
        (b"\0\0\x0d\x03" + bytes(12), "is not IDX"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2, 28, 28) + bytes(5), "promises 1568 bytes .* the file has 5"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 2**31), "the file has 0"),
        (idx_bytes(np.zeros((20, 14, 56), np.uint8)), r"\(14, 56\); Fashion-MNIST's are \(28, 28\)"),
    ],
)
def test_corrupt_idx(tmp_path: Path, data: bytes, message: str) -> None:
    write_fashion(tmp_path, pack=bytes)
    (tmp_path / IDX_FILES[0]).write_bytes(data)
    with pytest.raises(UserError, match=message):
        load(DataConfig(name="fashion-mnist"), tmp_path)


def test_read_idx_by_hand(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes.fromhex("00000802 00000002 00000003 010203040506"))
    assert read_idx(tmp_path / "x", 2).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_fashion_label_out_of_range(tmp_path: Path) -> None:
    write_fashion(tmp_path, pack=bytes)
    (tmp_path / IDX_FILES[1]).write_bytes(idx_bytes(np.array([*range(19), 10], np.uint8)))
    with pytest.raises(UserError, match=r"train label 10 \(number 10\) is out of range; use 0\.\.9"):
        load(DataConfig(name="fashion-mnist"), tmp_path)


def test_own_normalisation_replaces_the_usual_one() -> None:
    plain, changed = load(DataConfig()), load(DataConfig(normalisation=((0.5,), (0.25,))))
    assert (changed.mean, changed.std) == ((0.5,), (0.25,))
    assert changed.hash == plain.hash


@pytest.mark.parametrize("lengths", [(3, 1), (1, 3)])
def test_normalisation_needs_one_number_a_channel(lengths: tuple[int, int]) -> None:
    said = r"data\.normalisation has lists of {} and {} numbers; .* have 1 channel".format(*lengths)
    with pytest.raises(UserError, match=said):
        load(DataConfig(normalisation=((0.5,) * lengths[0], (0.5,) * lengths[1])))


@pytest.mark.parametrize(
    "bad", [([0.5], [0.0]), ([0.5], [-1.0]), ([], [0.5]), ([float("nan")], [0.5]), ([0.5],), ([0.5], [0.5], [0.5])]
)
def test_bad_normalisation_is_refused(bad: tuple[list[float], ...]) -> None:
    with pytest.raises(ValidationError):
        DataConfig.model_validate({"normalisation": bad})


def test_is_own() -> None:
    assert all(map(is_own, ("folder:a", "npz:b.npz", "parquet:c")))
    assert not any(map(is_own, ("cifar10", "fashion-mnist-mini")))
    assert is_own(f"{__name__}:Stripes")


class Stripes(Source):
    """Images whose brightness is their class."""

    class Config(DataConfig):
        classes: int = Field(default=3, ge=2)

    def read(self) -> Decoded:
        def split(each: int) -> tuple[np.ndarray, np.ndarray]:
            labels = np.arange(each * self.config.classes) % self.config.classes
            return np.repeat(labels.astype(np.uint8) * 20, 64).reshape(-1, 1, 8, 8), labels

        return assemble("stripes", split(10), split(2), None)


def test_a_source_of_the_users_own() -> None:
    config = load_config({"data": {"name": f"{__name__}:Stripes", "classes": 4, "normalisation": [[0.5], [0.25]]}})
    assert config.noise.kind == "unknown"  # whose labels nobody vouches for
    data = load(config.data)
    assert (len(data.train), data.num_classes, data.mean) == (40, 4, (0.5,))
    assert data.name == f"{__name__}:Stripes"
    raw = open_source(f"{__name__}:Stripes").labelled()
    assert (raw.items[:2], raw.labels[:4].tolist()) == (["0", "1"], [0, 1, 2, 0])


def test_the_source_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n# my_source\.py\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "my_source.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    check_source("my_source:Digits", test=500)
    data = load(load_config({"data": {"name": "my_source:Digits"}}).data)
    assert (len(data.train), len(data.test), data.image_shape, data.num_classes) == (1497, 300, (1, 8, 8), 10)


def test_what_a_decoded_copy_depends_on(tmp_path: Path) -> None:
    """A source's own keys, and no keys that all sources have."""
    keys = [load_config({"data": {"name": f"{__name__}:Stripes", **own}}).data for own in ({}, {"classes": 4})]
    assert len({open_source(config).key() for config in keys}) == 2
    plain = [DataConfig(name="folder:a"), DataConfig(name="folder:a", normalisation=((0.5,), (0.2,)), validation=0.1)]
    assert {open_source(config).key() for config in plain} == {"folder:a"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "folder"}, r"data.name = 'folder' has no path; write folder:PATH"),
        ({"name": "npz: "}, r"data.name = 'npz: ' has no path; write npz:FILE"),
        (
            {"name": "zip:a"},
            r"data.name = 'zip:a' is unknown.*folder:PATH, csv:FILE, npz:FILE, parquet:PATH, hf:PATH, webdataset:PATH",
        ),
        ({"name": "cifar10:a"}, r"data.name = 'cifar10:a' is unknown"),
        ({"name": "cifar10", "classes": 3}, r"unknown key 'data.classes'"),
        ({"name": f"{__name__}:Stripes", "classes": 1}, r"data.classes = 1: must be greater than or equal to 2"),
        ({"name": f"{__name__}:load"}, r"is not a class derived from fednoil.data.base.Source"),
        ({"name": "sites"}, r"data.name = 'sites' means the data of a federation's sites"),
        ({"name": "arrays"}, r"data.name = 'arrays' means data that a program gives"),
    ],
)
def test_names_and_keys_that_lead_nowhere(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(load_config({"data": keys}).data)


@pytest.mark.usefixtures("no_debian")
def test_catalogue(tmp_path: Path) -> None:
    assert [(row.name, row.found) for row in catalogue(tmp_path)] == [
        ("fashion-mnist-mini", True),
        ("fashion-mnist", False),
        ("cifar10", False),
        ("cifar100", False),
        ("clothing1m", False),
        ("folder:PATH", None),
        ("csv:FILE", None),
        ("npz:FILE", None),
        ("parquet:PATH", None),
        ("hf:PATH", None),
        ("webdataset:PATH", None),
        ("table:FILE", None),
        ("features:FILE", None),
    ]
    write_fashion(tmp_path / "fashion-mnist")
    row = catalogue(tmp_path)[1]
    assert (row.found, row.where) == (True, str(tmp_path / "fashion-mnist"))
    assert "dataset-fashion-mnist" in row.how
