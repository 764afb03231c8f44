"""The paper's figures, drawn from runs: numbers first, then pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fednoil.audit.budget import Bought
from fednoil.figures.drawing import draw_lines, draw_trade_off, require_matplotlib
from fednoil.figures.numbers import (
    PANELS,
    Line,
    ablation_lines,
    budget_lines,
    efficiency_lines,
    schedule_lines,
    trade_off,
)
from fednoil.report.results import Results

__all__ = ["FIGURES", "draw", "draw_schedules", "require_matplotlib"]

FIGURES = ("schedules", "efficiency", "tradeoff", "ablation")


def draw_schedules(rounds: int, small: bool, folder: Path) -> list[Path]:
    """Local epochs by round; needs no run."""
    lines = schedule_lines(rounds, small)
    labels = {line.panel: ("round", "local epochs") for line in lines}
    scale = "small" if small else "paper"
    title = f"Local epochs by round, for each r_min ({scale} scale, {rounds} rounds)"
    return draw_lines(lines, title, labels, folder / f"schedules-{scale}")


def draw(figure: str, results: Results, folder: Path) -> list[Path]:
    """One figure for each setting that has the runs it needs; returns the files written."""
    files = []
    for first in results.grounds():
        words = (figure, *first.place.where, *first.place.method_changes, *first.told)
        name = re.sub(r"[^\w-]+", "-", "-".join(words)).strip("-")
        where = ", ".join((first.place.title, *first.place.method_changes, *first.told))
        if figure == "tradeoff":
            triples = trade_off(results, first)
            if len({t.name for t in triples}) > 1:
                files += draw_trade_off(
                    triples, f"Rounds, batches and accuracy, a line for a round\n{where}", folder / name
                )
            continue
        lines = (efficiency_lines if figure == "efficiency" else ablation_lines)(results, first)
        if len({line.name for line in lines}) < 2:
            continue
        labels = {line.panel: _axes(figure, line.panel) for line in lines}
        files += draw_lines(lines, f"{_title(figure, lines)}\n{where}", labels, folder / name)
    return files


def _title(figure: str, lines: list[Line]) -> str:
    """What is drawn; shades are explained only where there are some."""
    fewest, most = min(line.seeds for line in lines), max(line.seeds for line in lines)
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    shade = f" (mean and range of {count} seeds)" if most > 1 else ""
    if figure == "ablation":
        return f"Two-level sampling and either level made uniform{shade}"
    constant = ", dashed: constant epochs of the same total" if any(line.dashed for line in lines) else ""
    return f"Accuracy by r_min{constant}{shade}"


def _axes(figure: str, panel: str) -> tuple[str, str]:
    if figure == "ablation":
        return "round", panel
    return ("round" if panel.endswith("rounds") else "training batches"), PANELS["test_accuracy"]


def draw_budget(results: Sequence[Bought], out: Path) -> list[Path]:
    """What cleaning buys, over the share of labels looked at, the most suspicious first or at random."""
    share = "labels looked at and put right, %"
    labels = {"wrong labels": (share, "wrong labels left, %"), "accuracy": (share, "final test accuracy, %")}
    return draw_lines(budget_lines(results), "What cleaning buys", labels, out)
