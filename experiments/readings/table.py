"""The record of this study, one line a run, and the table of its page.

    python experiments/readings/table.py [--commit COMMIT] [RUNS ...]

Given run folders are added to `results.csv`, in place of earlier ones of the same setting, noise, method, reading and
seed. What was run with *each* and IID clients is in the record of the paper's tables.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scipy.stats import ttest_ind_from_stats

from fednoil.pages.marked import fill
from fednoil.study.paper import printed

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
EACH = HERE.parent / "paper/results.csv"
KEY = ("dataset", "setting", "noise", "method", "reading", "changes", "seed")
MEANS = ("label_precision", "label_recall", "effective_precision", "effective_recall", "selected_noise")
FIELDS = (*KEY, "rounds", "planned", "final", "best", "last10", *MEANS, "batches", "seconds", "device", "commit")
NOISES = ("symmetric-high", "symmetric-low", "pair-high", "pair-low")
METHODS = {  # their names in the paper's Tables 1, 3 and 4
    "fednoil-logarithm": ("FedNoiL(Logarithm)", "FedNoiL(Original)", "FedNoiL"),
    "fednoil-cosine": ("FedNoiL(Cosine)", "", ""),
    "fednoil-uniform-clients": ("FedNoiL(Uniform Client Sampling)", "FedNoiL(Uniform Client Sampling)", ""),
    "fednoil-uniform-local": ("FedNoiL(Uniform Local-Data Sampling)", "FedNoiL(Uniform Local-Data Sampling)", ""),
    "fednoil-no-ssl": ("FedNoiL†, without SSL", "", "FedNoiL†"),
}
DATA = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
CLIENTS = {"iid": "IID", "non-iid-1": "β = 1", "non-iid-0.5": "β = 0.5"}
LINES = (
    ("fashion-mnist", "iid", tuple(METHODS)[:4]),
    ("fashion-mnist", "non-iid-1", tuple(METHODS)[:2]),
    ("fashion-mnist", "non-iid-0.5", tuple(METHODS)[:2]),
    ("cifar10", "iid", ("fednoil-logarithm", "fednoil-no-ssl")),
)
CHANGES = {"": "", "learner-x_augment-strong": ", strong views of D^x", "first-70": ", its first rounds"}
PRINTED = {  # the paper's means and deviations by table, dataset, setting, noise, method and metric
    (c.table, c.dataset, c.setting, f"{c.noise}-{c.mode}", c.method, c.metric): (c.mean, c.std or math.nan)
    for c in printed()
}
METRICS = ("accuracy", "precision", "recall")
PAPERS_SEEDS, CHANCE = 5, 0.05
Row = dict[str, Any]


def row_of(folder: Path, commit: str) -> Row:
    """What the record says of a run folder, whose name begins dataset--setting--noise--method--reading."""
    dataset, setting, noise, method, reading, *rest = folder.name.split("--")
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    accuracy = [r["test_accuracy"] for r in rounds]
    found: Row = {
        **dict(zip(KEY, (dataset, setting, noise, method, reading, " ".join(rest[:-1])), strict=False)),
        "seed": config["run"]["seed"],
        "rounds": len(rounds),
        "planned": config["train"]["rounds"],
        "final": accuracy[-1],
        "best": max(accuracy),
        "last10": statistics.fmean(accuracy[-10:]),
        "batches": rounds[-1]["train_batches"],
        "seconds": sum(r["wall_s"] for r in rounds),
        "device": environment["device"],
        "commit": environment.get("commit") or commit,
    }
    for name in MEANS:
        known = [r.get(name, r.get("noise_ratio") if name == "selected_noise" else None) for r in rounds]
        known = [value for value in known if value is not None]
        found[name] = statistics.fmean(known) if known else None
    return {name: _text(found[name]) for name in FIELDS}


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def read() -> list[Row]:
    path = HERE / "results.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(rows: Iterable[Row]) -> None:
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: [str(row[name]) for name in KEY]))


def markdown(lines: list[list[str]]) -> str:
    marked = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([marked[0], "|---" * len(lines[0]) + "|", *marked[1:]])


def results(rows: list[Row]) -> str:
    """Every cell: final accuracy of whole runs, then precision and recall of D^x over all runs, ours and printed."""
    lines = [["data, clients, method, reading", *NOISES]]
    for data, setting, methods in LINES:
        for method in methods:
            printed_line = [_printed(data, setting, noise, method) for noise in NOISES]
            where = f"{DATA[data]}, {CLIENTS[setting]}, {METHODS[method][0]}"
            beside = f"{DATA[data]}, {'IID' if setting == 'iid' else 'non-IID'}, {METHODS[method][0]}, paper"
            lines += [[beside, *printed_line]] if any(cell != "–" for cell in printed_line) else []
            for reading, changes in dict.fromkeys(
                (r["reading"], r["changes"]) for r in _some(rows, data, setting, method)
            ):
                runs = [
                    r for r in _some(rows, data, setting, method) if (r["reading"], r["changes"]) == (reading, changes)
                ]
                cells = [_cell([r for r in runs if r["noise"] == noise], data, setting, method) for noise in NOISES]
                lines.append([f"{where}, *{reading}*{CHANGES[changes]}", *cells])
    return markdown(lines)


def _some(rows: list[Row], *key: str) -> list[Row]:
    return [r for r in rows if (r["dataset"], r["setting"], r["method"]) == key]


def _printed(data: str, setting: str, noise: str, method: str) -> str:
    """What the paper prints: an accuracy, a precision and a recall, as far as one of its tables has them."""
    if setting == "non-iid-0.5":
        return "–"
    found = _paper(data, setting, noise, method)
    accuracy = f"{found['accuracy'][0]:.2f} ± {found['accuracy'][1]:.2f}" if "accuracy" in found else "–"
    accuracy = accuracy.replace(" ± nan", "*")
    return f"{accuracy}; {found['precision'][0]:.1f} / {found['recall'][0]:.1f}" if "precision" in found else accuracy


def _paper(data: str, setting: str, noise: str, method: str) -> dict[str, tuple[float, float]]:
    """The paper's numbers by metric; Tables 3 and 4 print precision and recall, under names of their own."""
    names = {"1": METHODS[method][0], "3": METHODS[method][1], "4": METHODS[method][2]}
    where = {"cifar10": "cifar-10"}.get(data, data), "iid" if setting == "iid" else "non-iid", noise
    keys = [(table, *where, name, metric) for table, name in names.items() for metric in METRICS]
    return {key[-1]: PRINTED[key] for key in reversed(keys) if key in PRINTED}  # Table 1 before the others


def _cell(runs: list[Row], data: str, setting: str, method: str) -> str:
    """Accuracy of whole runs, or of those that came furthest, and precision and recall of D^x."""
    if not runs:
        return "–"
    most, begun = max(int(r["rounds"]) for r in runs), len(runs)
    runs = [r for r in runs if r["rounds"] == r["planned"]] or [r for r in runs if int(r["rounds"]) == most]
    whole = [float(r["final"]) for r in runs if r["rounds"] == r["planned"]]
    paper = _paper(data, setting, runs[0]["noise"], method) if setting != "non-iid-0.5" else {}
    chance = " ≈" if "accuracy" in paper and _alike(whole, *paper["accuracy"]) else ""
    reached = [float(r["final"]) for r in runs]
    accuracy = (
        _spread(whole) + chance
        if whole
        else _spread(reached, f"round {most}" + f" of {begun} seeds" * (len(runs) < begun))
    )
    quality = " / ".join(f"{statistics.fmean(float(r[name]) for r in runs):.1f}" for name in MEANS[:2])
    return f"{accuracy}; {quality}"


def _spread(values: list[float], reached: str = "") -> str:
    """The mean, in brackets the number of seeds, and where they were stopped."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    beside = [str(len(values))] if len(values) > 1 or not reached else []
    return f"{statistics.fmean(values):.2f}{deviation} ({', '.join([*beside, *filter(None, [reached])])})"


def _alike(values: list[float], mean: float, std: float) -> bool:
    """Whether Welch's test can't tell the seeds from the printed mean and deviation."""
    if len(values) < 2:
        return False
    own = statistics.fmean(values), statistics.stdev(values), len(values)
    return ttest_ind_from_stats(*own, mean, std, PAPERS_SEEDS, equal_var=False).pvalue >= CHANCE


def each() -> list[Row]:
    """The runs with *each* and IID clients, from the record of the paper's tables."""
    titles = {title: method for method, (title, *_) in METHODS.items()}
    found = []
    with EACH.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            dataset, _, rest = row["setting"].partition(" iid ")
            if dataset == "fashion-mnist" and rest in NOISES and row["method"] in titles:
                key = dict(zip(KEY, (dataset, "iid", rest, titles[row["method"]], "each", ""), strict=False))
                found.append({**row, **key, "planned": row["rounds"]})
    return found


def sums(rows: list[Row]) -> str:
    """The differences from Table 3's precision and recall, summed over its cells of Fashion-MNIST, for each reading."""
    found = {}
    for reading in ("each", "total"):
        found[reading] = 0.0
        for method in ("fednoil-logarithm", "fednoil-uniform-clients", "fednoil-uniform-local"):
            for noise in ("symmetric-high", "pair-high"):
                runs = [r for r in _some(rows, "fashion-mnist", "iid", method) if r["noise"] == noise]
                paper = _paper("fashion-mnist", "iid", noise, method)
                for metric in ("precision", "recall"):
                    values = [float(r[f"label_{metric}"]) for r in runs if r["reading"] == reading]
                    found[reading] += abs(statistics.fmean(values) - paper[metric][0])
    return (
        f"Over Table 3's six cells of Fashion-MNIST the differences from its precision and recall sum to "
        f"{found['each']:.1f} with *each* and {found['total']:.1f} with *total*."
    )


def page(rows: list[Row]) -> str:
    """The page with the table of these rows."""
    known = [*each(), *rows]
    parts = {"results": results(known), "sums": sums(known)}
    return fill(PAGE.read_text(encoding="utf-8"), parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="", help="of the version that made the runs, where they don't say")
    parser.add_argument("runs", nargs="*", type=Path)
    options = parser.parse_args()
    known = {tuple(str(row[name]) for name in KEY): row for row in read()}
    for folder in options.runs:
        row = row_of(folder, options.commit)
        known[tuple(str(row[name]) for name in KEY)] = row
    write(known.values())
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
