"""The committed results: the page's tables are those of the record, and a recorded run stays as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
from made_runs import made_run, results_of
from studies import EXPERIMENTS, ROOT, script

from fednoil.report.record import read_record
from fednoil.report.results import Results
from fednoil.study.report import STUDY

FOLDER = EXPERIMENTS / "paper"
PAIR_LOW = ("paper", "fashion-mnist", "iid", "pair-low")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return script(FOLDER / "build.py", "build_results")


def test_the_pages_are_what_the_record_says(build: ModuleType) -> None:
    found = Results(read_record(FOLDER / "results.parquet", STUDY), study=STUDY)
    assert (FOLDER / "results.csv").read_text() == build.csv_text(found.runs)
    parts, page = build.parts(found), (FOLDER / "README.md").read_text()
    assert all(page.count(f"<!-- {name} -->") == 1 for name in parts if name != "headline")
    for readme in (FOLDER / "README.md", ROOT / "README.md"):
        assert build.fill(readme.read_text(), parts, once=False) == readme.read_text(), "run `make results`"
    assert (ROOT / "README.md").read_text().count("<!-- headline -->") == 1
    apart = [run for run in found.runs if run.place.setting == "non-iid"]
    assert not any(build.version(run).startswith("0.1") for run in apart)  # made with a split that was wrong


def test_runs_are_added_and_recorded_ones_stay_as_they_were(build: ModuleType, tmp_path: Path) -> None:
    """A longer run takes the place of a shorter one; the old row's configuration keeps its own text."""
    record = tmp_path / "results.parquet"
    made_run(tmp_path / "one/a", "fednoil-cosine", [70, 71, 72], where=PAIR_LOW, finished=False, precision="bfloat16")
    made_run(tmp_path / "one/b", "fedavg", [60, 61, 62, 63, 64, 65], where=PAIR_LOW, precision="bfloat16")
    pq.write_table(build.collect([tmp_path / "one"], record), record)
    rows = pq.read_table(record).to_pylist()
    old = next(row for row in rows if row["name"] == "b")
    spelled = json.dumps(json.loads(old["config"]), indent=1)  # the same values in another spelling
    table = pq.read_table(record)
    changed = [{**row, "config": spelled if row["name"] == "b" else row["config"]} for row in rows]
    pq.write_table(table.from_pylist(changed, table.schema), record)
    made_run(tmp_path / "two/c", "fednoil-cosine", [84.5] * 8, where=PAIR_LOW, precision="bfloat16")
    found = build.collect([tmp_path / "two"], record).to_pylist()
    assert sorted(row["name"] for row in found) == ["b", "c"]
    assert next(row for row in found if row["name"] == "b")["config"] == spelled


def test_cells_by_hand(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper has 84.73 ± 0.53 (Cosine), 85.22 ± 0.50 (Logarithm) and for FedAvg no spread."""
    for seed, accuracy in enumerate((84.5, 85.0, 85.5)):
        made_run(tmp_path / f"near{seed}", "fednoil-cosine", [accuracy] * 8, seed, where=PAIR_LOW)
        made_run(tmp_path / f"far{seed}", "fednoil-logarithm", [accuracy + 4] * 8, seed, where=PAIR_LOW)
    made_run(tmp_path / "fallen", "fedavg+josrc", [80.0] + [10.0] * 7, where=PAIR_LOW)
    made_run(tmp_path / "moving", "fedavg", [60.0, 80.0, 50.0, 60.0, 50.0, 60.0, 50.0], where=PAIR_LOW)
    made_run(tmp_path / "stopped", "krum+josrc", [60.0, 50.0], where=PAIR_LOW, finished=False)
    other = {("iid", "pair-low"): [85.0, 85.5], ("non-iid", "pair-low"): [84.0]}
    same = {("iid", "pair-low"): [80.0], ("non-iid", "pair-low"): [83.0, 83.2]}
    made_run(tmp_path / "apart", "fedavg", [60.0] * 8, where=(*PAIR_LOW[:2], "non-iid", "pair-low"))
    monkeypatch.setattr(build, "readings", lambda reading, _method=None: {"total": other, "each": same}[reading])
    monkeypatch.setattr(build, "of_default", lambda: {("iid", "pair-low"): [89.0, 89.5]})
    parts = build.parts(results_of(tmp_path))
    lines = parts["results"].splitlines()
    assert lines[0] == "|  | iid pair-low | non-iid pair-low |"
    assert (
        "| FedNoiL(Cosine) | 85.00 ± 0.50 (3; paper ≈ 84.73 ± 0.53) | 83.10 ± 0.14 (2; paper 84.36 ± 0.29) |" in lines
    )
    assert (
        "| FedNoiL(Logarithm) | 89.00 ± 0.50 (3; paper 85.22 ± 0.50) | 83.10 ± 0.14 (2; paper 84.75 ± 0.42) |" in lines
    )
    assert any(line.startswith("| FedAvg+JoSRC | 10.00 (1; best 80.00; paper ") for line in lines)
    assert any(line.startswith("| Vanilla FedAvg | 80.00* (1; last 50.00; paper ") for line in lines)
    assert any(line.startswith("| Krum+JoSRC | 50.00 (1; at round 2 of 150; best 60.00; paper ") for line in lines)
    assert parts["headline"].splitlines()[2:] == [
        "| iid, pair-low | 50.00 (80.00) | 89.00 ± 0.50 (n = 3) | 85.25 ± 0.35 (n = 2) ≈ | 89.25 ± 0.35 (n = 2) "
        "| 85.22 ± 0.50 |",
        "| non-iid (β = 1), pair-low | 60.00 (60.00) | 83.10 ± 0.14 (n = 2) | 84.00 (n = 1) | – | 84.75 ± 0.42 |",
    ]


def test_another_shift_has_a_line_of_its_own(build: ModuleType, tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fednoil-logarithm", [85.0] * 8, where=PAIR_LOW)
    made_run(tmp_path / "b", "fednoil-logarithm", [83.0] * 8, where=PAIR_LOW, changes={"train": {"pad": 4}})
    parts = build.parts(results_of(tmp_path))
    assert "| FedNoiL(Logarithm), 4-pixel shifts | 83.00 (1; paper 85.22 ± 0.50) |" in parts["results"]
    assert "| iid, pair-low | – | 85.00 (n = 1) | " in parts["headline"]
