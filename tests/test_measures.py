"""Measures beside accuracy: against scikit-learn and by hand, in records, summaries, files and Python."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import fednoil, refused
from test_vectors import patients

import fednoil as package
from fednoil.executors.local import Workbench
from fednoil.measures import Measures, mean_measures, measure
from fednoil.rounds import final
from fednoil.tensors import Tensors


@pytest.mark.parametrize("classes", [2, 5])
def test_they_are_scikit_learns(classes: int) -> None:
    """With ties, and with classes of very different sizes."""
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(classes)
    labels = np.sort(rng.integers(0, classes, 300) * rng.integers(0, 2, 300))
    labels[:classes] = np.arange(classes)
    logits = (rng.normal(size=(300, classes)) + 1.5 * np.eye(classes)[labels]).round(1)
    found = measure(torch.tensor(logits), torch.tensor(labels))
    chances = torch.softmax(torch.tensor(logits), 1).numpy()
    predicted = chances.argmax(1)
    assert found.overall["balanced_accuracy"] == pytest.approx(100 * sklearn.balanced_accuracy_score(labels, predicted))
    assert found.overall["macro_f1"] == pytest.approx(100 * sklearn.f1_score(labels, predicted, average="macro"))
    assert np.array_equal(found.confusion, sklearn.confusion_matrix(labels, predicted))
    assert found.accuracy == pytest.approx(100 * sklearn.accuracy_score(labels, predicted))
    one_by_one = [sklearn.roc_auc_score(labels == c, chances[:, c]) for c in range(classes)]
    assert found.auroc_by_class == pytest.approx(one_by_one)
    shares = sklearn.precision_recall_fscore_support(labels, predicted, zero_division=0)
    for own, theirs in zip((found.precision, found.recall, found.f1), shares, strict=False):
        assert [value or 0.0 for value in own] == pytest.approx(100 * theirs)


def test_calibration_by_hand() -> None:
    """Two samples with confidence 0.6, one of them right, and two with 0.9, both right: (0.1 + 0.1) / 2 apart."""
    chances = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [0.1, 0.9]])
    found = measure(chances.log(), torch.tensor([0, 1, 0, 1]))
    assert found.calibration_error == pytest.approx(10.0)


def test_what_has_no_meaning_is_none() -> None:
    found = measure(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 0]))
    assert found.recall == (pytest.approx(200 / 3), None, None)
    assert found.precision == (100.0, 0.0, None)
    assert found.auroc_by_class == (None, None, None)
    assert found.overall["auroc"] is None
    assert found.overall["macro_f1"] == pytest.approx((80 + 0) / 2)


def test_several_models_by_their_weights() -> None:
    a = Measures(((2.0, 0.0), (0.0, 2.0)), (1.0, None), 10.0)
    b = Measures(((0.0, 2.0), (0.0, 2.0)), (0.5, 0.5), 30.0)
    both = mean_measures([a, b], [1.0, 3.0])
    assert both.confusion == ((0.5, 1.5), (0.0, 2.0))
    assert both.auroc_by_class == (0.625, None)
    assert both.calibration_error == 25.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table whose sites have test rows of their own."""
    folder = tmp_path_factory.mktemp("measures")
    path = patients(folder / "patients.csv")
    keys = ("--set=model.name=linear", "--set=train.rounds=3", "--set=run.device=cpu", "--quiet")
    status, _, err = fednoil("run", "demo/fedavg", f"--set=data.name=table:{path}", *keys, "--out", folder / "run")
    assert (status, err) == (0, "")
    return folder / "run"


def test_records_summary_and_file_agree(made: Path) -> None:
    records = [json.loads(line) for line in (made / "rounds.jsonl").read_text().splitlines()]
    summary, whole = (json.loads((made / name).read_text()) for name in ("summary.json", "measures.json"))
    for name in ("balanced_accuracy", "macro_f1", "auroc", "calibration_error"):
        assert records[-1][name] == summary[name] == pytest.approx(whole["test"][name], abs=1e-3)
    confusion = np.array(whole["test"]["confusion"])
    assert confusion.sum() == whole["test"]["samples"] == 40
    assert 100 * np.diag(confusion).sum() / 40 == pytest.approx(summary["final_accuracy"])
    assert whole["test"]["per_class"]["recall"] == pytest.approx(summary["per_class_accuracy"])
    assert whole["clients_on"] == "test samples"
    clients = whole["clients"]
    assert set(clients) == {"s0", "s1", "s2", "s3"}
    assert np.array_equal(sum(np.array(one["confusion"]) for one in clients.values()), confusion)
    assert package.load(made).measures == whole
    assert fednoil("report", made, "--html", made.parent / "report.html")[0] == 0
    assert "macro F1, %" in (made.parent / "report.html").read_text()


@pytest.mark.parametrize(("server", "models"), [("fedavg", 1), ("apfl", 4)])
def test_a_model_is_asked_about_the_test_set_once(
    server: str, models: int, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where clients are measured on their own part of it; with models of their own, by each of these."""
    asked, logits = [], Workbench.logits

    def counted(bench: Workbench, model: Tensors, images: torch.Tensor) -> torch.Tensor:
        asked.append(len(images))
        return logits(bench, model, images)

    run = package.run(values, progress=False, set={"server.name": server, "sampling.fraction": 1.0})
    monkeypatch.setattr(Workbench, "logits", counted)
    found = run.measures
    whole, own = found["test"]["samples"], [one["samples"] for one in found["clients"].values()]
    assert asked == [whole] * models + (own if models > 1 else [])
    assert sum(own) == whole


def test_clients_of_a_partition_are_measured_on_their_own_mix_of_classes(tmp_path: Path) -> None:
    """Two classes of ten each, so about a fifth of the test set would be of any client's classes by chance."""
    keys = {"partition.kind": "classes", "partition.classes": 2, "partition.clients": 10, "data.validation": 0.1}
    short: dict[str, Any] = {"model.width": 2, "train.rounds": 1, "schedule.epochs": 1}
    run = package.run("demo/fedavg", set={**keys, **short, "run.device": "cpu"})
    assert run.measures["clients_on"] == "test samples"
    clients = {int(name): np.array(one["confusion"]).sum(1) for name, one in run.measures["clients"].items()}
    assert all(counts[k] > 0 and (counts > 0).sum() <= 2 for k, counts in clients.items())
    assert sum(clients.values()).tolist() == [100] * 10  # pyright: ignore[reportAttributeAccessIssue]


def test_clients_are_measured_on_what_they_hold_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by and by, because it may be more than fits in memory."""
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(20, 3)), np.arange(20) % 2) for name in ("a", "b")}
    keys: dict[str, Any] = {"model.name": "linear", "train.rounds": 1, "data.validation": 0.25}
    run = package.run("demo/fedavg", data=data, set=keys)
    assert "test" not in run.measures
    assert run.measures["clients_on"] == "held-out given labels"
    whole = run.measures["clients"]
    assert {name: one["samples"] for name, one in whole.items()} == {"a": 5, "b": 5}
    monkeypatch.setattr(final, "_COPIED", 1)
    assert final.measured(*run._played(), torch.device("cpu"))["clients"] == whole


def test_a_run_ends_when_held_out_labels_no_longer_gain(tmp_path: Path) -> None:
    """Labels that say nothing: the best round is soon over, and ten more end the run."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(40, 3)), rng.integers(0, 2, 40)) for _ in range(2)]
    keys = {"model.name": "linear", "train.rounds": 60, "data.validation": 0.25, "run.select": "early"}
    keys |= {"schedule.name": "constant", "schedule.epochs": 1}
    run = package.run("demo/fedavg", data=data, out=tmp_path / "run", set=keys)
    best = run.summary["best_by_validation"]["round"]
    assert run.finished
    assert len(run.history) == best + 10 < 60
    assert run.summary["final_round"] == best
    agreed = list(run.history["val_accuracy"])
    assert agreed[best - 1] == max(agreed) > max([*agreed[: best - 1], -math.inf])
    again = package.run(out=tmp_path / "run", resume=True)
    assert again.summary == run.summary
    whole = package.run(out=tmp_path / "run", resume=True, set={"run.select": "best"})
    assert len(whole.history) == 60
    line = refused("run", "demo", "--set=run.select=early")
    assert "run.select = 'early' chooses the round by labels that clients hold out, and data.validation = 0" in line
