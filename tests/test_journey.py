"""Somebody with own pictures and a few sites: from a list of files to relabelled pictures and a better model."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import done
from PIL import Image

from fednoil import load, metrics

CLASSES = ("across", "down", "dots")
SITES = {"nord": 0.05, "süd": 0.16, "west": 0.32}  # shares of wrong labels


def drawn(kind: int, rng: np.random.Generator) -> Image.Image:
    """Stripes or dots of two colours, of any size, with noise."""
    height, width = rng.integers(20, 70, 2)
    period = rng.uniform(0.2, 0.35)
    y, x = np.mgrid[0:height, 0:width] / np.array([height, width])[:, None, None]
    waves = (np.sin(2 * np.pi * y / period), np.sin(2 * np.pi * x / period))
    shade = (waves[0], waves[1], 2 * waves[0] * waves[1])[kind][..., None] > 0
    first, second = rng.integers(0, 256, (2, 3))
    pixels = np.where(shade, first, second) + rng.normal(0, 35, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def pictures(folder: Path, each: int, seed: int = 0) -> dict[str, str]:
    """Three sites' pictures and their list; returns the true class of each path."""
    rng, rows, true = np.random.default_rng(seed), [], {}
    folder.mkdir()
    for site, share in SITES.items():
        for number in range(each):
            kind, held = number % 3, number >= 0.8 * each
            wrong = not held and rng.random() < share
            path = f"{site}-{number:03d}.png"
            drawn(kind, rng).save(folder / path)
            label = CLASSES[(kind + rng.integers(1, 3)) % 3] if wrong else CLASSES[kind]
            rows.append({"path": path, "label": label, "site": site, "split": "test" if held else "train"})
            true[path] = CLASSES[kind]
    write(folder / "list.csv", rows)
    return true


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def carried_out(data: Path, out: Path, *more: str, rounds: int = 12) -> float:
    keys = {"data.name": f"csv:{data}", "data.size": 24, "train.rounds": rounds, "model.width": 8, "train.pad": 2}
    keys |= {"schedule.name": "constant", "schedule.epochs": 4, "run.device": "cpu"}
    sets = [f"--set={key}={value}" for key, value in keys.items()]
    done("run", "demo", *sets, *more, "--out", out, "-q")
    return float(json.loads((out / "summary.json").read_text())["final_accuracy"])


def test_all_of_a_few_sites_train_in_every_round_and_the_first_line_says_so(tmp_path: Path) -> None:
    pictures(tmp_path / "data", 15)
    args = ["--set", f"data.name=csv:{tmp_path}/data/list.csv", "--set", "data.size=8", "--set", "model.width=2"]
    args += ["--set", "train.rounds=2", "--set", "schedule.epochs=1", "--device", "cpu"]
    out = done("run", "demo", *args, "--out", tmp_path / "run")
    assert "3 clients" in out.splitlines()[0]
    assert "all train in a round" in out.splitlines()[0]
    assert load(tmp_path / "run").history["selected"] == [[0, 1, 2]] * 2
    assert load(tmp_path / "run").summary["clients"] == list(SITES)


def found(audit: Path, true: dict[str, str]) -> float:
    """The AUROC of an audit, by labels that the run never saw."""
    rows = read(audit / "labels.csv")
    wrong = np.array([true[row["item"]] != row["given"] for row in rows])
    chance = np.array([float(row["p_wrong"]) for row in rows])
    return metrics.detection(chance, chance > 0.5, wrong)["auroc"]


@pytest.mark.slow
def test_from_a_list_to_relabelled_pictures(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Its test images have true labels. Central: cross-entropy on pooled data, which nobody may pool."""
    true = pictures(tmp_path / "data", 150)
    data, run = tmp_path / "data/list.csv", tmp_path / "run"
    before = carried_out(data, run)
    done("audit", run, "--folds", 4)
    central = ("server.name=centralized", "sampling.name=uniform", "learner.name=erm")
    alone = carried_out(data, tmp_path / "central", *(f"--set={key}" for key in central))
    done("audit", tmp_path / "central", "--folds", 4)
    federated, pooled = (found(path / "audit-folds-4", true) for path in (run, tmp_path / "central"))
    assert federated > 0.9
    assert federated > pooled - 0.01
    noise = {
        e["client"]: e["noise_ratio"] for e in json.loads((run / "audit-folds-4/summary.json").read_text())["clients"]
    }
    assert noise["nord"] < noise["süd"] < noise["west"]
    decisions = [
        {k: row[k] for k in ("client", "item", "index", "given")}
        | {"decision": "reject" if true[row["item"]] == row["given"] else "change", "label": true[row["item"]]}
        for row in read(run / "audit-folds-4/labels.csv")
        if row["flagged"] == "true"
    ]
    write(tmp_path / "decisions.csv", decisions)
    fixed = tmp_path / "fixed"
    args = ("relabel", "--data", f"csv:{data}", "--decisions", tmp_path / "decisions.csv", "--out", fixed)
    done(*args)
    after = carried_out(next(fixed.glob("*.csv"), fixed), tmp_path / "again")
    record_property(
        "figures", f"AUROC {federated:.4f}, central {pooled:.4f}; accuracy {before}, {after}; central {alone}"
    )
    assert after > max(before, alone)
