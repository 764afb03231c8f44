"""The user's own data: folders of pictures and .npz arrays."""

from __future__ import annotations

import pickle
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fednoil.data import DataConfig, Dataset, load
from fednoil.errors import UserError


def picture(path: Path, value: Any = 7, mode: str = "L", size: tuple[int, int] = (6, 5)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def pictures(root: Path, mode: str = "L") -> Path:
    """Two classes with two training images and one test image each; values 1, 2, 3, 4 and 5, 6."""
    names = ["train/b/1", "train/b/2", "train/ä/1", "train/ä/2", "test/b/1", "test/ä/1"]
    for number, name in enumerate(names, 1):
        picture(root / f"{name}.png", number if mode == "L" else (number, 0, 0), mode)
    return root


def folder(root: Path) -> Dataset:
    return load(DataConfig(name=f"folder:{root}"))


def test_folder(tmp_path: Path) -> None:
    data = folder(pictures(tmp_path / "d"))
    assert data.class_names == ("b", "ä")
    assert data.train.images.shape == (4, 1, 5, 6)
    assert data.train.images[:, 0, 0, 0].tolist() == [1, 2, 3, 4]
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert data.test.images[:, 0, 0, 0].tolist() == [5, 6]
    # mean of 1..4 is 2.5, variance 1.25; the spread is below the smallest std
    assert data.mean == (round(2.5 / 255, 4),)
    assert data.std == (0.01,)


def test_folder_in_colour(tmp_path: Path) -> None:
    root = pictures(tmp_path / "d", "RGB")
    picture(root / "test/b/2.JPEG", 9)
    data = folder(root)
    assert data.image_shape == (3, 5, 6)
    assert data.train.images[0, :, 0, 0].tolist() == [1, 0, 0]
    assert data.test.images[1, :, 0, 0].tolist() == [9, 9, 9]
    assert len(data.mean) == len(data.std) == 3


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    root = pictures(tmp_path / "d")
    for name in (".DS_Store", "Thumbs.db"):
        (root / "train/b" / name).write_bytes(b"x")
    assert len(folder(root).train) == 4


def test_one_class_name_in_two_unicode_forms(tmp_path: Path) -> None:
    root = pictures(tmp_path / "d")
    (root / "test/ä").rename(root / "test" / unicodedata.normalize("NFD", "ä"))
    assert folder(root).test.labels.tolist() == [0, 1]


def spoil_unknown_class(root: Path) -> None:
    picture(root / "test/猫/1.png")


def spoil_empty_class(root: Path) -> None:
    (root / "train/c").mkdir()


def spoil_text(root: Path) -> None:
    (root / "train/b/3.png").write_text("not a picture")


def spoil_depth(root: Path) -> None:
    Image.fromarray(np.zeros((5, 6), np.float32)).save(root / "train/b/3.tiff")


def spoil_nested(root: Path) -> None:
    (root / "train/b/more.png").mkdir()


def spoil_no_classes(root: Path) -> None:
    (root / "train").rename(root / "old")
    (root / "train").mkdir()


def spoil_one_class(root: Path) -> None:
    for split in ("train", "test"):
        (root / split / "ä").rename(root / f"{split}-ä")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_unknown_class, "class '猫' is missing from train"),
        (spoil_empty_class, "train/c is empty"),
        (spoil_text, r"train/b/3\.png can't be read as an image"),
        (spoil_depth, r"train/b/3\.tiff has 32 bits a channel; save it with 8 or 16"),
        (spoil_nested, r"train/b/more\.png is a folder in a class folder"),
        (spoil_no_classes, "train has no class folders"),
        (spoil_one_class, "only one class"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_bad_folder(tmp_path: Path, spoil: Any, message: str) -> None:
    root = pictures(tmp_path / "d")
    spoil(root)
    with pytest.raises(UserError, match=message):
        folder(root)


def test_a_folder_too_deep_is_reported_with_the_one_above(tmp_path: Path) -> None:
    root = pictures(tmp_path / "d")
    for split in ("train", "test"):
        with pytest.raises(UserError, match=rf"{split} is a part of the data; did you mean folder:{root}\?"):
            folder(root / split)
    with pytest.raises(UserError, match=r"has no class folders; expected <class>/<image files> in it$"):
        folder(root / "train/b")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder:", "has no path; write folder:PATH"),
        ("folder:/no/such", "folder:/no/such is not a folder"),
        ("npz:/no/such.npz", "is not a file"),
        ("parquet:/no/such", "is neither a file nor a folder with train"),
        ("csv:/no/such.csv", "is not a file"),
        ("npz:" + "a" * 5000, "can't be read .*File name too long"),
        ("folder:~no-such-user/x", "can't be read"),
    ],
)
def test_missing_path(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(DataConfig(name=name))


def arrays(**changes: Any) -> dict[str, Any]:
    x = np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5)
    y = np.array([0, 1, 2, 0, 1, 2])
    made = {"x_train": x, "y_train": y, "x_test": x[:3], "y_test": y[:3], **changes}
    return {key: value for key, value in made.items() if value is not None}


def npz(path: Path, **changes: Any) -> Dataset:
    np.savez(path, **arrays(**changes))
    return load(DataConfig(name=f"npz:{path}"))


def test_npz(tmp_path: Path) -> None:
    data = npz(tmp_path / "a.npz", class_names=["x", "y", "猫"])
    assert data.class_names == ("x", "y", "猫")
    assert np.array_equal(data.train.images[:, 0], arrays()["x_train"])
    assert npz(tmp_path / "b.npz").class_names == ("0", "1", "2")


X, Y = arrays()["x_train"], arrays()["y_train"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, "lacks x_test"),
        ({"y_train": np.array(list("abcabc"))}, "y_train and y_test must be text"),
        (
            {"y_train": np.array(list("abcabc")), "y_test": np.array(list("abc")), "class_names": ["a", "b"]},
            "'c' is not one",
        ),
        ({"x_train": X / 255}, "x_train holds float64; images must be uint8"),
        ({"x_train": X[:, :, :, None].repeat(2, 3)}, r"x_train has shape \(6, 4, 5, 2\)"),
        ({"x_train": X[:, None].repeat(3, 1)}, "put the channels last"),
        ({"x_train": X[0]}, r"x_train has shape \(4, 5\)"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "train has no images"),
        ({"x_test": X[:3, :3]}, "test images are 5×3 pixels with 1 channel, training images 5×4"),
        ({"y_train": Y[:5]}, "train has 6 images and 5 labels"),
        ({"y_train": Y.astype(float)}, "train labels are float64"),
        ({"y_train": Y[:, None]}, r"train labels are int64 of shape \(6, 1\)"),
        ({"y_train": Y - 1}, r"train label -1 \(number 0\) is out of range; use 0\.\.1"),
        ({"y_train": Y * 0 - 5}, r"train label -5 .* out of range"),
        ({"y_test": Y[:3] + 1}, r"test label 3 \(number 2\) is out of range; use 0\.\.2"),
        ({"y_train": Y * 2}, "class 1 has no training image"),
        ({"y_train": Y * 2**60}, "class 1 has no training image"),
        ({"class_names": list("abcd")}, r"class 3 \('d'\) has no training image"),
        ({"class_names": list("ab")}, r"train label 2 .* use 0\.\.1"),
        ({"class_names": list("aab")}, "'a' stands for two classes"),
        ({"class_names": ["a", "b\n", "c"]}, "class name 'b ' is not one line of readable text; rename it"),
        ({"class_names": np.arange(3)}, "class_names is int64"),
        ({"class_names": np.array([b"\xff", b"a", b"b"])}, "not UTF-8"),
        ({"x_train": np.array([{}] * 6, object)}, "can't be read as an .npz of plain arrays"),
    ],
)
def test_bad_npz(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        npz(tmp_path / "a.npz", **changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"a\.npz is not an \.npz file"),
        (b"text", r"a\.npz is not an \.npz file"),
        (pickle.dumps([1]), r"a\.npz is not an \.npz file"),
        (b"PK\x03\x04broken", r"can't be read as an \.npz"),
    ],
)
def test_not_an_npz(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(UserError, match=message):
        load(DataConfig(name=f"npz:{tmp_path / 'a.npz'}"))


def test_single_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    with pytest.raises(UserError, match="is a single array"):
        load(DataConfig(name=f"npz:{tmp_path / 'a.npy'}"))


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    classes=st.integers(2, 5),
    shape=st.sampled_from([(3, 4), (2, 2, 1), (4, 3, 3)]),
)
def test_npz_trip(tmp_path_factory: pytest.TempPathFactory, seed: int, classes: int, shape: Any) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (classes + 3, *shape), np.uint8)
    y = rng.permutation([*range(classes), *rng.integers(0, classes, 3)])
    data = npz(tmp_path_factory.mktemp("n") / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    flat = x.reshape(*x.shape[:3], -1)
    assert np.array_equal(data.train.images.transpose(0, 2, 3, 1), flat)
    assert data.train.images.flags.c_contiguous
    assert np.array_equal(data.test.labels, y)
    # four decimals; sums in another order may round the last one the other way
    assert data.mean == pytest.approx(flat.mean((0, 1, 2)) / 255, abs=0.6e-4)
    assert data.std == pytest.approx(flat.std((0, 1, 2)) / 255, abs=0.6e-4)
