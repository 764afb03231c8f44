"""The page of the baselines: its tables come from the records, and the records from run folders."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fednoil.config import load_config, preset

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


def made_run(folder: Path, accuracies: list[float], *, finished: bool) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("[train]\nrounds = 150\n")
    hashes = dict.fromkeys(("config_hash", "data_hash", "noise_hash"), "abc")
    environment = {"device": "NVIDIA H200", "packages": {"torch": "2.11.0"}, **hashes}
    (folder / "environment.json").write_text(json.dumps(environment))
    rows: list[dict[str, Any]] = [
        {"round": r, "test_accuracy": a, "test_loss": 1.5e13, "train_batches": 10 * r, "wall_s": 2.0}
        | {"clusters": [[0, 1], [2]], "update_norms": [[0.5, 1.25], [0.25, 0.75]], "selected": [0, 2]}
        for r, a in enumerate(accuracies, start=1)
    ]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "summary.json").write_text("{}")
    return folder


def test_the_page_is_what_the_records_say(modules: dict[str, ModuleType]) -> None:
    """`python experiments/baselines/table.py` writes it."""
    table = modules["table"]
    text = (BASELINES / "README.md").read_text(encoding="utf-8")
    parts = table.parts(table.RECORDS)
    assert len(parts["symmetric-high"].splitlines()) == 2 + 14
    assert table.fill(text, parts) == text


def test_the_records_are_of_runs_that_the_presets_plan(modules: dict[str, ModuleType]) -> None:
    recorded = modules["recorded"]
    runs, rounds = recorded.load_runs(), recorded.load_rounds()
    assert runs.keys() == rounds.keys()
    for name, run in runs.items():
        config = load_config(preset("/".join(["paper", "fashion-mnist", *name.split("--")])))
        assert run["planned"] == config.train.rounds
        assert [r["round"] for r in rounds[name]] == list(range(1, len(rounds[name]) + 1))
        assert run["finished"] == (len(rounds[name]) == run["planned"])
    assert len({run["noise_hash"] for name, run in runs.items() if "centralized" not in name}) == 1


@pytest.mark.parametrize(
    ("accuracies", "finished", "row"),
    [
        # Settled at 52.5: our last less the paper's 58.30, though that is starred; unsettled, our best.
        ([60.3, 50, 51, 52, 52.5, 52.5, 52.5], True, "7 | 52.50 | 60.30 (1) | yes | 58.30* | -5.8 | 2.00 |"),
        ([60.3, 50, 51, 52, 52.5, 52.5, 40], True, "7 | 40.00 | 60.30 (1) | no | 58.30* | +2.0 | 2.00 |"),
        ([60.3, 50], False, "**2 of 150** | 50.00 | 60.30 (1) | – | 58.30* | – | 2.00 |"),
    ],
)
def test_a_row(
    modules: dict[str, ModuleType], tmp_path: Path, accuracies: list[float], finished: bool, row: str
) -> None:
    recorded, table = modules["recorded"], modules["table"]
    recorded.add(made_run(tmp_path / "runs" / RUN, accuracies, finished=finished), tmp_path)
    lines = table.parts(tmp_path)["symmetric-high"].splitlines()
    assert f"| Vanilla FedAvg | `fedavg` | {row}" in lines
    assert "| Vanilla FedProx | `fedprox` | not run | | | | 60.69* | | |" in lines
    assert len({line.count("|") for line in lines}) == 1


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


def test_curves_as_pictures(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    recorded, table = modules["recorded"], modules["table"]
    recorded.add(made_run(tmp_path / RUN, [60.0, 61.0], finished=False), tmp_path)
    paths = table.chart("symmetric-high", recorded.load_rounds(tmp_path), tmp_path)
    assert [path.suffix for path in paths] == [".png", ".svg"]
    assert "fedavg (to round 2)" in paths[1].read_text(encoding="utf-8")
