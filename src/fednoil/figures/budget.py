"""What cleaning labels gains, drawn over the share of labels that were checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fednoil.audit.budget import Bought
from fednoil.figures.drawing import Line, draw_lines


def budget_lines(results: Sequence[Bought]) -> list[Line]:
    """Wrong labels left, and accuracy, over the share of labels that were checked; all start at none."""
    lines = []
    for order, name in (("suspicious", "the most suspicious first"), ("random", "at random")):
        points = [r for r in results if r.order in ("none", order)]
        x = np.array([r.percent for r in points])
        for panel, y in (
            ("wrong labels", np.array([r.noise_ratio for r in points])),
            ("accuracy", np.array([r.final_accuracy for r in points])),
        ):
            lines.append(Line(panel, name, x, y, y, y, 1, dashed=order == "random"))
    return lines


def draw_budget(results: Sequence[Bought], out: Path) -> list[Path]:
    """What cleaning gains, over the share of labels checked, the most suspicious first or at random."""
    share = "labels checked and corrected, %"
    labels = {"wrong labels": (share, "wrong labels left, %"), "accuracy": (share, "final test accuracy, %")}
    return draw_lines(budget_lines(results), "What cleaning buys", labels, out)
