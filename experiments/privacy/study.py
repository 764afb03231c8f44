"""Accuracy and ranking of clients over ε of the scores: `python experiments/privacy/study.py`.

Runs FedNoiL on the embedded data for each ε and seed, writes results.csv beside this file and the page's table.
`--table` only writes the table.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

import torch

from fednoil import __version__
from fednoil.config import load_config, merge, preset
from fednoil.pages.marked import fill
from fednoil.records.environment import commit
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent, run

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
EPSILONS = ["none", "10", "3", "1", "0.3", "0.1", "uniform"]
SEEDS = (0, 1, 2)
COLUMNS = ("epsilon", "seed", "accuracy", "rank_correlation", "selected_noise", "version")
VERSION = " ".join(filter(None, (__version__, commit())))


def measure(epsilon: str, seed: int) -> dict[str, object]:
    """One run of ten rounds; the means of ranking and selected noise are over its rounds."""
    changes: dict[str, dict[str, object]] = {
        "sampling": {} if epsilon in ("none", "uniform") else {"epsilon": float(epsilon)},
        "model": {"width": 6},
        "schedule": {"name": "constant", "epochs": 5},
        "train": {"rounds": 10},
        "run": {"seed": seed, "device": "cpu"},
    }
    if epsilon == "uniform":
        changes["sampling"] = {"name": "uniform"}
    with tempfile.TemporaryDirectory() as folder:
        summary = run(load_config(merge(preset("demo/fednoil"), changes)), Path(folder) / "run", Silent())
        records = RunFolder(Path(folder) / "run").records()
    ranks = [r.rank_correlation for r in records if r.rank_correlation is not None]
    return {
        "epsilon": epsilon,
        "seed": seed,
        "accuracy": round(summary["final_accuracy"], 2),
        "rank_correlation": round(-statistics.mean(ranks), 4) if ranks else "",
        "selected_noise": round(statistics.mean(r.selected_noise for r in records), 2),
        "version": VERSION,
    }


def table() -> str:
    """A line for each ε: mean ± standard deviation over the seeds."""
    with (HERE / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| ε | final accuracy | rank correlation with cleanness | noise of the selected, % |", "|---|---|---|---|"]
    for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
        mine = [row for row in rows if row["epsilon"] == epsilon]
        cells = [
            spread([float(r[name]) for r in mine if r[name]], d)
            for name, d in zip(COLUMNS[2:5], (1, 2, 1), strict=True)
        ]
        lines.append(f"| {epsilon} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def page() -> str:
    """The page with the table of the results."""
    return fill(PAGE.read_text(encoding="utf-8"), {"results": table()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    if not parser.parse_args().table:
        torch.set_num_threads(1)
        with (HERE / "results.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for epsilon in EPSILONS:
                for seed in SEEDS:
                    writer.writerow(measure(epsilon, seed))
                    file.flush()
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
