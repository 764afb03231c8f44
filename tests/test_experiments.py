"""The page of the baselines: its tables come from the records, and the records from run folders."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import made_runs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fednoil.config import load_config, merge, preset, to_toml
from fednoil.errors import UserError
from fednoil.report.record import write_record
from fednoil.report.runs import load_run

BASELINES = Path(__file__).resolve().parents[1] / "experiments" / "baselines"
NAMES = ("recorded", "run", "table")
RUN = "iid--symmetric-high--fedavg"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The scripts as modules, as they find each other when they run."""
    monkeypatch.syspath_prepend(str(BASELINES))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def made_run(
    folder: Path, accuracies: list[float], *, finished: bool, name: str = "", changes: dict[str, Any] | None = None
) -> Path:
    """A run folder of the preset `name`, else the one that the folder is called by."""
    folder.mkdir(parents=True)
    cell = "/".join(["paper", "fashion-mnist", *(name or folder.name).split("--")])
    (folder / "config.toml").write_text(to_toml(load_config(merge(preset(cell), changes or {}))))
    hashes = dict.fromkeys(("config_hash", "data_hash", "noise_hash"), "abc")
    environment = {"device": "NVIDIA H200", "packages": {"torch": "2.11.0"}, **hashes}
    (folder / "environment.json").write_text(json.dumps(environment))
    rows: list[dict[str, Any]] = [
        {"round": r, "test_accuracy": a, "test_loss": 1.5e13, "train_batches": 10 * r, "wall_s": 2.0}
        | {"clusters": [[0, 1], [2]], "update_norms": [[0.5, 1.25], [0.25, 0.75]], "selected": [0, 2]}
        for r, a in enumerate(accuracies, start=1)
    ]
    labels = {"client": [0, 0, 1, 1, 2, 2], "given": [1, 9, 0, 4, 7, 7], "true": [1, 2, 3, 7, 0, 7]}
    pq.write_table(pa.table(labels), folder / "noise.parquet")
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "summary.json").write_text("{}")
    return folder


def test_the_page_is_what_the_records_say(modules: dict[str, ModuleType]) -> None:
    """`python experiments/baselines/table.py` writes it."""
    table = modules["table"]
    text = (BASELINES / "README.md").read_text(encoding="utf-8")
    parts = table.parts(table.RECORDS)
    assert len(parts["symmetric-high"].splitlines()) == 2 + 14 + 2  # and the picture
    assert len(parts["overview"].splitlines()) == 2 + 14
    assert table.fill(text, parts) == text


def test_the_records_are_of_runs_that_the_presets_plan(modules: dict[str, ModuleType]) -> None:
    recorded = modules["recorded"]
    runs, rounds = recorded.load_runs(), recorded.load_rounds()
    assert runs.keys() == rounds.keys()
    for name, run in runs.items():
        config = load_config(preset("/".join(["paper", "fashion-mnist", *name.split("--")])))
        assert run["planned"] <= config.train.rounds
        assert [r["round"] for r in rounds[name]] == list(range(1, len(rounds[name]) + 1))
        assert run["finished"] == (len(rounds[name]) == run["planned"])
    for noise in modules["run"].NOISES:  # pooled data have another manifest
        mine = {run["noise_hash"] for name, run in runs.items() if noise in name and "centralized" not in name}
        assert len(mine) <= 1


@pytest.mark.parametrize(
    ("accuracies", "planned", "row"),
    [
        # Settled at 52.5: our last less the paper's 58.30, though that is starred; unsettled, our best.
        ([60.3, 50, 51, 52, 52.5, 52.5, 52.5], 150, "7 | 52.50 | 60.30 (1) | yes | 58.30* | -5.8 | 2.00 |"),
        ([60.3, 50, 51, 52, 52.5, 52.5, 40], 150, "7 | 40.00 | 60.30 (1) | no | 58.30* | +2.0 | 2.00 |"),
        ([60.3, 50], None, "**2 of 150** | 50.00 | 60.30 (1) | – | 58.30* | – | 2.00 |"),  # stopped
        ([60.3, 50], 2, "**2 of 150** (planned 2) | 50.00 | 60.30 (1) | – | 58.30* | – | 2.00 |"),
    ],
)
def test_a_row(
    modules: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accuracies: list[float],
    planned: int | None,
    row: str,
) -> None:
    recorded, table = modules["recorded"], modules["table"]
    monkeypatch.setattr(table, "REPRODUCED", tmp_path / "none.parquet")
    changes = {"train": {"rounds": planned or 150}}
    run = made_run(tmp_path / "runs" / "any", accuracies, finished=planned is not None, name=RUN, changes=changes)
    recorded.add(run, tmp_path)
    lines = table.parts(tmp_path)["symmetric-high"].splitlines()
    assert f"| Vanilla FedAvg | `fedavg` | {row}" in lines
    assert "| Vanilla FedProx | `fedprox` | not run | | | | 60.69* | | |" in lines
    assert len({line.count("|") for line in lines[:16]}) == 1
    assert table.parts(tmp_path)["pair-high"] == "Not run yet."


def test_a_run_taken_in_again_replaces_itself(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    recorded = modules["recorded"]
    recorded.add(made_run(tmp_path / "a" / "iid--symmetric-high--fedprox", [70.0], finished=False), tmp_path)
    recorded.add(made_run(tmp_path / "a" / RUN, [60.0], finished=False), tmp_path)
    recorded.add(made_run(tmp_path / "b" / RUN, [61.0, 62.0], finished=True), tmp_path)
    rounds, runs = recorded.load_rounds(tmp_path), recorded.load_runs(tmp_path)
    assert [r["test_accuracy"] for r in rounds[RUN]] == [61.0, 62.0]
    assert (rounds[RUN][1]["clusters"], rounds[RUN][1]["longest_update"]) == (2, 1.25)
    assert rounds[RUN][1]["test_loss"] == 1.5e13
    assert "label_precision" not in rounds[RUN][1]
    assert (runs[RUN]["finished"], runs["iid--symmetric-high--fedprox"]["finished"]) == (True, False)


def test_clusters_are_told_by_the_noise_of_their_clients(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    """Client 0 has 9 for 2, seven classes off; both of client 1 are off by −3, which is 7; client 2 has 7 for 0."""
    recorded, table = modules["recorded"], modules["table"]
    recorded.add(made_run(tmp_path / "iid--pair-high--cfl+josrc", [60.0], finished=False), tmp_path)
    lines = table.parts(tmp_path)["pair-high clusters"].splitlines()
    assert lines[2:] == ["| `cfl+josrc` | 1 | 0: 50 %, 7; 1: 100 %, 7 |", "| `cfl+josrc` | 2 | 2: 50 %, 7 |"]
    recorded.add(made_run(tmp_path / "iid--symmetric-high--cfl+josrc", [60.0], finished=False), tmp_path)
    assert "clusters" not in recorded.load_runs(tmp_path)["iid--symmetric-high--cfl+josrc"]


def test_curves_as_pictures(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    recorded, table = modules["recorded"], modules["table"]
    recorded.add(made_run(tmp_path / RUN, [60.0, 61.0], finished=False), tmp_path)
    paths = table.chart("symmetric-high", recorded.load_rounds(tmp_path), {}, tmp_path)
    assert [path.suffix for path in paths] == [".png", ".svg"]
    assert "fedavg (to round 2)" in paths[1].read_text(encoding="utf-8")


def told_by(run: Path, after: int, reason: str) -> None:
    """Let a run's environment.json say that its training diverged after a round."""
    path = run / "environment.json"
    noted = {"at": "now", "after_round": after, "reason": reason}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"diverged": noted}))


def test_a_run_that_diverged_is_told_from_one_that_was_stopped(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, table = modules["recorded"], modules["table"]
    monkeypatch.setattr(table, "REPRODUCED", tmp_path / "none.parquet")
    said = "client 17 in round 3 has loss nan"
    lost = made_run(tmp_path / "a" / RUN, [60.3, 12.0], finished=False)
    told_by(lost, 2, said)
    recorded.add(lost, tmp_path)
    recorded.add(made_run(tmp_path / "a" / "iid--symmetric-high--fedprox", [70, 71], finished=False), tmp_path)
    assert recorded.load_runs(tmp_path)[RUN]["diverged"] == said
    parts = table.parts(tmp_path)
    assert "**2 of 150** (diverged) | 12.00 | 60.30 (1) | – | 58.30* | – | 2.00 |" in parts["symmetric-high"]
    assert "**2 of 150** | 71.00 | 71.00 (2) | – | 60.69* | – | 2.00 |" in parts["symmetric-high"]
    assert "| Vanilla FedAvg | diverged after round 2 (best 60.30) | 58.30* |  |" in parts["overview"]
    assert "| Vanilla FedProx | 71.00 at round 2 | 60.69* |  |" in parts["overview"]
    paths = table.chart("symmetric-high", recorded.load_rounds(tmp_path), recorded.load_runs(tmp_path), tmp_path)
    text = paths[1].read_text(encoding="utf-8")
    assert "fedavg (diverged after round 2)" in text
    assert "fedprox (to round 2)" in text
    further = made_run(tmp_path / "b" / RUN, [60.3, 12.0, 11.0], finished=False)
    recorded.add(further, tmp_path)  # it has gone on after all
    assert "diverged" not in recorded.load_runs(tmp_path)[RUN]
    for after in (2, 3):  # what a run says counts where it is of its last round
        told_by(further, after, said)
        recorded.add(further, tmp_path)
        assert recorded.load_runs(tmp_path)[RUN].get("diverged") == (said if after == 3 else None)
    whole = made_run(tmp_path / "c" / RUN, [60.3, 12.0], finished=True)
    told_by(whole, 2, said)
    recorded.add(whole, tmp_path)
    assert "diverged" not in recorded.load_runs(tmp_path)[RUN]


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        (RUN, {"server": {"client_fraction": 0.5}}, "server.client_fraction=0.5: none of Table 1's runs"),
        (RUN, {"run": {"seed": 1}}, "has run.seed = 1; this page is of seed 0"),
        (RUN, {"data": {"name": "cifar10"}}, "none of Table 1's runs on Fashion-MNIST"),
    ],
)
def test_what_the_page_does_not_show_is_left_out(
    modules: dict[str, ModuleType], tmp_path: Path, name: str, changes: dict[str, Any], reason: str
) -> None:
    run = made_run(tmp_path / "run", [60.0], finished=True, name=name, changes=changes)
    with pytest.raises(UserError, match=re.escape(reason)):
        modules["recorded"].add(run, tmp_path)
    with pytest.raises(UserError, match="no finished round yet"):
        modules["recorded"].add(made_run(tmp_path / RUN, [], finished=False), tmp_path)
    assert not (tmp_path / "rounds.csv").exists()


def test_all_columns_side_by_side(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run, one stopped, one from seed 0 of the other experiment's record, the rest not run."""
    recorded, table = modules["recorded"], modules["table"]
    for seed, accuracy in ((0, 78.07), (1, 50.0)):
        folder = tmp_path / f"reproduced{seed}"
        made_runs.made_run(folder, "krum+dividemix", [accuracy] * 150, seed)  # rounds of 1.5 s
    write_record([load_run(tmp_path / f"reproduced{seed}") for seed in (0, 1)], tmp_path / "results.parquet")
    monkeypatch.setattr(table, "REPRODUCED", tmp_path / "results.parquet")
    recorded.add(made_run(tmp_path / "a" / "iid--pair-high--krum+dividemix", [70.0] * 7, finished=True), tmp_path)
    stopped = made_run(tmp_path / "b" / "iid--symmetric-low--krum+dividemix", [60.0, 61.5], finished=False)
    recorded.add(stopped, tmp_path)
    parts = table.parts(tmp_path)
    line = next(line for line in parts["overview"].splitlines() if line.startswith("| Krum+DMix"))
    assert line == (
        "| Krum+DMix | 78.07 | 72.18 ± 0.60 | +5.9 | 70.00 | 71.54 ± 1.16 | -1.5 | 61.50 at round 2 | 78.69 ± 1.37 |  "
        "| 3.8, 0.2, 0.1 |"
    )
    assert "| JoSRC (centralized) | not run | 80.66 ± 0.29 |  | not run |" in parts["overview"]
    text = (BASELINES / "README.md").read_text(encoding="utf-8")
    assert "![Accuracy over rounds of Table 1's rows, pair-high" in table.fill(text, parts)
    assert parts["symmetric-high"] == "Not run yet."  # the other record alone makes no table
    paths = table.chart("pair-high", recorded.load_rounds(tmp_path), {}, tmp_path)
    assert "krum+dividemix (to round 7)" in paths[1].read_text(encoding="utf-8")
    assert "fedavg (not run)" in paths[1].read_text(encoding="utf-8")


def test_the_page_on_clients_with_different_classes_is_what_its_results_say(tmp_path: Path) -> None:
    """`python experiments/non-iid/study.py collect RUNS` writes both; figures of no round are left out."""
    folder = BASELINES.parent / "non-iid"
    spec = importlib.util.spec_from_file_location("non_iid_study", folder / "study.py")
    assert spec is not None
    assert spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    text = (folder / "README.md").read_text(encoding="utf-8")
    for setting in study.SETTINGS:
        assert study.table([row for row in rows if row["setting"] == setting]) in text
    study.HERE = tmp_path
    (tmp_path / "README.md").write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in study.SETTINGS))
    for name, accuracies in (("iid--published--0", [50.0] * 12), ("iid--plus--0", [10.0, 20.0] + [52.0] * 10)):
        made_run(tmp_path / name, accuracies, finished=True, name="iid--symmetric-high--fedavg")
    made_run(tmp_path / "iid--published--1", [50.0], finished=False, name="iid--symmetric-high--fedavg")
    study.collect(tmp_path)
    shutil.rmtree(tmp_path / "iid--plus--0")
    study.collect(tmp_path)  # what is recorded stays
    lines = (tmp_path / "README.md").read_text().splitlines()
    keys = "`fednoil-plus`, `learner.explore=0.2`, `learner.aside=0.0`, `server.average=0.0`"
    assert f"| plus | {keys} | 52.0 | +2.0 | – | – | – | – | – |" in lines
    assert not any("seed 1" in line for line in lines)
