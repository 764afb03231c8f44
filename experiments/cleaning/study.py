"""What cleaning buys, over seeds: `python experiments/cleaning/study.py` on the tutorial's four hospitals.

For each seed FedNoiL is trained and its labels are audited. Then FedNoiL and FedAvg are trained again after a given
percentage of each client's labels has been checked and corrected, in the audit's order or at random. Each training is
a row of results.csv; rows that are there are not repeated. `--table` only writes the page's table and the picture.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fednoil import __version__
from fednoil.audit import estimates
from fednoil.audit.budget import simulate
from fednoil.audit.cases import of_run
from fednoil.config import load_config, merge, preset
from fednoil.config.schema import Config
from fednoil.experiment import make_experiment
from fednoil.figures.drawing import Line, draw_lines
from fednoil.pages.marked import fill
from fednoil.records.environment import commit
from fednoil.runner import Silent, run

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
PAGE = HERE / "README.md"
PICTURE = HERE.parents[1] / "docs" / "pictures" / "audit-budget"
METHODS = {"FedNoiL": "demo/fednoil", "FedAvg": "demo/fedavg"}
BUDGETS = (10.0, 20.0, 40.0, 60.0)
VERSION = " ".join(filter(None, (__version__, commit())))
ORDERS = {"suspicious": "the most suspicious first", "random": "at random"}

Row = dict[str, Any]


def config_of(method: str, seed: int) -> Config:
    """The tutorial's setting."""
    changes = {
        "partition": {"clients": 4, "samples_per_client": 300},
        "noise": {"ratios": [0.33, 0.66]},
        "sampling": {"fraction": 0.5},
        "train": {"rounds": 6},
        "model": {"width": 8},
        "run": {"seed": seed, "device": "cpu"},
    }
    return load_config(merge(preset(METHODS[method]), changes))


def measure(seed: int, methods: list[str]) -> list[Row]:
    """All trainings of one seed."""
    cpu = torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        run(config_of("FedNoiL", seed), Path(folder) / "run", Silent())
        found = estimates(of_run(Path(folder) / "run", None, None, cpu))
    rows = []
    for method in methods:
        experiment = make_experiment(config_of(method, seed))
        for bought in simulate(
            experiment, found, BUDGETS, cpu, lambda line, m=method: print(f"seed {seed}, {m}: {line}")
        ):
            rows.append({"method": method, "seed": seed, **asdict(bought), "version": VERSION})
    return rows


def read() -> list[Row]:
    if not RESULTS.is_file():
        return []
    with RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v if k in ("method", "order", "version") else float(v) for k, v in row.items()} for row in rows]


def write(rows: list[Row]) -> None:
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def values(rows: list[Row], method: str, order: str, percent: float, name: str) -> list[float]:
    """One number of each seed."""
    order = order if percent else "none"
    return [r[name] for r in rows if (r["method"], r["order"], r["percent"]) == (method, order, percent)]


def table(rows: list[Row]) -> str:
    """A line for each budget: wrong labels left and accuracies, mean ± standard deviation over seeds."""
    lines = [
        "| looked at | order | wrong labels left, % | FedNoiL | FedAvg |",
        "|---|---|---|---|---|",
    ]
    for percent in (0.0, *BUDGETS):
        for order, words in ORDERS.items() if percent else [("none", "–")]:
            cells = [_spread(values(rows, "FedNoiL", order, percent, "noise_ratio"))]
            cells += [_spread(values(rows, method, order, percent, "final_accuracy")) for method in METHODS]
            lines.append(f"| {percent:g} % | {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    """The page with the table of these rows."""
    return fill(PAGE.read_text(encoding="utf-8"), {"results": table(rows)})


def _spread(numbers: list[float]) -> str:
    if len(numbers) < 2:
        return f"{numbers[0]:.1f}" if numbers else "–"
    return f"{statistics.mean(numbers):.1f} ± {statistics.stdev(numbers):.1f}"


def draw(rows: list[Row]) -> None:
    """Wrong labels left and each method's accuracy over the budget, mean and range over seeds."""
    x, lines = np.array([0.0, *BUDGETS]), []
    panels = {"wrong labels": ("FedNoiL", "noise_ratio"), **{m: (m, "final_accuracy") for m in METHODS}}
    for panel, (method, name) in panels.items():
        for order, words in ORDERS.items():
            found = np.array([values(rows, method, order, percent, name) for percent in x])
            y, low, high = found.mean(1), found.min(1), found.max(1)
            lines.append(Line(panel, words, x, y, low, high, found.shape[1], dashed=order == "random"))
    share = "labels looked at, %"
    labels = dict.fromkeys(METHODS, (share, "final test accuracy, %")) | {
        "wrong labels": (share, "wrong labels left, %")
    }
    made = draw_lines(lines, f"What cleaning buys (mean and range of {lines[0].seeds} seeds)", labels, PICTURE)
    for path in made:
        if path.suffix != ".png":  # the numbers are in results.csv
            path.unlink()
    picture = PICTURE.with_suffix(".png")
    whole = Image.open(picture).convert("RGB")
    small = whole.resize((whole.width * 3 // 8, whole.height * 3 // 8), Image.Resampling.LANCZOS)
    small.quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows = read()
    for seed in [] if options.table else options.seeds:
        missing = [m for m in METHODS if not any(r["method"] == m and r["seed"] == seed for r in rows)]
        if missing:
            rows += measure(seed, missing)
            write(rows)
    PAGE.write_text(page(rows), encoding="utf-8")
    draw(rows)


if __name__ == "__main__":
    main()
