"""Accuracy and ranking of clients over ε of the scores: `python experiments/score-privacy/study.py`.

Runs FedNoiL on the embedded data for each ε and seed, writes results.csv beside this file, prints the table and draws
the picture. `--table` only does the last two.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from fednoil.config import load_config, merge, preset
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent, run

HERE = Path(__file__).parent
EPSILONS = ["none", "10", "3", "1", "0.3", "0.1", "uniform"]
SEEDS = (0, 1, 2)
COLUMNS = ("epsilon", "seed", "accuracy", "rank_correlation", "selected_noise")


def measure(epsilon: str, seed: int) -> dict[str, object]:
    """One run of ten rounds; the means of ranking and selected noise are over its rounds."""
    changes: dict[str, dict[str, object]] = {
        "server": {} if epsilon in ("none", "uniform") else {"score_epsilon": float(epsilon)},
        "model": {"width": 6},
        "schedule": {"name": "constant", "epochs": 5},
        "train": {"rounds": 10},
        "run": {"seed": seed, "device": "cpu"},
    }
    if epsilon == "uniform":
        changes["server"] = {"sampling": "uniform"}
    with tempfile.TemporaryDirectory() as folder:
        summary = run(load_config(merge(preset("demo/fednoil"), changes)), Path(folder) / "run", Silent())
        records = RunFolder(Path(folder) / "run").records()
    ranks = [r["rank_correlation"] for r in records if "rank_correlation" in r]
    return {
        "epsilon": epsilon,
        "seed": seed,
        "accuracy": round(summary["final_accuracy"], 2),
        "rank_correlation": round(-statistics.mean(ranks), 4) if ranks else "",
        "selected_noise": round(statistics.mean(r["noise_ratio"] for r in records), 2),
    }


def table() -> dict[str, dict[str, list[float]]]:
    """The results by ε: each figure's values over the seeds; printed as Markdown."""
    with (HERE / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for name in COLUMNS[2:]:
            found.setdefault(row["epsilon"], {}).setdefault(name, [])
            if row[name]:
                found[row["epsilon"]][name].append(float(row[name]))
    print("| ε | final accuracy | rank correlation with cleanness | noise of the selected |\n|---|---|---|---|")
    for epsilon, figures in found.items():
        cells = [
            f"{statistics.mean(v):.{d}f} ± {statistics.stdev(v):.{d}f}" if v else "–"
            for v, d in zip(figures.values(), (1, 2, 1), strict=True)
        ]
        print(f"| {epsilon} | {' | '.join(cells)} |")
    return found


def draw(found: dict[str, dict[str, list[float]]]) -> None:
    epsilons = [e for e in found if e not in ("none", "uniform")]
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 3.3), layout="constrained")
    panels = (("accuracy", "final test accuracy, %"), ("rank_correlation", "rank correlation with cleanness"))
    for axis, (name, label) in zip(axes, panels, strict=True):
        values = [found[e][name] for e in epsilons]
        axis.errorbar(
            [float(e) for e in epsilons],
            [statistics.mean(v) for v in values],
            [statistics.stdev(v) for v in values],
            marker="o",
            capsize=3,
            color="#0072B2",
            label="with noise on the scores",
        )
        axis.axhline(statistics.mean(found["none"][name]), color="#009E73", linestyle="--", label="scores as they are")
        if found["uniform"][name]:
            axis.axhline(
                statistics.mean(found["uniform"][name]), color="#D55E00", linestyle=":", label="uniform sampling"
            )
        axis.set_xscale("log")
        axis.set_xlabel("ε of all scores of a client")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "epsilon.png", dpi=150)


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
    draw(table())


if __name__ == "__main__":
    main()
