"""Local epochs by round, for each schedule: the one figure that needs no run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fednoil import schedules
from fednoil.figures.drawing import Line, draw_lines
from fednoil.report.results import Results
from fednoil.study.figures.base import Figure, shown_r_min
from fednoil.study.goals import Goal
from fednoil.study.paper import FIGURE_SCHEDULES
from fednoil.study.places import decay_of


class Schedules(Figure):
    """T_r by round, for both forms and each r_min."""

    name = "schedules"
    goal = Goal("Figure: local epochs by round", figure="schedules")

    def make(self, results: Results | None, folder: Path, rounds: int, small: bool) -> list[Path]:
        lines = self.lines(rounds, small)
        labels = {line.panel: ("round", "local epochs") for line in lines}
        scale = "small" if small else "paper"
        folder.mkdir(parents=True, exist_ok=True)
        title = f"Local epochs by round, for each r_min ({scale} scale, {rounds} rounds)"
        return draw_lines(lines, title, labels, folder / f"schedules-{scale}")

    def lines(self, rounds: int, small: bool = False) -> list[Line]:
        found = []
        for form, r_min, kind in FIGURE_SCHEDULES.values():
            if kind != "decay":
                continue
            schedule = schedules.make(decay_of(form, r_min, small))
            x = np.arange(1, rounds + 1)
            y = np.array([schedule.epochs(r) for r in range(1, rounds + 1)], dtype=float)
            name = f"{form.capitalize()}({shown_r_min(r_min, small)})"
            found.append(Line(form.capitalize(), name, x, y, y, y, 1, str(r_min)))
        return found
