"""The committed results: README's tables and figures are those of the record, and nothing is left unsaid."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from made_runs import made_run

from fednoil.report.record import read_record
from fednoil.report.results import Results

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments/reproduce"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_results", FOLDER / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_record_says(build: ModuleType, tmp_path: Path) -> None:
    runs = read_record(FOLDER / "results.parquet")
    found = Results(runs)
    assert (FOLDER / "results.csv").read_text() == build.csv_text(found.runs)
    page = (FOLDER / "README.md").read_text()
    assert all(page.count(f"<!-- {name} -->") == 1 for name in build.parts(found) if name != "picture")
    for readme in (FOLDER / "README.md", ROOT / "README.md"):
        assert build.fill(readme.read_text(), build.parts(found)) == readme.read_text(), "run `make results`"
    build.draw_all(found, tmp_path)
    numbers = {file.name: file.read_text() for file in tmp_path.glob("*.csv")}
    assert numbers == {file.name: file.read_text() for file in (FOLDER / "figures").glob("*.csv")}


def test_runs_are_added_and_what_lacks_is_said(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfinished run has no cell; a finished one replaces it; a changed one is no run of the paper's."""
    monkeypatch.setattr(build, "RECORD", tmp_path / "results.parquet")
    where = ("paper", "fashion-mnist", "iid", "pair-low")
    made_run(tmp_path / "one/a", "fednoil-cosine", [70, 71, 72], where=where, finished=False, precision="bfloat16")
    made_run(
        tmp_path / "one/b", "fednoil-logarithm", where=where, changes={"train": {"rounds": 8}}, precision="bfloat16"
    )
    runs = build.collect([tmp_path / "one"])
    build.write_record(runs, build.RECORD)
    before = build.parts(Results(runs), tmp_path)
    assert "| iid, pair-low | not run | 84.73 ± 0.53 | not run | 85.22 ± 0.50 |" in before["headline"]
    assert "| table1 | fashion-mnist | 0 of 112 | – | all |" in before["not run"]
    assert "at round 3 of 150" in before["tables"]
    made_run(tmp_path / "two/a", "fednoil-cosine", [84.5] * 8, where=where, precision="bfloat16")
    shutil.rmtree(tmp_path / "one")
    runs = build.collect([tmp_path / "two"])
    assert len(runs) == 2
    after = build.parts(Results(runs), tmp_path)
    assert "| iid, pair-low | 84.50 (n = 1) | 84.73 ± 0.53 | not run | 85.22 ± 0.50 |" in after["headline"]
    assert "| table1 | fashion-mnist | 1 of 112 | 1 | iid symmetric-high, iid symmetric-low, iid" in after["not run"]
    assert "non-iid pair-low: all; iid pair-low: `apfl+dividemix`" in after["not run"]
    assert "`fednoil-logarithm`" in after["not run"]
