"""Figures: the numbers are those of the runs, and the files can be read."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from made_runs import made_run, results_of
from PIL import Image

from fednoil.figures.drawing import Line, _without_start
from fednoil.schedules import Logarithm
from fednoil.study.figures import FIGURES
from fednoil.study.figures.ablation import Ablation
from fednoil.study.figures.efficiency import Efficiency
from fednoil.study.figures.schedules import Schedules
from fednoil.study.figures.tradeoff import TradeOff, Triple, _ticks
from fednoil.study.grounds import Grounds
from fednoil.study.plan import GOALS, PlanOptions, make_plan


def lines_of(folder: Path) -> list[Line]:
    grounds = Grounds(results_of(folder))
    return Efficiency().lines(grounds, next(iter(grounds)))


def triples_of(folder: Path) -> list[Triple]:
    grounds = Grounds(results_of(folder))
    return TradeOff().triples(grounds, next(iter(grounds)))


def test_every_figure_is_a_goal_and_draws_what_it_plans() -> None:
    for name, figure in FIGURES.items():
        assert GOALS[name] is figure.goal
        assert figure.goal.figure == name


def test_schedules_are_those_of_the_formula() -> None:
    lines = {line.name: line for line in Schedules().lines(200)}
    assert set(lines) == {f"{form}({r})" for form in ("Cosine", "Logarithm") for r in (10, 20, 40, 80)}
    schedule = Logarithm(Logarithm.Config(epochs=100, t_min=20, r_min=40))
    assert lines["Logarithm(40)"].y.tolist() == [schedule.epochs(r) for r in range(1, 201)]


def test_efficiency_over_rounds_and_batches(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fednoil-cosine", [50, 60, 70, 70, 70, 70], seed=0, batches=100)
    made_run(tmp_path / "b", "fednoil-cosine", [54, 62, 72, 72, 72, 72], seed=1, batches=100)
    made_run(tmp_path / "c", "fednoil-constant-as-cosine(80)", [40, 50, 60, 60, 60, 60], batches=120)
    lines = {(line.panel, line.name): line for line in lines_of(tmp_path)}
    rounds = lines["Cosine, over rounds", "Cosine(80)"]
    assert rounds.y.tolist() == [52, 61, 71, 71, 71, 71]
    assert (rounds.low[0], rounds.high[0], rounds.seeds) == (50, 54, 2)
    batches = lines["Cosine, over training batches", "Constant(80)"]
    assert batches.x.tolist() == [120, 240, 360, 480, 600, 720]
    assert batches.dashed
    assert not rounds.dashed


def test_the_small_scale_shows_its_own_r_min(tmp_path: Path) -> None:
    """The paper's 10, 20, 40, 80 are 2, 3, 4, 5 there, in every legend and title."""
    assert [line.name for line in Schedules().lines(8, small=True)][:4] == [f"Cosine({r})" for r in (2, 3, 4, 5)]
    for method in ("fednoil-cosine(40)", "fednoil-cosine", "fednoil-constant-as-cosine(80)"):
        made_run(tmp_path / method, method, where=("small", "", "iid", "symmetric-high"))
    assert {line.name for line in lines_of(tmp_path)} == {"Cosine(4)", "Cosine(5)", "Constant(5)"}
    assert {t.name for t in triples_of(tmp_path)} == {"Cosine(4)", "Cosine(5)", "Constant, as Cosine(5)"}


def test_a_steep_start_leaves_room_for_what_comes_after() -> None:
    def line(values: list[float]) -> Line:
        y = np.array(values)
        return Line("p", "n", np.arange(len(y)), y, y - 1, y + 1, 2)

    climbs, falls = line([10.0, 40.0] + [80.0, 84.0] * 19), line([80.0, 84.0] * 19 + [40.0, 10.0])
    low, high = _without_start([climbs]) or (0, 0)
    assert 78 < low < 79
    assert 85 < high < 86
    assert _without_start([climbs, falls]) is None  # a fall is never cut off
    assert _without_start([line([78.0, 80.0] + [80.0, 84.0] * 19)]) is None


def test_ticks_are_what_they_say() -> None:
    """Round numbers where they are, and the ends as they are: no 2.5 that reads 2."""
    plt = pytest.importorskip("matplotlib.pyplot")
    assert _ticks(plt, 1, 8) == [1, 2, 4, 6, 8]
    assert _ticks(plt, 1, 4) == [1, 2, 3, 4]
    assert _ticks(plt, 42.66, 80.2) == [42.7, 50, 60, 70, 80]


def test_every_run_of_the_trade_off_is_drawn(tmp_path: Path) -> None:
    plan = make_plan("tradeoff", PlanOptions())
    for cell in plan:
        made_run(tmp_path / cell.folder, cell.place.method, where=("paper", "cifar10", "iid", "symmetric-high"))
    names = {t.name for t in triples_of(tmp_path)}
    assert len(names) == len(plan) == 7


def test_the_trade_off_has_a_triple_for_each_round(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fednoil-logarithm", [50, 60, 70], batches=10)
    made_run(tmp_path / "b", "fednoil-logarithm(20)", [40, 50, 60], batches=5)
    triples = [t for t in triples_of(tmp_path) if t.panel == "Logarithm 20, 40, 80"]
    assert [(t.name, t.round, t.batches, t.accuracy) for t in triples if t.name == "Logarithm(20)"] == [
        ("Logarithm(20)", 1, 5, 40),
        ("Logarithm(20)", 2, 10, 50),
        ("Logarithm(20)", 3, 15, 60),
    ]


@pytest.mark.parametrize("figure", ["efficiency", "tradeoff", "ablation"])
def test_files_are_written_with_their_numbers(tmp_path: Path, figure: str) -> None:
    methods = ["fednoil-logarithm", "fednoil-cosine", "fednoil-cosine(40)", "fednoil-uniform-local"]
    for method in methods:
        made_run(tmp_path / "runs" / method, method, selected_noise=60.0, label_precision=80.0, label_recall=75.0)
    files = FIGURES[figure].make(results_of(tmp_path / "runs"), tmp_path / "figures", 0, False)
    name = f"{figure}-paper-fashion-mnist-iid-symmetric-high"
    assert sorted(f.name for f in files) == [f"{name}.{ending}" for ending in ("csv", "pdf", "png", "svg")]
    svg = (tmp_path / "figures" / f"{name}.svg").read_text()
    assert ">round" in svg or ">rounds" in svg  # text stays text
    with Image.open(tmp_path / "figures" / f"{name}.png") as picture:
        assert min(picture.size) > 400
    assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    with (tmp_path / "figures" / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 16
    again = {f: f.read_bytes() for f in files}
    FIGURES[figure].make(results_of(tmp_path / "runs"), tmp_path / "figures", 0, False)
    assert all(f.read_bytes() == content for f, content in again.items())


def test_one_line_makes_no_figure(tmp_path: Path) -> None:
    made_run(tmp_path / "runs/a", "fednoil-logarithm", selected_noise=60.0)
    found = results_of(tmp_path / "runs")
    grounds = Grounds(found)
    assert Ablation().lines(grounds, next(iter(grounds)))
    assert Ablation().make(found, tmp_path / "figures") == []
