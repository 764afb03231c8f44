"""docs/tutorial.ipynb: short, committed with its outputs, and it runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from studies import ROOT, script

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return script(ROOT / "tools" / "run_notebook.py", "run_notebook")


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def kinds(found: list[dict[str, Any]]) -> list[list[str]]:
    return [[output["output_type"] for output in cell["outputs"]] for cell in found]


def test_it_is_short_and_has_its_outputs() -> None:
    lines = [line for cell in cells("code") for line in cell["source"] if line.strip()]
    assert 30 <= len(lines) <= 45
    assert [cell["execution_count"] for cell in cells("code")] == list(range(1, len(cells("code")) + 1))
    assert all(found for found in kinds(cells("code")))
    text = "".join(line for cell in cells("markdown") for line in cell["source"])
    assert all((ROOT / "docs" / link).is_file() for link in re.findall(r"\]\(([^)]+)\)", text))


def test_a_cell_shows_what_a_notebook_would(runner: ModuleType) -> None:
    space: dict[str, Any] = {}
    runner.run_cell("from matplotlib import pyplot", space, 0)  # and closes what other tests left open
    assert runner.run_cell("x = 3", space, 1) == []
    printed, value = runner.run_cell("print(x)\nx + 1", space, 2)
    assert (printed["text"], value["data"]) == (["3\n"], {"text/plain": ["4"]})
    (picture,) = runner.run_cell("from matplotlib import pyplot\n_ = pyplot.subplots()", space, 3)
    assert picture["data"]["image/png"].startswith("iVBOR")
    with pytest.raises(ZeroDivisionError):
        runner.run_cell("1 / 0", space, 4)


@pytest.mark.slow
def test_it_runs(runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the outputs it is committed with; nothing is written. Numbers differ with the version of torch."""
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    monkeypatch.chdir(tmp_path)
    done = [cell for cell in runner.execute(json.loads(NOTEBOOK.read_text()))["cells"] if cell["cell_type"] == "code"]
    assert kinds(done) == kinds(cells("code"))
    printed = ["".join(output["text"]) for cell in done for output in cell["outputs"] if "text" in output]
    estimates, shares = (text for text in printed if "%" in text)
    for line in estimates.splitlines():
        estimated, true = map(float, re.findall(r"([\d.]+)%", line))
        assert abs(estimated - true) < 5, line
    precision, recall = map(int, re.findall(r"(\d+)%", shares))
    assert precision > 85
    assert recall > 80
    assert list(tmp_path.iterdir()) == []
