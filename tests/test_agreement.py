"""Test labels that were held out of the training labels may be wrong, too: what is measured on them is agreement."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import fednoil, tiny_arrays, write_folder
from made_runs import round_record

import fednoil as package
from fednoil.history import AGREEMENT
from fednoil.report.html import render
from fednoil.report.results import load_results
from fednoil.report.text import markdown
from fednoil.rounds.collapse import signs

SMALL = ("--set=model.width=2", "--set=partition.clients=2", "--set=schedule.name=constant", "--set=schedule.epochs=1")
SMALL = (*SMALL, "--set=train.rounds=8", "--set=run.device=cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on a folder without test images, and what it prints."""
    folder = tmp_path_factory.mktemp("agreement")
    data = write_folder(folder / "data", tiny_arrays(), ("a", "b", "c", "d"))
    shutil.rmtree(data / "test")
    out = folder / "run"
    status, printed, err = fednoil("run", "demo/fedavg", f"--set=data.name=folder:{data}", *SMALL, f"--out={out}")
    assert status == 0, err
    return out, printed


def test_a_run_reports_agreement(run: tuple[Path, str]) -> None:
    out, printed = run
    assert "round 1/8  agreement " in printed
    assert f"final {AGREEMENT} " in printed
    assert "accuracy" not in printed.replace("not accuracy", "")
    assert json.loads((out / "summary.json").read_text())["measure"] == AGREEMENT
    assert all(json.loads(line)["on_held_out"] for line in (out / "rounds.jsonl").read_text().splitlines())


def test_so_does_what_is_made_of_it(run: tuple[Path, str]) -> None:
    out, _ = run
    read = package.load(out)
    assert f"{AGREEMENT} {read.accuracy:.2f} %" in repr(read)
    both = package.compare(read)
    assert both.title.startswith(f"{AGREEMENT.capitalize()} in percent")
    assert both.plot().get_ylabel() == f"{AGREEMENT}, %"
    results = load_results([out])
    assert f"{AGREEMENT.capitalize()}: mean" in markdown(results)
    page = render(results, "t")
    assert f'"test_accuracy":"{AGREEMENT}, %"' in page.replace('": "', '":"')
    assert f"% {AGREEMENT}" in page


def test_beside_a_run_with_test_images_both_are_named(run: tuple[Path, str], trained: Path) -> None:
    title = package.compare(run[0], trained / "run").title
    assert title.startswith(f"Test accuracy ({AGREEMENT} where a run had no test images) in percent")


def test_a_collapse_is_one_of_agreement() -> None:
    records = [round_record(n, test_accuracy=value, on_held_out=True) for n, value in enumerate([60.0, 30.0, 30.0], 1)]
    assert signs(records, ()) == [f"{AGREEMENT} has fallen to 30.0 %, from 60.0 % in round 1"]
