"""What a reader wants to know first: which method is ahead, by how much, on which classes, and in which keys the runs
differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fednoil.history import ACCURACY
from fednoil.report.chance import CHANCE, FEW_SEEDS
from fednoil.report.places import METHOD_SECTIONS, SETTING_SECTIONS, as_method, differing
from fednoil.report.results import Results, Row, paired

_CLASSES = 100  # listed in a table
_MEASURES = {
    "balanced_accuracy": ("balanced accuracy, %", 2),
    "macro_f1": ("macro F1, %", 2),
    "auroc": ("AUROC", 3),
    "calibration_error": ("calibration error, %", 2),
}


@dataclass(frozen=True)
class LeadTable:
    """A table with a title, headings and lines; None stands for unknown values."""

    title: str
    head: list[str]
    lines: list[list[Any]]


def leads(results: Results) -> list[str]:
    """One sentence for each setting of the user's own: the best method, and how far it is ahead of the next."""
    return [_lead(rows) for rows in results.settings() if not rows[0].place.family]


def _lead(rows: Sequence[Row]) -> str:
    where = rows[0].place.title
    done = sorted((row for row in rows if row.finished), key=lambda row: -row.last_round().mean)
    if not done:
        row = max(rows, key=lambda row: row.last_round().mean)
        return f"{where}: {row.title} has {row.last_round()} % {row.progress}"
    best, others = done[0], done[1:]
    seeds = "" if len(best.runs) == 1 else f" ({len(best.runs)} seeds)"
    what = "" if best.runs[0].measure == ACCURACY else f" {best.runs[0].measure}"
    line = f"{where}: {best.title} ends with {best.last_round()} %{what}{seeds}"
    if best.best_round().mean - best.last_round().mean >= 1:
        line += f", after {best.best_round()} % in its best round"
    if not others:
        return line
    other = others[0]
    pair = paired(best, other)
    if pair is None:
        return f"{line}; {other.title} has {other.last_round()} %, with no seed in common"
    same = best.by_seed.keys() == other.by_seed.keys()
    shared = "" if same else f" on the seeds they share ({', '.join(map(str, pair.seeds))})"
    sure = ", maybe by chance" if pair.p is None or pair.p >= CHANCE else ", more than chance"
    sure += f" (a test takes {FEW_SEEDS} shared seeds)" if pair.p is None else ""
    work = "" if best.batches == other.batches else f", with {best.batches:,} batches instead of {other.batches:,}"
    side = "above" if round(pair.mean, 2) >= 0 else "below"
    return f"{line}, {abs(pair.mean):.2f} points {side} {other.title}{shared}{sure}{work}"


def class_grids(results: Results) -> list[LeadTable]:
    """For each setting the accuracy on each class's test images, by method: the mean over seeds of the final models."""
    found = []
    for rows in results.settings():
        known = [(row, values) for row in rows if row.finished and (values := _by_class(row))]
        if not known:
            continue
        count = max(len(values) for _, values in known)
        names = next((n for row, _ in known if (n := row.runs[0].summary.get("classes"))), [])
        lines = [
            [names[c] if c < len(names) else str(c), *(v[c] if c < len(v) else None for _, v in known)]
            for c in range(min(count, _CLASSES))
        ]
        found.append(LeadTable(rows[0].place.title, ["class", *(row.title for row, _ in known)], lines))
    return found


def measure_grids(results: Results) -> list[LeadTable]:
    """For each setting the final models' measures beside accuracy, by method: the mean over seeds."""
    found = []
    for rows in results.settings():
        done = [row for row in rows if row.finished]
        lines = [[title, *(_mean(row, key, digits) for row in done)] for key, (title, digits) in _MEASURES.items()]
        lines = [line for line in lines if any(line[1:])]
        if lines:
            found.append(LeadTable(rows[0].place.title, ["measure", *(row.title for row in done)], lines))
    return found


def _mean(row: Row, key: str, digits: int) -> str | None:
    values = [run.summary.get(key) for run in row.runs]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return f"{sum(known) / len(known):.{digits}f}" if len(known) == len(values) else None


def _by_class(row: Row) -> list[float | None]:
    """The mean over seeds; nothing if a run has recorded none."""
    each = [run.summary.get("per_class_accuracy") or [] for run in row.runs]
    if not all(each) or len({len(values) for values in each}) > 1:
        return []
    columns = zip(*each, strict=True)
    return [None if None in column else sum(v or 0.0 for v in column) / len(column) for column in columns]


def settings_grid(results: Results) -> LeadTable | None:
    """The keys in which rows differ, a line for each; None without any, or with a single row."""
    sections = (*SETTING_SECTIONS, *METHOD_SECTIONS, "run")
    rows = [row for row in results.rows if not row.place.family]
    values = [row.runs[0].values | {"run": as_method(row.runs[0].values)["run"]} for row in rows]
    keys = sorted(differing(values, sections)) if len(rows) > 1 else []
    if not keys:
        return None
    several = len({row.place.where for row in rows}) > 1
    head = [f"{row.title} on {row.place.title}" if several else row.title for row in rows]
    lines = [[key, *(_value(one, key) for one in values)] for key in keys]
    lines = [line for line in lines if any(line[1:])]  # a key that only some have and nobody has set
    return LeadTable("What differs", ["key", *head], lines)


def _value(values: dict[str, Any], key: str) -> str | None:
    section, _, name = key.partition(".")
    found = values[section].get(name)
    if isinstance(found, dict):  # as the sites of `data.sites`
        return ", ".join(f"{key}={value}" for key, value in found.items())
    return None if found is None else str(found)
