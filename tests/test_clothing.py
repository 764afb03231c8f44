"""Clothing1M's layouts, on a generated tree of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import fednoil
from PIL import Image

from fednoil.data import load
from fednoil.errors import UserError

TRAIN = {f"images/{k % 3}/0{k % 2}/{k},shop.jpg": k % 14 for k in range(56)}
TEST = {f"images/9/00/{k}.jpg": k % 14 for k in range(14)}


def tree(root: Path, lists: str = "annotations", pictures: str = "") -> Path:
    """Pictures whose shade is their number, 10 × 16; the lists also name some that are in neither of ours."""
    for number, key in enumerate([*TRAIN, *TEST]):
        path = root / (key.removeprefix("images/") if pictures == "bare" else key)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10, 16), (number, 2 * number, 100)).save(path)
    folder = root / lists
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "noisy_train_key_list.txt").write_text("\n".join(TRAIN) + "\n")
    (folder / "clean_test_key_list.txt").write_text("\n".join(TEST) + "\n")
    both = {"images/5/00/both.jpg": 3}
    for name, known in (("noisy", TRAIN), ("clean", TEST)):
        lines = [f"{key} {label}" for key, label in (known | both).items()]
        (folder / f"{name}_label_kv.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.parametrize(("lists", "pictures"), [("annotations", ""), ("", ""), ("", "bare")])
def test_layouts(tmp_path: Path, lists: str, pictures: str) -> None:
    if pictures == "bare":  # the lists say images/…, and the folder that is named so is the data folder itself
        tree(tmp_path / "images", lists, pictures)
        data = load("clothing1m", tmp_path / "images")
    else:
        data = load("clothing1m", tree(tmp_path / "clothing1m", lists).parent)
    assert (len(data.train), len(data.test), data.image_shape[0]) == (56, 14, 3)
    assert data.train.labels.tolist() == list(TRAIN.values())
    assert data.test.labels.tolist() == list(TEST.values())
    assert data.class_names[:2] == ("T-Shirt", "Shirt")
    shades = data.train.images[:, 0].reshape(56, -1).mean(1)
    assert np.abs(shades - np.arange(56)).max() < 3
    assert data.about.items[1] == "images/1/01/1,shop.jpg"


def test_names_of_classes_from_a_file(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "annotations/category_names_eng.txt").write_text("\n".join(f"kind {k}" for k in range(14)))
    assert load("clothing1m", tmp_path).class_names[3] == "kind 3"


def test_a_run_without_known_truth(tmp_path: Path) -> None:
    keys = {"partition.clients": 2, "train.rounds": 1, "model.width": 2, "data.size": 8, "run.device": "cpu"}
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    where = ("--set", "data.name=clothing1m", "--data-dir", tree(tmp_path / "data"))
    assert fednoil("run", "demo/fedavg", *where, *sets, "--out", tmp_path / "run")[0] == 0
    assert 'kind = "unknown"' in (tmp_path / "run/config.toml").read_text()


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("noisy_label_kv.txt", None, "has no noisy_label_kv.txt beside the other lists"),
        ("noisy_label_kv.txt", "images/0/00/0,shop.jpg 14\n", "line 1: .* must be a picture and a number below 14"),
        ("noisy_label_kv.txt", "word\n", "line 1: 'word' must be a picture and a number"),
        ("noisy_label_kv.txt", "images/x.jpg 3\n", "'images/0/00/0,shop.jpg' has no label in noisy_label_kv.txt"),
        ("noisy_train_key_list.txt", "", "noisy_train_key_list.txt is empty"),
        ("clean_test_key_list.txt", "images/9/00/0.jpg\n", "has no picture 'images/9/00/0.jpg'.*; unpack 9.tar"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, name: str, text: str | None, line: str) -> None:
    tree(tmp_path)
    path = tmp_path / "annotations" / name
    path.unlink() if text is None else path.write_text(text)
    if "unpack" in line:
        (tmp_path / "images/9/00/0.jpg").unlink()
        (tmp_path / "images/9.tar").touch()
    with pytest.raises(UserError, match=line) as refused:
        load("clothing1m", tmp_path)
    assert "\n" not in str(refused.value)
