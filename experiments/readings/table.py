"""The record of this study, one line a run, and the tables of its page.

    python experiments/readings/table.py [--commit COMMIT] [RUNS ...]

Given run folders are added to `results.csv`, in place of earlier ones of the same setting, noise, method, reading and
seed. What was run with *each* and IID clients is in the record of the paper's tables.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from scipy.stats import ttest_ind_from_stats

from fednoil.pages.marked import fill

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
PAPER = next((HERE.parents[1] / "src/fednoil").rglob("tables.csv"))
EACH = HERE.parent / "paper/results.parquet"
KEY = ("dataset", "setting", "noise", "method", "reading", "changes", "seed")
MEANS = ("label_precision", "label_recall", "effective_precision", "effective_recall", "selected_noise")
FIELDS = (*KEY, "rounds", "planned", "final", "best", "last10", *MEANS, "batches", "seconds", "device", "commit")
NOISES = ("symmetric-high", "symmetric-low", "pair-high", "pair-low")
PRINTED = {"fednoil-cosine": "FedNoiL(Cosine)", "fednoil-logarithm": "FedNoiL(Logarithm)"}
TABLE_3 = {
    "fednoil-logarithm": "FedNoiL(Original)",
    "fednoil-uniform-clients": "FedNoiL(Uniform Client Sampling)",
    "fednoil-uniform-local": "FedNoiL(Uniform Local-Data Sampling)",
}
TABLE_4 = {
    "fednoil-logarithm": ("FedNoiL(Logarithm)", "FedNoiL"),
    "fednoil-no-ssl": ("without SSL", "FedNoiL†"),
}
CHANGES = {"": "", "learner-x_augment-strong": ", strong views of D^x", "first-70": ", its first rounds"}
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


def printed() -> dict[tuple[str, ...], tuple[float, float]]:
    """The paper's means and deviations by table, dataset, setting, noise, method and metric."""
    rows = csv.DictReader(PAPER.read_text(encoding="utf-8").splitlines())
    return {
        (r["table"], r["dataset"], r["setting"], f"{r['noise']}-{r['mode']}", r["method"], r["metric"]): (
            float(r["mean"]),
            float(r["std"] or "nan"),
        )
        for r in rows
    }


def markdown(lines: list[list[str]]) -> str:
    marked = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([marked[0], "|---" * len(lines[0]) + "|", *marked[1:]])


def accuracies(rows: list[Row]) -> str:
    """Fashion-MNIST's cells beside the paper's, *total* but for the last line."""
    paper = printed()
    lines = [["clients, method", *NOISES]]
    for setting, name in (("iid", "IID"), ("non-iid-1", "β = 1"), ("non-iid-0.5", "β = 0.5")):
        for method, title in PRINTED.items():
            line, beside = [f"{name}, {title}"], [f"paper, {'IID' if setting == 'iid' else 'non-IID'}"]
            for noise in NOISES:
                values = _values(rows, "fashion-mnist", setting, noise, method, "total")
                split = "iid" if setting == "iid" else "non-iid"
                mean, std = paper["1", "fashion-mnist", split, noise, title, "accuracy"]
                line.append(_spread(values) + (" ≈" if _alike(values, mean, std) else ""))
                beside.append(f"{mean:.2f} ± {std:.2f}")
            lines += [line, beside] if setting != "non-iid-0.5" else [line]
    key = ("non-iid-1", "fednoil-logarithm", "each")
    values = [_values(rows, "fashion-mnist", key[0], noise, *key[1:]) for noise in NOISES]
    lines.append(["β = 1, FedNoiL(Logarithm), *each*", *map(_spread, values)])
    return markdown(lines)


def _values(rows: list[Row], *key: str) -> list[float]:
    """Final accuracies of whole runs."""
    found = [r for r in rows if tuple(r[name] for name in KEY[:5]) == key and not r["changes"]]
    return [float(r["final"]) for r in found if r["rounds"] == r["planned"]]


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation} ({len(values)})"


def _alike(values: list[float], mean: float, std: float) -> bool:
    """Whether Welch's test can't tell the seeds from the printed mean and deviation."""
    if len(values) < 2:
        return False
    own = statistics.fmean(values), statistics.stdev(values), len(values)
    return ttest_ind_from_stats(*own, mean, std, PAPERS_SEEDS, equal_var=False).pvalue >= CHANCE


def each() -> dict[tuple[str, str], tuple[float, float, int]]:
    """Precision and recall with *each*, by noise and method: means over rounds and seeds, and the number of seeds."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in pq.read_table(EACH).to_pylist():
        config = json.loads(row["config"])
        noise, learner = config["noise"], config["learner"]
        if (config["data"]["name"], config["partition"]["kind"], learner["name"]) != (
            "fashion-mnist",
            "iid",
            "fednoil",
        ):
            continue
        if learner.get("frac") != 0.35 or noise.get("pair_map", "per_client") != "per_client" or not learner["ssl"]:
            continue
        if config["train"].get("pad") != 2 or config["schedule"]["name"] != "logarithm":
            continue
        if config["schedule"]["r_min"] != 80 or not row["label_precision"] or not row["finished"]:
            continue
        method = "fednoil-logarithm"
        if learner["local_sampling"] == "uniform":
            method = "fednoil-uniform-local"
        elif config["server"]["sampling"] == "uniform":
            method = "fednoil-uniform-clients"
        both = tuple(statistics.fmean(v for v in row[n] if v is not None) for n in ("label_precision", "label_recall"))
        found.setdefault((f"{noise['kind']}-high", method), []).append((both[0], both[1]))
    return {k: (*(statistics.fmean(v[i] for v in values) for i in (0, 1)), len(values)) for k, values in found.items()}


def labels(rows: list[Row]) -> tuple[str, dict[str, float]]:
    """Table 3's precision and recall beside both readings, and the sum of each reading's differences."""
    paper, before, sums = printed(), each(), {"each": 0.0, "total": 0.0}
    lines = [["noise, method", "paper", "each", "total"]]
    for noise in ("symmetric-high", "pair-high"):
        for method, title in TABLE_3.items():
            want = [paper["3", "fashion-mnist", "iid", noise, title, metric][0] for metric in ("precision", "recall")]
            key = ("fashion-mnist", "iid", noise, method, "total")
            runs = [r for r in rows if tuple(r[name] for name in KEY[:5]) == key]
            total = [statistics.fmean(float(r[name]) for r in runs) for name in MEANS[:2]]
            line = [f"{noise}, {title}", f"{want[0]:.1f} / {want[1]:.1f}"]
            for name, (got, count) in {
                "each": (before[noise, method][:2], before[noise, method][2]),
                "total": (total, len(runs)),
            }.items():
                sums[name] += sum(abs(a - b) for a, b in zip(got, want, strict=True))
                line.append(f"{got[0]:.1f} / {got[1]:.1f} ({count})")
            lines.append(line)
    lines.append(["sum of differences", "", *(f"{sums[name]:.1f}" for name in ("each", "total"))])
    return markdown(lines), sums


def cifar(rows: list[Row]) -> str:
    """CIFAR-10 beside the paper's Table 4."""
    paper = printed()
    lines = [
        ["CIFAR-10, IID, seed 0", "reading", "round", "accuracy", "precision / recall of D^x (sum of differences)"]
    ]
    for noise in ("symmetric-high", "pair-high"):
        for method, (title, name) in TABLE_4.items():
            runs = [r for r in rows if (r["dataset"], r["noise"], r["method"]) == ("cifar10", noise, method)]
            want = {m: paper["4", "cifar-10", "iid", noise, name, m][0] for m in ("accuracy", "precision", "recall")}
            for r in runs:
                off = sum(abs(float(r[f"label_{m}"]) - want[m]) for m in ("precision", "recall"))
                changes = CHANGES[r["changes"]]
                both = f"{float(r['label_precision']):.1f} / {float(r['label_recall']):.1f} ({off:.1f})"
                reached = f"{r['rounds']} of {r['planned']}"
                lines.append([f"{noise}, {title}{changes}", r["reading"], reached, r["final"], both])
            if runs:
                want = {
                    m: paper["4", "cifar-10", "iid", noise, name, m][0] for m in ("accuracy", "precision", "recall")
                }
                quality = f"{want['precision']:.1f} / {want['recall']:.1f}"
                lines.append([f"{noise}, {title}, paper", "", "", f"{want['accuracy']:.2f}", quality])
    return markdown(lines)


def page(rows: list[Row]) -> str:
    """The page with the tables of these rows."""
    parts = {"accuracy": accuracies(rows), "labels": labels(rows)[0], "cifar": cifar(rows)}
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
