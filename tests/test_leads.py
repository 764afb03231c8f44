"""What a report of one's own runs says first: who is ahead, on which classes, and in what the runs differ."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import fednoil, refused
from made_runs import made_run, results_of
from studies import EXPERIMENTS

from fednoil.report import watching
from fednoil.report.html import render
from fednoil.report.leads import class_grids, leads, settings_grid
from fednoil.study.report import STUDY

OWN = {"data": {"name": "folder:photos"}}


def own(path: Path, method: str, accuracy: float, seed: int = 0, **more: Any) -> Path:
    return made_run(path, method, [accuracy] * 8, seed, changes=OWN, **more)


def test_the_first_sentence_is_the_result(tmp_path: Path) -> None:
    for seed in range(3):
        own(tmp_path / f"a{seed}", "fedavg", [60, 61.5, 62][seed], seed, batches=50)
        own(tmp_path / f"b{seed}", "fednoil-logarithm", 70.5 + seed, seed)
    (line,) = leads(results_of(tmp_path))
    assert line.startswith("folder:photos iid (20 clients, 150 rounds, #")
    expected = "ends with 71.50 ± 1.00 % (3 seeds), 10.33 points above fedavg, more than chance"
    assert line.endswith(f": fedavg+fednoil (logarithm) {expected}, with 800 batches instead of 400")
    page = render(results_of(tmp_path), "t")
    assert page.index("10.33 points above fedavg") < page.index("<h2>Results</h2>")
    assert page.index("<h2>Learning curves</h2>") < page.index("<h2>Paired tests</h2>")


def test_chance_a_fall_and_a_run_that_goes_on(tmp_path: Path) -> None:
    for seed in range(3):
        own(tmp_path / f"both/a{seed}", "fedavg", 60 + seed, seed)
        own(tmp_path / f"both/b{seed}", "fednoil-logarithm", [61, 59.5, 63][seed], seed)
    (line,) = leads(results_of(tmp_path / "both"))
    assert line.endswith("above fedavg, maybe by chance")
    made_run(tmp_path / "fall/run", "fedavg", [50, 70, 62, 61, 61, 60, 60, 60], changes=OWN)
    (line,) = leads(results_of(tmp_path / "fall"))
    assert line.endswith("fedavg ends with 60.00 %, after 70.00 % in its best round")
    own(tmp_path / "going/run", "fedavg", 33, finished=False)
    (line,) = leads(results_of(tmp_path / "going"))
    assert line.endswith("fedavg has 33.00 % at round 8 of 150")


def test_a_lead_rests_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    """90, 60, 61 (seeds 0, 1, 2) against 62, 62, 70 (seeds 1, 2, 3): 70.33 against 64.67, but 1.5 less where shared."""
    for seed in range(3):
        own(tmp_path / f"a{seed}", "fedavg", [90, 60, 61][seed], seed)
        own(tmp_path / f"b{seed}", "fedprox", [62, 62, 70][seed], seed + 1)
    (line,) = leads(results_of(tmp_path))
    shared = "1.50 points below fedprox on the seeds they share (1, 2), maybe by chance (a test takes 3 shared seeds)"
    assert line.endswith(f"fedavg ends with 70.33 ± 17.04 % (3 seeds), {shared}")
    page = render(results_of(tmp_path), "t").split("<script>")[0]
    assert re.search(r">1, 2</td>.*>–</td></tr>", page)
    (line,) = leads(results_of(tmp_path / "a0", tmp_path / "b2"))
    assert line.endswith("; fedprox has 70.00 %, with no seed in common")


def test_cells_of_the_paper_have_their_tables_and_claims_instead(tmp_path: Path) -> None:
    made_run(tmp_path / "cell")
    found = results_of(tmp_path)
    assert leads(found) == []
    assert [section.anchor for section in found.sections()] == ["claims"]


def test_classes_by_method(tmp_path: Path) -> None:
    for seed, values in enumerate(([80.0, 0.0, None], [90.0, 0.0, None])):
        known = {"classes": ["cat", "<dog>", "eel"], "per_class_accuracy": values}
        own(tmp_path / f"a{seed}", "fedavg", 60, seed, known=known)
    own(tmp_path / "b", "fednoil-logarithm", 70)  # has recorded none
    (grid,) = class_grids(results_of(tmp_path))
    assert grid.head == ["class", "fedavg"]
    assert grid.lines == [["cat", 85.0], ["<dog>", 0.0], ["eel", None]]
    assert "&lt;dog&gt;" in render(results_of(tmp_path), "t")


def test_sites_have_their_names(tmp_path: Path) -> None:
    own(tmp_path / "a", "fedavg", 60, clients=True, known={"clients": ["nord", "süd", "west"]})
    (run,) = results_of(tmp_path).runs
    assert run.clients.names == ["nord", "süd", "west"]


def test_what_differs_between_runs(tmp_path: Path) -> None:
    own(tmp_path / "a", "fedavg", 60)
    assert settings_grid(results_of(tmp_path)) is None
    made_run(tmp_path / "b", "fedavg", [70] * 8, changes={**OWN, "train": {"lr": 0.2}})
    grid = settings_grid(results_of(tmp_path))
    assert grid is not None
    ((key, *values),) = grid.lines
    assert (key, sorted(values)) == ("train.lr", ["0.05", "0.2"])
    assert "train.lr" in render(results_of(tmp_path), "t").split("<script>")[0]


def test_a_report_follows_a_run_to_its_end(tmp_path: Path) -> None:
    runs, page = tmp_path / "runs", tmp_path / "report.html"
    seen: list[str] = []

    def grow(rounds: int, finished: bool) -> Callable[[], object]:
        def move() -> None:
            seen.append(page.read_text() if page.is_file() else "")
            shutil.rmtree(runs / "a", ignore_errors=True)
            made_run(runs / "a", "fedavg", [50 + r for r in range(rounds)], changes=OWN, finished=finished)

        return move

    left = iter((grow(1, False), grow(2, False), lambda: None, grow(8, True)))
    runs.mkdir()
    watching.follow([runs], page, "Followed", STUDY, lambda: next(left)())
    assert next(left, None) is None
    assert seen[0] == ""  # there was no run yet
    assert ["<body data-watched>" in text for text in seen[1:]] == [True, True]
    assert "has 50.00 % at round 1 of 150" in seen[1]
    assert "has 51.00 % at round 2 of 150" in seen[2]
    last = page.read_text()
    assert "<body data-watched>" not in last
    assert "ends with 57.00 %" in last


def test_runs_that_add_nothing_do_not_keep_a_report_waiting(tmp_path: Path) -> None:
    """The same run twice, one that diverged in its first round, one that can't be read, and a record of runs."""
    runs, page = tmp_path / "runs", tmp_path / "report.html"
    for name in ("a", "again"):
        made_run(runs / name, "fedavg", [60], changes=OWN)
    for name, about in (("diverged", '{"diverged": {"after_round": 0}}'), ("damaged", "{")):
        made_run(runs / name, "fedprox", [60], changes=OWN, finished=False)
        (runs / name / "rounds.jsonl").write_text("")
        (runs / name / "environment.json").write_text(about)
    watching.follow(
        [runs, EXPERIMENTS / "paper/results.parquet"], page, "Followed", STUDY, lambda: pytest.fail("it waits")
    )
    assert "<body data-watched>" not in page.read_text()
    watching.follow([EXPERIMENTS / "paper/results.parquet"], page, "A record", STUDY, lambda: pytest.fail("it waits"))


def test_the_command_watches(tmp_path: Path) -> None:
    own(tmp_path / "run", "fedavg", 60)
    page = tmp_path / "r.html"
    status, out, err = fednoil("report", tmp_path / "run", "--html", page, "--watch")
    assert (status, err) == (0, "")
    assert "after each round; Ctrl-C ends it" in out
    assert page.is_file()
    assert "--watch writes a page again and again; name it with --html" in refused(
        "report", tmp_path / "run", "--watch"
    )
