"""Open-set noise: images of no class among a client's, what they count for, and what can't be done with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import fednoil
from made_labels import true_labels

from fednoil.config.loading import load_config
from fednoil.data.dataset import Dataset, Split
from fednoil.errors import UserError
from fednoil.labels import Labels, Truth
from fednoil.metrics import noise_ratios, outvoted, selection
from fednoil.noise import apply, with_outliers
from fednoil.noise.base import KindConfig
from fednoil.seeds import Seed

PARTS = (np.arange(10), np.arange(10, 20))


def images() -> Dataset:
    """Twenty grey images of three classes, each of one shade under 100."""
    shades = np.arange(20, dtype=np.uint8)[:, None, None, None]
    split = Split(np.broadcast_to(shades, (20, 1, 4, 4)).copy(), np.arange(20) % 3)
    return Dataset("made", split, split, ("a", "b", "c"), (0.5,), (0.5,))


def openset(**keys: object) -> KindConfig:
    return load_config({"noise": {"kind": "openset", "ratios": [0.2], **keys}}).noise


def test_two_of_ten_images_and_two_of_the_other_labels() -> None:
    """n = 10, 0.2 and 0.25: 2 outliers, 2 of the other 8 mislabelled, 6 right."""
    labels, truth = apply(images(), PARTS, openset(closed=0.25), Seed(1))
    for given, true, part in zip(labels.given, true_labels(truth), PARTS, strict=True):
        outside = true == -1
        assert outside.sum() == 2
        assert (given == part % 3)[outside].all()  # an outlier has the label of the image in whose place it is
        assert (given[~outside] != true[~outside]).sum() == 2
        assert (given == true).sum() == 6
    assert noise_ratios(labels, truth) == pytest.approx([0.4, 0.4])


def test_images_of_a_file_take_the_place_of_others(tmp_path: Path) -> None:
    np.save(tmp_path / "others.npy", np.arange(200, 206, dtype=np.uint8)[:, None, None, None].repeat(4, 2).repeat(4, 3))
    config, data = openset(file=str(tmp_path / "others.npy")), images()
    made, (_, truth) = with_outliers(data, PARTS, config, Seed(1)), apply(data, PARTS, config, Seed(1))
    outside = np.concatenate(true_labels(truth)) == -1
    shades = made.train.images[:, 0, 0, 0]
    assert (shades[~outside] < 100).all()
    assert len(set(shades[outside].tolist())) == 4  # six are enough, so none is used twice
    assert (shades[outside] >= 200).all()
    assert (data.train.images < 100).all()
    assert made.hash == data.hash


def test_without_a_file_pixels_are_random() -> None:
    made = with_outliers(images(), PARTS, openset(), Seed(1)).train.images
    assert sorted(np.flatnonzero(made.reshape(20, -1).std(1) > 0) // 10) == [0, 0, 1, 1]
    kept = with_outliers(images(), PARTS, load_config({"noise": {"kind": "symmetric"}}).noise, Seed(1))
    assert kept.train.images.max() < 100


@pytest.mark.parametrize(
    ("array", "line"),
    [
        (np.zeros((3, 1, 4, 5), np.uint8), r"holds uint8 \[3, 1, 4, 5\]; .* must be uint8 \[any number, 1, 4, 4\]"),
        (np.zeros((3, 1, 4, 4)), r"holds float64"),
        (np.zeros((0, 1, 4, 4), np.uint8), r"holds uint8 \[0, 1, 4, 4\]"),
        (np.array([{}]), "cannot be read"),
        (None, "cannot be read .*No such file"),
    ],
)
def test_files_that_are_no_such_images(tmp_path: Path, array: np.ndarray | None, line: str) -> None:
    if array is not None:
        np.save(tmp_path / "x.npy", array)
    with pytest.raises(UserError, match=line):
        apply(images(), PARTS, openset(file=str(tmp_path / "x.npy")), Seed(1))


def test_what_outliers_count_for() -> None:
    """Of three outliers one is drawn in one of two epochs; no pseudo-label of theirs is right."""
    given, true = np.array([0, 1, 1, 2, 2]), np.array([0, 1, -1, -1, -1])
    votes = np.zeros((5, 3))
    votes[1, 1] = votes[3, 2] = 1
    found = selection(np.array([2, 1, 1, 0, 0]), votes, given, true, 2)
    assert found["outliers_rejected"] == pytest.approx(100 * 5 / 6)
    assert found["label_precision"] == pytest.approx(75)
    assert found["pseudo_accuracy"] == pytest.approx(50)
    assert "outliers_rejected" not in selection(np.array([1]), None, np.array([0]), np.array([0]), 1)
    many = Labels((np.full(100, 0),)), Truth((np.full(100, -1),))
    assert outvoted(*many, 3) == {}


def test_a_run_with_outliers(tmp_path: Path) -> None:
    keys = {"noise.kind": "openset", "noise.ratios": "[0.3]", "noise.closed": 0.2, "train.rounds": 2}
    small = {"schedule.name": "constant", "schedule.epochs": 1, "model.width": 2, "run.device": "cpu"}
    sets = [part for key, value in (keys | small).items() for part in ("--set", f"{key}={value}")]
    out = tmp_path / "run"
    assert fednoil("run", "demo", "--out", out, *sets)[0] == 0
    record = json.loads((out / "rounds.jsonl").read_text().splitlines()[-1])
    assert record["selected_noise"] == pytest.approx(44, abs=1.5)
    assert 0 <= record["outliers_rejected"] <= 100
    assert fednoil("audit", out, "--folds", "0")[0] == 0
    status, _, err = fednoil("audit", out, "--budget", "5")
    assert status == 2
    assert "some of this run's images show none of its classes" in err
    manifest = ["--set", "noise.kind=manifest", "--set", f"noise.file={out / 'noise.parquet'}"]
    status, _, err = fednoil("run", "demo", "--out", tmp_path / "again", *manifest)
    assert status == 2
    assert "has images of no class, which it doesn't hold" in err
    assert not (tmp_path / "again").exists()
