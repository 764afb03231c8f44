"""Rounds, batches and accuracy as parallel coordinates: the cost of an accuracy under each schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fednoil.figures.drawing import COLOURS, MARKERS, pyplot, save, write_csv
from fednoil.report.results import Row
from fednoil.study.figures.base import RunFigure, shown_r_min, stacked
from fednoil.study.figures.efficiency import SCHEDULE_METHODS
from fednoil.study.goals import Goal
from fednoil.study.grounds import Grounds

_MOST_TRIPLES = 30
# One constant schedule is drawn; the other, which matches Logarithm(80), is not.
_METHODS = tuple(m for m in SCHEDULE_METHODS if "(10)" not in m and ("constant" not in m or m.endswith("cosine(80)")))


@dataclass(frozen=True)
class Triple:
    """A line of the parallel coordinates: rounds and training batches that reached an accuracy."""

    panel: str
    name: str
    round: int
    batches: float
    accuracy: float


class TradeOff(RunFigure):
    name = "tradeoff"
    goal = Goal("Figure: rounds, batches and accuracy", methods=_METHODS, figure="tradeoff")

    def draw(self, grounds: Grounds, first: Row, title: str, out: Path) -> list[Path]:
        triples = self.triples(grounds, first)
        if len({t.name for t in triples}) < 2:
            return []
        return draw_trade_off(triples, f"Rounds, batches and accuracy, one line per round\n{title}", out)

    def triples(self, grounds: Grounds, first: Row) -> list[Triple]:
        """The paper's three panels; a triple for each round, averaged over seeds."""
        log, cos = ("fednoil-logarithm", "fednoil-cosine")
        a, b, c = (shown_r_min(r_min, first.place.family == "small") for r_min in (20, 40, 80))
        panels = {
            "All schedules": {
                f"Cosine({c})": cos,
                f"Logarithm({c})": log,
                f"Constant, as Cosine({c})": "fednoil-constant-as-cosine(80)",
            },
            f"Logarithm {a}, {b}, {c}": {
                f"Logarithm({a})": f"{log}(20)",
                f"Logarithm({b})": f"{log}(40)",
                f"Logarithm({c})": log,
            },
            f"Cosine {a}, {b}, {c}": {f"Cosine({a})": f"{cos}(20)", f"Cosine({b})": f"{cos}(40)", f"Cosine({c})": cos},
        }
        triples = []
        for panel, methods in panels.items():
            for name, method in methods.items():
                row = grounds.find(first, method)
                if row is None:
                    continue
                batches, accuracy = (stacked(row, key).mean(0) for key in ("train_batches", "test_accuracy"))
                name += f", {row.progress}" if row.progress else ""
                triples += [
                    Triple(panel, name, i + 1, float(batches[i]), float(accuracy[i])) for i in range(len(accuracy))
                ]
        return triples


def draw_trade_off(triples: Sequence[Triple], title: str, out: Path) -> list[Path]:
    """Parallel coordinates: rounds, batches (both increase downwards) and accuracy; one line per round."""
    plt = pyplot()
    panels = list(dict.fromkeys(t.panel for t in triples))
    size = (4.8 * len(panels), 3.9)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=True):
        mine = [t for t in triples if t.panel == panel]
        names = list(dict.fromkeys(t.name for t in mine))
        table = np.array([[t.round, t.batches, t.accuracy] for t in mine])
        low, high = table.min(0), table.max(0)
        shown = (table - low) / np.where(high > low, high - low, 1)
        step = max(1, len(mine) // len(names) // _MOST_TRIPLES)  # all of them would be one grey area; the CSV has them
        for triple, point in zip(mine, shown, strict=True):
            if triple.round % step == 0:
                axis.plot([0, 1, 2], point, color=COLOURS[names.index(triple.name)], alpha=0.4, linewidth=0.9)
        for place, name in enumerate(names):
            last = shown[[i for i, t in enumerate(mine) if t.name == name][-1]]
            thickness = len(names) - place  # the first are thicker, so that overlapping lines stay visible
            marker = {"marker": MARKERS[place], "markersize": 4 + 2 * thickness, "linewidth": 0.8 + thickness}
            axis.plot([0, 1, 2], last, color=COLOURS[place], label=f"{name}, last round", clip_on=False, **marker)
        for place in range(3):
            axis.axvline(place, color="black", linewidth=0.8)
            for number in _ticks(plt, low[place], high[place]):
                share = (number - low[place]) / ((high[place] - low[place]) or 1)
                box = {"fc": "white", "ec": "none", "pad": 0.4}
                axis.text(place + 0.02, share, f"{number:,g}", fontsize=7, va="center", bbox=box)
        axis.set_xticks([0, 1, 2], ["rounds", "training batches", "test accuracy, %"])
        axis.set_xlim(-0.15, 2.3)
        axis.set_yticks([])
        axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
        axis.set_title(panel, fontsize=10, pad=12)
        axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=1)
    figure.suptitle(title, fontsize=11)
    files = save(plt, figure, out)
    return [*files, write_csv(out, [vars(t) for t in triples])]


def _ticks(plt: Any, low: float, high: float) -> list[float]:
    """Round numbers within a range, and its two ends unless a round number is near."""
    inside = [float(n) for n in plt.MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= n <= high]
    ends = [end for end in (low, high) if all(abs(end - n) > 0.08 * (high - low) for n in inside)]
    return sorted([*inside, *(round(end, 1) for end in ends)])
