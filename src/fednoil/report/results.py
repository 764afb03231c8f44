"""From runs to results: seeds put together, beside the paper's value, with what a reader should be warned of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from scipy.special import stdtr

from fednoil.report.places import Place, key_of
from fednoil.report.runs import Run

METRICS = {"accuracy": "accuracy", "noise_ratio": "noise ratio", "precision": "precision", "recall": "recall"}
_CURVE_OF = {"noise_ratio": "noise_ratio", "precision": "label_precision", "recall": "label_recall"}
FEW_SEEDS = 3


@dataclass(frozen=True)
class Figure:
    """A number with its spread, in percent; `std` is None where there is nothing to spread over."""

    mean: float
    std: float | None
    starred: bool = False

    def __str__(self) -> str:
        spread = "" if self.std is None or self.starred else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{'*' if self.starred else ''}{spread}"


@dataclass(frozen=True, eq=False)
class Row:
    """One method in one setting: its runs, one a seed, in the order of seeds."""

    place: Place
    runs: tuple[Run, ...]

    @property
    def starred(self) -> bool:
        """The paper's *: at least one seed did not converge, and the best rounds are reported."""
        return any(run.starred for run in self.runs)

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """Each seed's final accuracy, whether converged or not."""
        return {run.seed: float(run.summary["final_accuracy"]) for run in self.runs}

    @cached_property
    def rounds(self) -> int:
        return min(run.rounds for run in self.runs)

    def last_round(self) -> Figure:
        """The last round's accuracy over seeds, whether converged or not."""
        return _figure(list(self.by_seed.values()))

    def figure(self, metric: str) -> Figure | None:
        """Accuracy over seeds by the paper's rule; other figures over the rounds of all seeds, as in the paper."""
        if metric == "accuracy":
            key = "best_accuracy" if self.starred else "final_accuracy"
            return _figure([float(run.summary[key]) for run in self.runs], self.starred)
        curves = [run.curves[_CURVE_OF[metric]] for run in self.runs if _CURVE_OF[metric] in run.curves]
        means = [float(np.nanmean(curve)) for curve in curves]
        spreads = [float(np.nanstd(curve, ddof=1)) for curve in curves if np.isfinite(curve).sum() > 1]
        if not means:
            return None
        return Figure(sum(means) / len(means), sum(spreads) / len(spreads) if spreads else None)


@dataclass(frozen=True)
class Paired:
    """Two methods on the seeds they share: mean and deviation of the differences, and Student's paired test."""

    seeds: int
    mean: float
    std: float | None
    p: float | None  # two-sided; None with fewer than two seeds or no spread


class Results:
    """All rows, by setting."""

    def __init__(self, runs: Iterable[Run], left_out: Sequence[str] = ()) -> None:
        self.runs, repeated = _once(runs)
        ordered = sorted(self.runs, key=lambda run: (run.key, run.seed))
        self.rows = [Row(group[0].place, group) for _, group in _grouped(ordered, lambda run: run.key)]
        self._by_key = {(row.place.where, row.runs[0].key[1]): row for row in self.rows}
        self._by_name = {(row.place.where, row.place.method, row.place.method_changes): row for row in self.rows}
        self.warnings = [*left_out, *repeated, *_warnings(self.rows)]

    def settings(self) -> list[list[Row]]:
        """The rows of each setting."""
        return [list(rows) for _, rows in _grouped(self.rows, lambda row: row.place.where)]

    def find(self, beside: Row, method: str) -> Row | None:
        """The row of one of the paper's methods in the same setting as another row, and with the same changes."""
        place = beside.place
        if not place.family:
            return None
        if place.method_changes:
            return self._by_name.get((place.where, method, place.method_changes))
        rounds = beside.runs[0].values["train"]["rounds"]
        return self._by_key.get((place.where, key_of(place, method, rounds)))

    def grounds(self) -> list[Row]:
        """One row of each of the paper's settings, and of each set of changes to methods there."""
        places = _grouped(self.rows, lambda row: (row.place.where, row.place.method_changes))
        return [rows[0] for _, rows in places if rows[0].place.family]


def paired(a: Row, b: Row) -> Paired | None:
    """Compare final accuracies, a − b, seed by seed; None without a common seed."""
    common = sorted(a.by_seed.keys() & b.by_seed.keys())
    if not common:
        return None
    differences = np.array([a.by_seed[seed] - b.by_seed[seed] for seed in common])
    mean = float(differences.mean())
    if len(common) < 2:
        return Paired(1, mean, None, None)
    std = float(differences.std(ddof=1))
    if std == 0:
        return Paired(len(common), mean, 0.0, None)
    t = abs(mean) / (std / math.sqrt(len(common)))
    return Paired(len(common), mean, std, float(2 * stdtr(len(common) - 1, -t)))


def _figure(values: list[float], starred: bool = False) -> Figure:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Figure(sum(values) / len(values), std, starred)


def _grouped(items: Sequence[Any], key: Callable[[Any], Any]) -> list[tuple[Any, tuple[Any, ...]]]:
    """Items with the same key together, groups in the order of first appearance."""
    order = {k: place for place, k in reversed(list(enumerate(map(key, items))))}
    ranked = sorted(items, key=lambda item: order[key(item)])
    return [(k, tuple(group)) for k, group in groupby(ranked, key)]


def _once(runs: Iterable[Run]) -> tuple[list[Run], list[str]]:
    """One run for each configuration and seed, the finished and longer one first; the others are told."""
    best: dict[Any, Run] = {}
    repeated = []
    for run in runs:
        place = (run.key, run.seed)
        other = best.get(place)
        if other is None:
            best[place] = run
            continue
        keep, drop = sorted((other, run), key=lambda r: (r.finished, r.rounds), reverse=True)
        best[place] = keep
        repeated.append(f"{drop.path} has the configuration and seed of {keep.path} and is left out")
    return list(best.values()), repeated


def _warnings(rows: Sequence[Row]) -> list[str]:
    found = []
    for row in rows:
        name = f"{row.place.method_title} on {row.place.title}"
        for run in row.runs:
            planned = run.values["train"]["rounds"]
            if not run.finished:
                found.append(f"{name}, seed {run.seed}: stopped after round {run.rounds} of {planned}")
        if row.starred:
            seeds = [str(run.seed) for run in row.runs if run.starred]
            found.append(f"{name}: not converged (seeds {', '.join(seeds)}); the best round is reported")
        if any(run.summary["converged"] is None for run in row.runs):
            found.append(f"{name}: fewer than six rounds, too few to judge convergence")
        for what in ("data_hash",):
            if len({run.summary.get(what) for run in row.runs if run.summary.get(what)}) > 1:
                found.append(f"{name}: runs with different data ({what})")
    few = [row for row in rows if len(row.runs) < FEW_SEEDS]
    if few:
        shown = "; ".join(f"{row.place.method_title} on {row.place.title} ({len(row.runs)})" for row in few[:5])
        more = f"; and {len(few) - 5} more" if len(few) > 5 else ""
        found.append(f"fewer than {FEW_SEEDS} seeds, so the spread says little: {shown}{more}")
    versions = {run.environment.get("packages", {}).get("fednoil") for row in rows for run in row.runs} - {None}
    if len(versions) > 1:
        found.append(f"runs of different versions of fednoil: {', '.join(sorted(map(str, versions)))}")
    return found
