"""Reports on run folders that are damaged or hold odd numbers: one costs itself, never the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import fednoil, refused
from made_runs import change_rounds, made_run, results_of

from fednoil.report.html import page_data
from fednoil.report.text import markdown


def without(key: str) -> Callable[[dict], dict]:
    return lambda values: {k: v for k, v in values.items() if k != key}


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        ("summary.json", without("converged"), "summary.json is damaged: converged"),
        ("summary.json", without("wall_s"), "summary.json is damaged: wall_s"),
        ("summary.json", lambda s: s | {"final_accuracy": float("nan")}, "final_accuracy: Input should be a finite"),
        ("summary.json", lambda s: s | {"best_accuracy": "x"}, "best_accuracy: Input should be a valid number"),
        ("summary.json", lambda s: s | {"final_accuracy": None}, "was never tested"),
        ("summary.json", lambda s: s | {"rounds": 9}, "it has 8 rounds, the run's summary says 9"),
        ("environment.json", lambda _: [], "environment.json is damaged"),
        ("environment.json", lambda e: e | {"resumed": "no"}, "environment.json is damaged: resumed"),
        ("confusion.json", lambda c: c | {"agreement": ["x"]}, "confusion.json is damaged: agreement.0"),
        ("confusion.json", lambda c: c | {"given_predicted": [[1, 2], [3]]}, "given_predicted is not square"),
        ("measures.json", lambda _: {"clients": {"0": {"accuracy": "high"}}}, "is damaged: clients.0.accuracy"),
    ],
)
def test_a_damaged_file_costs_its_run_alone(tmp_path: Path, file: str, change: Callable, expected: str) -> None:
    made_run(tmp_path / "good", clients=True)
    bad = made_run(tmp_path / "bad", seed=1, clients=True) / file
    bad.write_text(json.dumps(change(json.loads(bad.read_text()) if bad.is_file() else None)))
    found = results_of(tmp_path)
    assert [run.path.name for run in found.runs] == ["good"]
    assert any(expected in line for line in found.warnings), found.warnings


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda records: records[:2] + records[3:], "not 1, 2, 3 … without a gap"),
        (lambda records: records + records, "not 1, 2, 3 … without a gap"),
        (lambda records: records[:4], "it has 4 rounds, the run's summary says 8"),
        (lambda records: [r | {"test_accuracy": float("nan")} for r in records], "test_accuracy is nan in round 1"),
        (lambda records: [r | {"test_accuracy": 1e9} for r in records], "test_accuracy is 1000000000.0 in round 1"),
    ],
)
def test_rounds_that_cannot_be_are_refused(tmp_path: Path, change: Callable, expected: str) -> None:
    change_rounds(made_run(tmp_path / "a"), change)
    assert expected in refused("report", tmp_path)


def test_a_run_that_diverged_is_reported(tmp_path: Path) -> None:
    """Its clients score NaN, its loss overflows, no label is right: all of this is shown as unknown."""
    run = made_run(tmp_path / "a", "fednoil-uniform-local", clients=True)
    odd = {"client_scores": [float("nan")] * 3, "test_loss": float("inf"), "label_precision": None}
    odd["selected_noise"] = float("nan")
    change_rounds(run, lambda records: [record | odd for record in records])
    found = results_of(tmp_path)
    assert found.runs[0].clients.clean_share == [None, None, None]
    assert (found.rows[0].value("precision"), found.rows[0].value("selected_noise")) == (None, None)
    assert "nan" not in markdown(found).lower()
    assert "NaN" not in json.dumps(page_data(found))


def test_a_damaged_record_is_one_line(tmp_path: Path) -> None:
    made_run(tmp_path / "runs/a")
    record = tmp_path / "runs.parquet"
    assert fednoil("report", tmp_path / "runs", "--record", record)[0] == 0
    rows = pq.read_table(record).to_pylist()
    pq.write_table(pa.Table.from_pylist([rows[0] | {"summary": "{}"}], pq.read_schema(record)), record)
    assert "is damaged: final_accuracy" in refused("report", record)
    record.write_bytes(b"PAR1")
    assert "is not a record of runs" in refused("report", record)
