"""Recorded runs: what a folder holds, and that the same seed gives the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import assert_same, fednoil, tiny_arrays
from made_labels import true_labels
from safetensors import safe_open
from safetensors.torch import load_file
from stopped_runs import LISTED, ROUNDS, lines, results, snapshot

from fednoil.config import load_config, read_toml
from fednoil.manifest import read_manifest
from fednoil.reporters import closing

ROUND_KEYS = {
    "round",
    "test_accuracy",
    "test_loss",
    "local_epochs",
    "train_batches",
    "selected",
    "selected_noise",
    "lost_classes",
    "bytes_down",
    "bytes_up",
    "wall_s",
}
SUMMARY_KEYS = {
    "final_accuracy",
    "best_accuracy",
    "last10_accuracy",
    "converged",
    "per_class_accuracy",
    "rounds",
    "train_batches",
    "bytes_down",
    "bytes_up",
    "wall_s",
}


def test_folder_holds_what_is_promised_and_no_more(reference: Path) -> None:
    assert set(snapshot(reference)) == LISTED


def test_rounds_have_the_promised_keys_and_hand_worked_values(reference: Path) -> None:
    records = lines(reference)
    assert [r["round"] for r in records] == [1, 2, 3, 4]
    table = pq.read_table(reference / "noise.parquet").to_pydict()
    client, given, true = (np.array(table[k]) for k in ("client", "given", "true"))
    noise = [100 * np.mean(given[client == k] != true[client == k]) for k in range(4)]
    parameters = (25 * 2 + 2) + (2 * 25 * 4 + 4) + (4 * 2 * 2 * 4 + 4)
    for r in records:
        assert r.keys() >= ROUND_KEYS
        assert len(set(r["selected"])) == 2
        assert r["local_epochs"] == 1
        assert r["train_batches"] == r["round"] * 2 * 3  # 2 clients × ⌈20 / 8⌉ batches
        assert r["bytes_down"] == r["bytes_up"] == 2 * (4 * parameters + 2 * 8)
        assert r["selected_noise"] == pytest.approx(np.mean([noise[k] for k in r["selected"]]))
        assert r["test_accuracy"] in [2.5 * n for n in range(41)]
        assert r["wall_s"] > 0


def test_summary_follows_from_the_rounds(reference: Path) -> None:
    summary, records = json.loads((reference / "summary.json").read_text()), lines(reference)
    accuracies = [r["test_accuracy"] for r in records]
    assert summary.keys() >= SUMMARY_KEYS
    assert summary["final_accuracy"] == accuracies[-1]
    assert summary["best_accuracy"] == max(accuracies)
    assert summary["last10_accuracy"] == pytest.approx(np.mean(accuracies))
    assert np.mean(summary["per_class_accuracy"]) == pytest.approx(accuracies[-1])
    assert len(summary["per_class_accuracy"]) == 4
    assert records[-1]["lost_classes"] == summary["per_class_accuracy"].count(0)
    assert summary["converged"] is None
    assert (summary["rounds"], summary["train_batches"]) == (4, records[-1]["train_batches"])
    assert summary["bytes_up"] == sum(r["bytes_up"] for r in records)


def test_converged_is_known_from_six_rounds_on(toml: Path, tmp_path: Path) -> None:
    still = ["--set", "train.lr=1e-30", "--set", "train.rounds=6"]
    assert fednoil("run", toml, *still, "--out", tmp_path / "r", "--quiet")[0] == 0
    assert json.loads((tmp_path / "r/summary.json").read_text())["converged"] is True


def test_model_file_has_all_that_predict_needs(reference: Path) -> None:
    with safe_open(reference / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["fednoil"])
        assert set(file.keys()) == {f"{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias")}
    config = load_config(read_toml(reference / "config.toml"))
    assert about["architecture"] == {"name": "cnn", "width": 2}
    assert about["class_names"] == ["0", "1", "2", "3"]
    assert about["image_shape"] == [1, 8, 8]
    assert len(about["mean"]) == len(about["std"]) == 1
    assert about["config_hash"] == config.hash()
    server = load_file(reference / f"checkpoint/server-{ROUNDS:06d}-0000.safetensors")
    model = load_file(reference / "model.safetensors")
    assert_same({f"model/{k}": v for k, v in model.items()}, server)


LAYERS = ("conv1", "conv2", "head")


def test_what_has_no_tf32_computes_in_float32(reference: Path, toml: Path, tmp_path: Path) -> None:
    tf32 = ["--set", "run.precision=tf32", "--device", "cpu"]
    assert fednoil("run", toml, *tf32, "--out", tmp_path / "r", "--quiet")[0] == 0
    assert json.loads((tmp_path / "r/environment.json").read_text())["precision"] == "float32"
    assert_same(load_file(reference / "model.safetensors"), load_file(tmp_path / "r/model.safetensors"))


def test_noise_manifest_can_be_read_and_has_the_recorded_hash(reference: Path) -> None:
    summary = json.loads((reference / "summary.json").read_text())
    environment = json.loads((reference / "environment.json").read_text())
    assert environment["precision"] == "float32"  # what `auto` is on a CPU
    metadata = pq.read_schema(reference / "noise.parquet").metadata
    assert metadata[b"noise_hash"].decode() == summary["noise_hash"] == environment["noise_hash"]
    assert metadata[b"data_hash"].decode() == summary["data_hash"] == environment["data_hash"]
    parts, labels, truth = read_manifest(reference / "noise.parquet", tiny_arrays()["y_train"], 4, summary["data_hash"])
    assert sorted(np.concatenate(parts)) == list(range(80))
    assert any((g != t).any() for g, t in zip(labels.given, true_labels(truth), strict=True))


def test_same_seed_is_bit_identical_and_another_is_not(reference: Path, toml: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        assert fednoil("run", toml, "--seed", seed, "--out", tmp_path / name, "--quiet")[0] == 0
    assert results(tmp_path / "same") == results(reference)
    same, other = results(reference), results(tmp_path / "other")
    assert other["noise.parquet"] != same["noise.parquet"]
    assert other["rounds.jsonl"] != same["rounds.jsonl"]
    assert other["model.safetensors"] != same["model.safetensors"]


def test_what_needs_the_truth_is_absent_without_it(toml: Path, tmp_path: Path) -> None:
    status, out, _ = fednoil("run", toml, "--set", "noise.kind=auto", "--out", tmp_path / "r")
    assert status == 0
    assert "noise of" not in out
    assert all("selected_noise" not in line for line in lines(tmp_path / "r"))
    assert "selected_noise" not in (tmp_path / "r/summary.json").read_text()
    assert pq.read_table(tmp_path / "r/noise.parquet").column("true").null_count == 80


@pytest.mark.parametrize(
    ("per_class", "expected"),
    [
        ([50.0, 0.0, 30.0], "no test sample of class 1 is classified correctly"),
        ([0.0, 12.5, 0.0, None], "no test sample of the classes 0, 2 is classified correctly"),
        ([50.0, 0.1, None], ""),
        ([], ""),
    ],
)
def test_a_run_that_lost_a_class_says_so(per_class: list[float | None], expected: str) -> None:
    summary = {"final_accuracy": 27.0, "best_accuracy": 30.0, "wall_s": 1.0, "per_class_accuracy": per_class}
    first, *rest = closing(summary, Path("runs/one"), "this may help").splitlines()
    more = [line for line in rest if line.startswith("no test sample of")]
    assert first == "final accuracy 27.00 %, best 30.00 %, 1.0 s; results in runs/one"
    assert more == ([f"{expected}; this may help"] if expected else [])
    assert (expected in closing(summary, Path("runs/one")).splitlines()) == bool(expected)


@pytest.mark.parametrize(
    ("learner", "advice"),
    [
        ({"name": "fednoil"}, "--set learner.name=fednoil-plus may help"),
        ({"name": "fednoil-plus"}, ""),
        ({"name": "erm"}, ""),
    ],
)
def test_the_learner_knows_what_may_help(learner: dict[str, str], advice: str) -> None:
    assert load_config({"learner": learner}).learner.lost_class_advice() == advice
