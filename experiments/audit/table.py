"""The table of the README from results.csv: `python experiments/audit/table.py`."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np

from fednoil.pages.marked import fill

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
NAMES = (
    "ours",
    "ours, final model alone",
    "(a) cleanlab, final model",
    "(b) cleanlab, 5-fold on pooled data",
    "(c) loss of local models",
    "ours, no test set",
)
DEVELOPED_ON, SEEN = (0, 1, 2), (3, 4)  # seeds of Fashion-MNIST; the README says what was chosen with them

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The rows of a CSV file, with numbers as numbers and empty cells as None."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(file)]


def add(path: Path, rows: list[Row]) -> None:
    """Write rows, in place of what there was of the same runs; (b) and (c) follow from setting and seed alone, and stay
    where they are not among the new rows."""
    runs, new = {_run(row) for row in rows}, {(_run(row), row["method"]) for row in rows}
    there = read(path)
    before = [row for row in there if (_run(row), row["method"]) not in new]
    rows = sorted([row for row in before if _run(row) not in runs or row["method"] in NAMES[3:5]] + rows, key=_order)
    fields = list(dict.fromkeys(key for row in [*there, *rows] for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _rounded(k, v) for k, v in row.items()} for row in rows)


def _rounded(name: str, value: object) -> object:
    """Percentages to two decimals, shares to five."""
    percent = name in ("accuracy", "ratio_error", "ratio_error_largest", "interval_width")
    return round(value, 2 if percent else 5) if isinstance(value, float) else value


def parts() -> dict[str, str]:
    """The text between `<!-- NAME -->` and `<!-- end -->` in README.md."""
    results = read(RESULTS)
    fashion = [row for row in results if row["setting"].startswith("fashion-mnist ")]
    untouched = [row for row in fashion if row["seed"] not in (*DEVELOPED_ON, *SEEN)]
    cifar = [row for row in results if row["setting"].startswith("cifar10 ")]
    embedded = [row for row in results if row["setting"].startswith("embedded ")]
    groups = {"all seeds": fashion, "seeds 5 and 6": untouched, "cifar10": cifar, "embedded": embedded}
    found = {"results": table(results), "no test set": without_test_set(results)}
    return found | {name: verdict(rows) for name, rows in groups.items() if rows}


def table(rows: list[Row]) -> str:
    """A line for each setting and method, means over seeds; (b) and (c) over the seeds that have them."""
    orders = "ours | ours, no test set | ours, final model alone | (a) | (b) | (c)"
    ratios = "ratio off by: ours | no test set | (a) | ratio in its interval: ours | no test set"
    head = f"| run (accuracy, seeds) | {orders} | {ratios} |"
    return "\n".join([head, "|---" * 12 + "|", *(_line(same) for same in _together(rows))])


def verdict(rows: list[Row]) -> str:
    """How often ours is ahead, how far the noise ratios are off, and how often the interval held."""
    runs: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        runs.setdefault(_run(row), {})[row["method"]] = row
    said = []
    for name, letter in zip(NAMES[2:5], "abc", strict=True):
        both = [(found["ours"]["auroc"], found[name]["auroc"]) for found in runs.values() if name in found]
        if both:
            lead = min(ours - other for ours, other in both)
            ahead = sum(ours > other for ours, other in both)
            digits = 4 if abs(lead) >= 0.0001 else 5
            said.append(f"({letter}) in {ahead} of {len(both)} runs (at worst by {lead:+.{digits}f})")
    ours = [row for row in rows if row["method"] == NAMES[0]]
    errors = [_mean([row for row in same if row["method"] == NAMES[0]], "ratio_error") for same in _together(rows)]
    inside, clients = (sum(int(row[name]) for row in ours) for name in ("in_interval", "clients"))
    return (
        f"AUROC above {', '.join(said)}. Noise ratios off by {min(errors):.2f} to {max(errors):.2f} points on average, "
        f"one client's by up to {max(row['ratio_error_largest'] for row in ours):.1f}. "
        f"The interval held the true ratio for {inside} of {clients} clients."
    )


def without_test_set(rows: list[Row]) -> str:
    """What the test set's accuracies change, over the runs that were compared with and without them."""
    runs: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        runs.setdefault(_run(row), {})[row["method"]] = row
    both = [(found[NAMES[0]], found[NAMES[5]]) for found in runs.values() if NAMES[5] in found]
    if not both:
        return "No run has been compared without a test set yet."
    auroc, off = ([blind[name] - ours[name] for ours, blind in both] for name in ("auroc", "ratio_error"))
    held = [sum(int(pair[which]["in_interval"]) for pair in both) for which in (0, 1)]
    clients = sum(int(ours["clients"]) for ours, _ in both)
    leads = [found[NAMES[5]]["auroc"] - found[NAMES[2]]["auroc"] for found in runs.values() if NAMES[5] in found]
    ahead = f"{sum(lead > 0 for lead in leads)} of {len(leads)}"
    return (
        f"Without the test set's accuracies AUROC changes by {min(auroc):+.4f} to {max(auroc):+.4f} in {len(both)} "
        f"runs, the error of noise ratios by {min(off):+.2f} to {max(off):+.2f} points, and intervals hold {held[1]} "
        f"of {clients} true ratios instead of {held[0]}. AUROC is then above (a) in {ahead} "
        f"runs (at worst by {min(leads):+.4f})."
    )


def write_page() -> None:
    readme = HERE / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8"), parts()), encoding="utf-8")


def _line(rows: list[Row]) -> str:
    ours, final, a, b, c, blind = ([r for r in rows if r["method"] == name] for name in NAMES)

    def auroc(found: list[Row]) -> str:
        return f"{_mean(found, 'auroc'):.3f}" if found else "–"

    def off(found: list[Row]) -> str:
        return f"{_mean(found, 'ratio_error'):.1f}" if found else "–"

    def inside(found: list[Row]) -> str:
        held, clients = (sum(int(r[name]) for r in found) for name in ("in_interval", "clients"))
        return f"{held} of {clients}" if found else "–"

    seeds = f"{_title(rows[0])} ({_mean(ours, 'accuracy'):.1f}, {len(ours)})"
    orders = [auroc(found) for found in (ours, blind, final, a, b, c)]
    return f"| {' | '.join([seeds, *orders, off(ours), off(blind), off(a), inside(ours), inside(blind)])} |"


def _title(row: Row) -> str:
    """The setting; the method where it isn't FedNoiL's usual one."""
    usual = row["run_method"] in ("FedNoiL(Logarithm)", "FedNoiL")
    return row["setting"] if usual else f"{row['setting']}, {row['run_method']}"


def _together(rows: list[Row]) -> list[list[Row]]:
    """The rows of each setting and method."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["run_method"]), []).append(row)
    return list(groups.values())


def _run(row: Row) -> tuple[Any, ...]:
    return row["setting"], row["run_method"], row["seed"]


def _order(row: Row) -> tuple[Any, ...]:
    """Fashion-MNIST first, then CIFAR-10 and the embedded images."""
    places = [n for n, data in enumerate(("fashion", "cifar", "embedded")) if row["setting"].startswith(data)]
    return *places, *_run(row)


def _mean(rows: list[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows])) if rows else float("nan")


def _value(text: str) -> Any:
    if not text:
        return None
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        return text


if __name__ == "__main__":
    write_page()
