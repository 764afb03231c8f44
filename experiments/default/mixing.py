"""Should clients with a few hundred labels mix pairs? Agreement with held-out given labels, with mixup and without.

    python experiments/default/mixing.py

scikit-learn's digits at four sites of 350 with 5 to 45 % wrong labels, as in docs/tutorial.ipynb; a tenth of each is
held out. Writes `mixing.csv` and the table on the page.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import fednoil
from fednoil.learners.fednoil_plus import FedNoilPlus
from fednoil.pages.marked import fill
from fednoil.records.environment import environment

HERE = Path(__file__).parent
FIELDS = ("seed", "mixup", "agreement", "test_accuracy", "commit")
SHARES = {"north": 0.05, "east": 0.15, "south": 0.3, "west": 0.45}
KEYS = {"train.rounds": 15, "train.pad": 1, "schedule.epochs": 15, "schedule.t_min": 15, "data.validation": 0.1}


class Always(FedNoilPlus):
    """The default with mixup for all clients."""

    mixes_from = 0  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def measure(seed: int, mixup: bool) -> dict[str, Any]:
    digits, rng = load_digits(), np.random.default_rng(seed)
    images, truth = digits.images / 16, digits.target
    order = rng.permutation(len(images))
    sites = {}
    for (name, share), rows in zip(SHARES.items(), np.split(order[397:], 4), strict=True):
        errors = (rng.random(len(rows)) < share) * rng.integers(1, 10, len(rows))
        sites[name] = images[rows], (truth[rows] + errors) % 10
    keys = {**KEYS, "run.device": "cpu", "learner.name": "mixing:Always" if mixup else "fednoil-plus"}
    test = images[order[:397]], truth[order[:397]]
    run = fednoil.run("demo", data=sites, test=test, seed=seed, set=keys, progress=False)
    rounds = run.history
    return {
        "seed": seed,
        "mixup": "yes" if mixup else "no",
        "agreement": f"{statistics.fmean(rounds['val_accuracy'][-5:]):.1f}",
        "test_accuracy": f"{rounds['test_accuracy'][-1]:.1f}",
        "commit": environment(torch.device("cpu"), "float32").get("commit", ""),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| | agreement, seeds 0, 1, 2 | test accuracy |", "|---|---|---|"]
    for mixup, title in (("yes", "mixup"), ("no", "none")):
        own = [row for row in rows if row["mixup"] == mixup]
        lines.append(f"| {title} | " + " | ".join(", ".join(r[n] for r in own) for n in FIELDS[2:4]) + " |")
    return "\n".join(lines)


def main() -> None:
    rows = [measure(seed, mixup) for seed in range(3) for mixup in (True, False)]
    with (HERE / "mixing.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    page = HERE / "README.md"
    page.write_text(fill(page.read_text(encoding="utf-8"), {"mixing": table(rows)}), encoding="utf-8")


if __name__ == "__main__":
    main()
