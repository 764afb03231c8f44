"""From runs to results: averages over seeds, and warnings for the reader."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fednoil.errors import few_of
from fednoil.history import ACCURACY, AGREEMENT
from fednoil.records.environment import differing_code
from fednoil.report.chance import FEW_SEEDS, paired_p, sample_of
from fednoil.report.hook import ReportSection, Study
from fednoil.report.places import METHOD_SECTIONS, TRAINING, Place, as_method, differing, picked
from fednoil.report.record import read_record
from fednoil.report.runs import RecordedRun, load_runs

METRICS = {"accuracy": "accuracy", "selected_noise": "noise ratio", "precision": "precision", "recall": "recall"}
_CURVE_OF = {"selected_noise": "selected_noise", "precision": "label_precision", "recall": "label_recall"}
_MOST_KEYS = 2  # in a method's name


@dataclass(frozen=True)
class Value:
    """A number with its spread, in percent; `std` is None for a single value."""

    mean: float
    std: float | None
    starred: bool = False

    def __str__(self) -> str:
        spread = "" if self.std is None or self.starred else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{'*' if self.starred else ''}{spread}"


@dataclass(frozen=True, eq=False)
class Row:
    """One method in one setting: its runs, one per seed, in the order of seeds.

    Stopped runs count only if none has finished; such a row is shown but never compared.
    """

    place: Place
    runs: tuple[RecordedRun, ...]
    own_conduct: tuple[str, ...] = ()  # the part of `conduct` in which other rows of this method differ
    apart: tuple[str, ...] = ()  # keys that distinguish it from another row of its column with the same title

    @property
    def conduct(self) -> tuple[str, ...]:
        return self.runs[0].conduct

    @property
    def title(self) -> str:
        """The method, with the keys and conditions by which it differs from other rows."""
        return ", ".join([self.place.method_title, *self.apart, *self.own_conduct])

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def progress(self) -> str:
        """`at round 30 of 150`, `diverged after round 30 of 150`, or nothing if the row is finished."""
        if self.finished:
            return ""
        least, most = (f(run.rounds for run in self.runs) for f in (min, max))
        reached = f"round {least}" if least == most else f"rounds {least} to {most}"
        how = "diverged after" if all(run.diverged for run in self.runs) else "at"
        return f"{how} {reached} of {self.runs[0].values['train']['rounds']}"

    @property
    def starred(self) -> bool:
        """At least one seed did not converge: the best rounds are reported, with a *."""
        return self.finished and any(run.starred for run in self.runs)

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """Each seed's final accuracy, whether converged or not."""
        return {run.seed: float(run.summary["final_accuracy"]) for run in self.runs}

    def of_seeds(self, seeds: Collection[int]) -> Row:
        """The same row with the runs of these seeds only."""
        return replace(self, runs=tuple(run for run in self.runs if run.seed in seeds))

    @property
    def batches(self) -> int:
        """Training batches of a run, on average over seeds: what equal epochs or rounds don't make equal."""
        return round(sum(float(run.summary["train_batches"]) for run in self.runs) / len(self.runs))

    @cached_property
    def rounds(self) -> int:
        return min(run.rounds for run in self.runs)

    def best_round(self) -> Value:
        """The best round's accuracy over seeds."""
        return _value([float(run.summary["best_accuracy"]) for run in self.runs])

    def last_round(self) -> Value:
        """The last round's accuracy over seeds, whether converged or not."""
        return _value(list(self.by_seed.values()))

    def value(self, metric: str) -> Value | None:
        """Accuracy over seeds, of the best rounds if one did not converge; other metrics over all rounds."""
        if metric == "accuracy":
            key = "best_accuracy" if self.starred else "final_accuracy"
            return _value([float(run.summary[key]) for run in self.runs], self.starred)
        found = [known for run in self.runs if (known := run.over_rounds(_CURVE_OF[metric]))]
        means, spreads = [mean for mean, _ in found], [std for _, std in found if std is not None]
        if not means:
            return None
        return Value(sum(means) / len(means), sum(spreads) / len(spreads) if spreads else None)


@dataclass(frozen=True)
class Paired:
    """Two methods on the seeds they share: mean and deviation of the differences, and Student's paired test."""

    seeds: tuple[int, ...]
    mean: float
    std: float | None
    p: float | None  # two-sided; None with fewer than three seeds


class Results:
    """All rows, by setting; with a study, also its tables and sections."""

    def __init__(self, runs: Iterable[RecordedRun], left_out: Sequence[str] = (), study: Study | None = None) -> None:
        self.study = study
        self.runs, repeated = _once(runs)
        ordered = sorted(self.runs, key=lambda run: (run.key, run.seed))
        groups = [group for _, group in grouped(ordered, lambda run: run.key)]
        conducts: dict[Any, set[tuple[str, ...]]] = {}
        for group in groups:
            conducts.setdefault(_same_line(group[0]), set()).add(group[0].conduct)
        self.rows = _distinguished([_row(group, conducts[_same_line(group[0])]) for group in groups])
        self._titles = {row.runs[0].key: row.title for row in self.rows}
        self.warnings = [*left_out, *repeated, *_warnings(self.rows, groups)]

    @property
    def measure(self) -> str:
        """What the accuracies are: agreement where all runs were tested on labels that they held out."""
        return AGREEMENT if self.runs and all(run.measure == AGREEMENT for run in self.runs) else ACCURACY

    def title_of(self, run: RecordedRun) -> str:
        """The title of the row that a run belongs to."""
        return self._titles[run.key]

    def settings(self) -> list[list[Row]]:
        """The rows of each setting."""
        return [list(rows) for _, rows in grouped(self.rows, lambda row: row.place.where)]

    def sections(self) -> Sequence[ReportSection]:
        """The study's sections about its rows."""
        return self.study.sections(self) if self.study else ()

    def some(self, keep: Callable[[Row], bool]) -> Results:
        """Some of the rows."""
        return Results((run for row in self.rows if keep(row) for run in row.runs), study=self.study)


def load_results(paths: Sequence[Path], study: Study | None = None) -> Results:
    """The results of run folders, folders of run folders, and records of runs."""
    packed, folders = [p for p in paths if p.is_file()], [p for p in paths if not p.is_file()]
    found, left_out = load_runs(folders, study) if folders else ([], [])
    return Results([*found, *(run for path in packed for run in read_record(path, study))], left_out, study)


def _same_line(run: RecordedRun) -> tuple[Any, ...]:
    """What the runs in one line of a table have in common, in any column."""
    place = run.place
    return place.family, place.dataset, place.setting_changes, place.method_title


def _row(group: tuple[RecordedRun, ...], conducts: set[tuple[str, ...]]) -> Row:
    """A row of the finished runs, or of all if none is finished; its title names how it differs from its neighbours."""
    first = group[0]
    shared = set.intersection(*map(set, conducts))
    differs = tuple(part for part in first.conduct if part not in shared)
    return Row(first.place, tuple(run for run in group if run.finished) or group, differs)


def _distinguished(rows: list[Row]) -> list[Row]:
    """Rows with unique titles in each table: a method's name gets the keys in which it differs from others of the same
    name, or its folder's name if there are many, and those of training in which it differs from others at all."""
    names_of: dict[Any, set[str]] = {}

    def compare(same: Sequence[Row], sections: tuple[str, ...]) -> None:
        names = differing([as_method(row.runs[0].values) for row in same], sections)
        for row in same:
            names_of.setdefault(_same_line(row.runs[0]), set()).update(names)

    for _, same in grouped(rows, lambda row: (row.place.where if row.place.family else row.place.dataset, row.title)):
        compare(same, METHOD_SECTIONS)
    for _, same in grouped([row for row in rows if not row.place.family], lambda row: row.place.where):
        compare(same, TRAINING)  # which a study's method names anyway

    def titled(row: Row, most: int) -> Row:
        values, names = as_method(row.runs[0].values), names_of[_same_line(row.runs[0])]
        keys = picked(values, METHOD_SECTIONS, names)
        keys = (_folder(row),) if len(keys) > most and not row.place.family else keys
        return replace(row, apart=(*keys, *picked(values, TRAINING, names)))

    short = [titled(row, _MOST_KEYS) for row in rows]
    counts = Counter((row.place.where, row.title) for row in short)
    return [row if counts[row.place.where, row.title] == 1 else titled(row, sys.maxsize) for row in short]


def _folder(row: Row) -> str:
    """What a row's runs are called on disk, their seeds left out."""
    path = row.runs[0].path
    name = path.parent.name if re.fullmatch(r"seed-?\d+", path.name) else path.name
    return re.sub(r"-?seed-?\d+$", "", name) or name


def paired(a: Row, b: Row) -> Paired | None:
    """Compare final accuracies, a − b, seed by seed; None without a common seed, or if a run was stopped."""
    if not (a.finished and b.finished):
        return None
    common = sorted(a.by_seed.keys() & b.by_seed.keys())
    if not common:
        return None
    found = sample_of(differences := [a.by_seed[seed] - b.by_seed[seed] for seed in common])
    return Paired(tuple(common), found.mean, found.std, paired_p(differences))


def _value(values: list[float], starred: bool = False) -> Value:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Value(sum(values) / len(values), std, starred)


def grouped(items: Sequence[Any], key: Callable[[Any], Any]) -> list[tuple[Any, tuple[Any, ...]]]:
    """Items with the same key together, groups in the order of first appearance."""
    order = {k: place for place, k in reversed(list(enumerate(map(key, items))))}
    ranked = sorted(items, key=lambda item: order[key(item)])
    return [(k, tuple(group)) for k, group in groupby(ranked, key)]


def _once(runs: Iterable[RecordedRun]) -> tuple[list[RecordedRun], list[str]]:
    """One run for each configuration and seed, preferably finished and long; the others are reported."""
    best: dict[Any, RecordedRun] = {}
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


def _warnings(rows: Sequence[Row], groups: Sequence[tuple[RecordedRun, ...]]) -> list[str]:
    found = []
    for row, group in zip(rows, groups, strict=True):
        name = f"{row.title} on {row.place.title}"
        for run in (run for run in group if not run.finished):
            fate = "left out of the mean" if row.finished else "shown as far as it got, but not compared"
            planned = run.values["train"]["rounds"]
            end = "diverged" if run.diverged else "stopped"
            found.append(f"{name}, seed {run.seed}: {end} after round {run.rounds} of {planned}; {fate}")
        if row.starred:
            seeds = [str(run.seed) for run in row.runs if run.starred]
            which = f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
            found.append(f"{name}: not converged ({which}); the best round is reported")
        if row.finished and any(run.summary["converged"] is None for run in row.runs):
            found.append(f"{name}: fewer than six rounds, too few to judge convergence")
        if len({run.summary.get("data_hash") for run in row.runs if run.summary.get("data_hash")}) > 1:
            found.append(f"{name}: runs with different data (data_hash)")
        if code := differing_code(run.environment.get("own_files", {}) for run in row.runs):
            found.append(f"{name}: the file of {code} changed between these runs")
        if len(devices := {run.environment["device"] for run in row.runs if "device" in run.environment}) > 1:
            found.append(f"{name}: runs on different devices ({', '.join(sorted(devices))})")
    return [*found, *_general_warnings(rows)]


def _general_warnings(rows: Sequence[Row]) -> list[str]:
    """Warnings about all rows together."""
    found = []
    differs = sorted({part for row in rows for part in row.own_conduct})
    if differs:
        found.append(f"runs that were carried out differently ({'; '.join(differs)}) have separate rows")
    few = [row for row in rows if len(row.runs) < FEW_SEEDS]
    if few:
        shown = few_of([f"{row.title} on {row.place.title} ({len(row.runs)})" for row in few], 5, "; ")
        found.append(f"fewer than {FEW_SEEDS} seeds, so the spread says little: {shown}")
    versions = {run.environment.get("packages", {}).get("fednoil") for row in rows for run in row.runs} - {None}
    if len(versions) > 1:
        found.append(f"runs of different versions of fednoil: {', '.join(sorted(map(str, versions)))}")
    return found
