"""Accuracy over rounds and over batches: decaying epochs (solid) and constant ones of the same total (dashed)."""

from __future__ import annotations

from collections.abc import Sequence

from fednoil.figures.drawing import Line
from fednoil.report.results import Row
from fednoil.study.figures.base import ACCURACY, R_MIN, LineFigure, line_of, shown_r_min
from fednoil.study.goals import Goal
from fednoil.study.grounds import Grounds
from fednoil.study.places import schedule_methods

SCHEDULE_METHODS = ("fednoil-cosine", "fednoil-logarithm", *schedule_methods())


class Efficiency(LineFigure):
    name = "efficiency"
    goal = Goal("Figure: accuracy over rounds and over batches", methods=SCHEDULE_METHODS, figure="efficiency")

    def lines(self, grounds: Grounds, first: Row) -> list[Line]:
        found = []
        for form in ("cosine", "logarithm"):
            for r_min in R_MIN:
                decay = f"fednoil-{form}" if r_min == 80 else f"fednoil-{form}({r_min})"
                for method, dashed in ((decay, False), (f"fednoil-constant-as-{form}({r_min})", True)):
                    row = grounds.find(first, method)
                    if row is None:
                        continue
                    shown = shown_r_min(r_min, first.place.family == "small")
                    name = f"{'Constant' if dashed else form.capitalize()}({shown})"
                    for over in ("round", "train_batches"):
                        panel = f"{form.capitalize()}, over {'rounds' if over == 'round' else 'training batches'}"
                        found.append(line_of(row, "test_accuracy", over, panel, name, str(r_min), dashed))
        return found

    def title(self, lines: Sequence[Line]) -> str:
        constant = ", dashed: constant epochs of the same total" if any(line.dashed for line in lines) else ""
        return f"Accuracy by r_min{constant}"

    def axes(self, panel: str) -> tuple[str, str]:
        return ("round" if panel.endswith("rounds") else "training batches"), ACCURACY
