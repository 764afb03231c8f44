"""Table 3 round by round: both levels of sampling, and either made uniform."""

from __future__ import annotations

from collections.abc import Sequence

from fednoil.figures.drawing import Line
from fednoil.report.results import Row
from fednoil.study.figures.base import ACCURACY, LineFigure, line_of
from fednoil.study.goals import ABLATION, Goal
from fednoil.study.grounds import Grounds

_PANELS = {
    "test_accuracy": ACCURACY,
    "selected_noise": "noise of selected clients, %",
    "label_precision": "label precision, %",
    "label_recall": "label recall, %",
}
_NAMES = dict(zip(ABLATION, ("FedNoiL", "uniform client sampling", "uniform local-data sampling"), strict=True))


class Ablation(LineFigure):
    name = "ablation"
    goal = Goal("Figure: Table 3 round by round", noises=("pair-high",), methods=ABLATION, figure="ablation")

    def lines(self, grounds: Grounds, first: Row) -> list[Line]:
        """Accuracy, noise of the selected clients, label precision and recall, over rounds."""
        rows = [(name, row) for method, name in _NAMES.items() if (row := grounds.find(first, method))]
        return [
            line_of(row, key, "round", panel, name)
            for key, panel in _PANELS.items()
            for name, row in rows
            if all(key in run.curves for run in row.runs)
        ]

    def title(self, lines: Sequence[Line]) -> str:
        return "Two-level sampling and either level made uniform"

    def axes(self, panel: str) -> tuple[str, str]:
        return "round", panel
