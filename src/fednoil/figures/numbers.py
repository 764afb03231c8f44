"""The numbers behind each figure, as lines of points; what is drawn is written beside it as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fednoil.audit.budget import Bought
from fednoil.config.small import shrink_schedule
from fednoil.paper import SCHEDULES
from fednoil.report.results import Results, Row
from fednoil.schedules import make

R_MIN = (10, 20, 40, 80)
PANELS = {
    "test_accuracy": "test accuracy, %",
    "selected_noise": "noise of selected clients, %",
    "label_precision": "label precision, %",
    "label_recall": "label recall, %",
}
ABLATION = {
    "fednoil-logarithm": "FedNoiL",
    "fednoil-uniform-clients": "uniform client sampling",
    "fednoil-uniform-local": "uniform local-data sampling",
}


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a panel: `low` and `high` are the smallest and largest over seeds."""

    panel: str
    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int
    r_min: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Triple:
    """A line of the parallel coordinates: rounds and training batches that reached an accuracy."""

    panel: str
    name: str
    round: int
    batches: float
    accuracy: float


def schedule_lines(rounds: int, small: bool = False) -> list[Line]:
    """Local epochs T_r by round, for both forms and each r_min."""
    lines = []
    for form, r_min, kind in SCHEDULES.values():
        if kind != "decay":
            continue
        keys = {"name": form, "t_max": 100, "t_min": 20, "r_min": r_min}
        schedule = make(shrink_schedule(keys) if small else keys)
        x = np.arange(1, rounds + 1)
        y = np.array([schedule.epochs(r) for r in range(1, rounds + 1)], dtype=float)
        lines.append(Line(form.capitalize(), f"{form.capitalize()}({shown_r_min(r_min, small)})", x, y, y, y, 1, r_min))
    return lines


def shown_r_min(r_min: int, small: bool) -> int:
    """The r_min that runs have: the small scale's stand for the paper's."""
    return int(shrink_schedule({"r_min": r_min})["r_min"]) if small else r_min


def efficiency_lines(results: Results, first: Row) -> list[Line]:
    """Accuracy over rounds and over batches, decaying (solid) and constant epochs of the same total (dashed)."""
    lines = []
    for form in ("cosine", "logarithm"):
        for r_min in R_MIN:
            decay = f"fednoil-{form}" if r_min == 80 else f"fednoil-{form}({r_min})"
            for method, dashed in ((decay, False), (f"fednoil-constant-as-{form}({r_min})", True)):
                row = results.find(first, method)
                if row is None:
                    continue
                shown = shown_r_min(r_min, first.place.family == "small")
                name = f"{'Constant' if dashed else form.capitalize()}({shown})"
                for over in ("round", "train_batches"):
                    panel = f"{form.capitalize()}, over {'rounds' if over == 'round' else 'training batches'}"
                    lines.append(_line(row, "test_accuracy", over, panel, name, r_min, dashed))
    return lines


def ablation_lines(results: Results, first: Row) -> list[Line]:
    """Accuracy, noise of the selected clients, label precision and recall, over rounds."""
    rows = [(name, row) for method, name in ABLATION.items() if (row := results.find(first, method))]
    return [
        _line(row, key, "round", title, name)
        for key, title in PANELS.items()
        for name, row in rows
        if all(key in run.curves for run in row.runs)
    ]


def trade_off(results: Results, first: Row) -> list[Triple]:
    """The paper's three panels; a triple for each round, of the mean over seeds."""
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
            row = results.find(first, method)
            if row is None:
                continue
            batches, accuracy = (_stack(row, key).mean(0) for key in ("train_batches", "test_accuracy"))
            name += f", {row.progress}" if row.progress else ""
            triples += [Triple(panel, name, i + 1, float(batches[i]), float(accuracy[i])) for i in range(len(accuracy))]
    return triples


def _stack(row: Row, key: str) -> np.ndarray:
    """A figure of all seeds: [seeds, rounds that all have]."""
    return np.array([run.curves[key][: row.rounds] for run in row.runs])


def _line(row: Row, key: str, over: str, panel: str, name: str, r_min: int = 0, dashed: bool = False) -> Line:
    values = _stack(row, key)
    name += f", {row.progress}" if row.progress else ""
    x = np.arange(1.0, values.shape[1] + 1) if over == "round" else _stack(row, over).mean(0)
    return Line(panel, name, x, values.mean(0), values.min(0), values.max(0), len(row.runs), r_min, dashed)


def budget_lines(results: Sequence[Bought]) -> list[Line]:
    """Wrong labels left, and accuracy, over the share of labels that somebody looked at; all begin where nobody did."""
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
