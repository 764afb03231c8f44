"""Parquet shards of images, the user's own and CIFAR's."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fednoil.data import DataConfig, Dataset, load
from fednoil.data.cifar import CIFAR10
from fednoil.errors import UserError


def encoded(value: int, size: tuple[int, int] = (6, 5), mode: str = "L") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, value).save(buffer, "PNG")
    return buffer.getvalue()


def shard(
    path: Path,
    labels: Any,
    image: str = "img",
    label: str = "label",
    names: list[str] | None = None,
    plain: bool = False,
    pixels: Sequence[bytes | None] | None = None,
) -> None:
    """One shard whose image number i has the pixel value i."""
    data = pixels if pixels is not None else [encoded(i) for i in range(len(labels))]
    column = pa.array(data, pa.binary()) if plain else pa.array([{"bytes": b, "path": None} for b in data])
    table = pa.table({image: column, label: labels})
    if names is not None:
        info = {"info": {"features": {label: {"_type": "ClassLabel", "names": names}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def shards(root: Path, **options: Any) -> Path:
    """Two training shards and one test shard of two classes."""
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        shard(root / f"{name}.parquet", [0, 1, 1], **options)
    return root


def from_parquet(root: Path) -> Dataset:
    return load(DataConfig(name=f"parquet:{root}"))


@pytest.mark.parametrize("image", ["img", "image"])
@pytest.mark.parametrize("label", ["label", "fine_label", "labels"])
@pytest.mark.parametrize("plain", [False, True])
def test_parquet(tmp_path: Path, image: str, label: str, plain: bool) -> None:
    data = from_parquet(shards(tmp_path / "p", image=image, label=label, plain=plain, names=["no", "yes"]))
    assert data.class_names == ("no", "yes")
    assert data.train.images.shape == (6, 1, 5, 6)
    assert data.train.images[:, 0, 0, 0].tolist() == [0, 1, 2] * 2
    assert data.train.labels.tolist() == [0, 1, 1] * 2
    assert len(data.test) == 3


def test_parquet_without_names(tmp_path: Path) -> None:
    assert from_parquet(shards(tmp_path)).class_names == ("0", "1")


def test_pictures_of_several_formats(tmp_path: Path) -> None:
    """The first one's is only tried first; one that no format knows is still named."""

    def saved(value: int, form: str) -> bytes:
        buffer = io.BytesIO()
        Image.new("L", (6, 5), value).save(buffer, form)
        return buffer.getvalue()

    pixels = [saved(value, form) for value, form in ((10, "PNG"), (20, "BMP"), (30, "GIF"))]
    dataset = from_parquet(shards(tmp_path / "mixed", pixels=pixels))
    assert dataset.train.images[:, 0, 0, 0].tolist() == [10, 20, 30] * 2
    with pytest.raises(UserError, match=r"3 pictures can't be used: .*row 1 can't be read as an image, .* remove them"):
        from_parquet(shards(tmp_path / "damaged", pixels=[pixels[0], b"nothing", pixels[2]]))


def test_cifar10_from_some_train_shards(tmp_path: Path) -> None:
    pixels = [encoded(i, (32, 32), "L" if i else "RGB") for i in range(10)]
    names = list(CIFAR10.class_names)
    for name in ("train-00002-of-00005", "test-00000-of-00001"):
        shard(tmp_path / "cifar10" / f"{name}.parquet", list(range(10)), names=names, pixels=pixels)
    data = load(DataConfig(name="cifar10"), tmp_path)
    assert data.image_shape == (3, 32, 32)
    assert data.train.images[:, 2, 9, 9].tolist() == list(range(10))
    with pytest.raises(UserError, match=r"no label column \(fine_label\); its columns are img, label"):
        load(DataConfig(name="cifar100"), tmp_path / "cifar10")


def test_another_dataset_is_not_cifar10(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"classes are another dataset's; use data\.name = 'parquet:"):
        load(DataConfig(name="cifar10"), shards(tmp_path, names=["no", "yes"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image": "picture"},
            r"no image column \(img or image or path or file or filename\); its columns are picture, label",
        ),
        ({"label": "kind"}, r"no label column \(label or fine_label or labels or class or target\)"),
        ({"labels": [0.5, 1.0, 2.0]}, "column 'label' is double; expected whole numbers or text"),
        ({"labels": [0, None, 1]}, "1 empty rows; expected whole numbers or text"),
        ({"labels": pa.array([0, 2**63, 1], pa.uint64())}, "'label' has no labels: 9223372036854775808 is too large"),
        ({"labels": pa.array([b"\xff"] * 3).view(pa.string())}, r"can't be read as parquet \(.*UTF8"),
        ({"labels": [0, -1, 1]}, r"train label -1 \(number 1\) is out of range"),
        ({"pixels": [encoded(1), None, encoded(2)]}, r"row 1 can't be read as an image"),
        ({"pixels": [encoded(1), b"junk", encoded(2)]}, r"row 1 can't be read as an image"),
        ({"labels": pa.array([], pa.int64()), "pixels": [], "plain": True}, "has no labelled image"),
    ],
)
def test_bad_parquet(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    for path in shards(tmp_path).glob("train*"):
        shard(path, **{"labels": [0, 1, 1], **options})
    with pytest.raises(UserError, match=message):
        from_parquet(tmp_path)


def test_image_column_of_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"img": [1, 2], "label": [0, 1]}), tmp_path / "train.parquet")
    with pytest.raises(UserError, match="column 'img' is int64; expected encoded images or paths of images"):
        from_parquet(tmp_path)


def test_unreadable_parquet(tmp_path: Path) -> None:
    path = shards(tmp_path) / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"train-00001-of-00002\.parquet can't be read as parquet"):
        from_parquet(tmp_path)


def test_parquet_without_training_shards(tmp_path: Path) -> None:
    for path in shards(tmp_path).glob("train*"):
        path.unlink()
    with pytest.raises(UserError, match=r"neither a file nor a folder with train\*\.parquet"):
        from_parquet(tmp_path)


def test_shards_that_do_not_belong_together(tmp_path: Path) -> None:
    shard(shards(tmp_path / "a") / "train-00000-of-00001.parquet", [0, 1])
    with pytest.raises(UserError, match=r"mixes train shards of \[1, 2\] files"):
        from_parquet(tmp_path / "a")
    shards(tmp_path / "b")
    (tmp_path / "b/test-00000-of-00001.parquet").rename(tmp_path / "b/test-00000-of-00002.parquet")
    with pytest.raises(UserError, match="1 of 2 test shards"):
        from_parquet(tmp_path / "b")
    shard(shards(tmp_path / "c", names=["x", "y"]) / "test-00000-of-00001.parquet", [0, 1], names=["y", "x"])
    with pytest.raises(UserError, match="class names differ"):
        from_parquet(tmp_path / "c")
