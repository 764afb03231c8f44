"""Clients of different sizes on a GPU: what a client's step costs in a non-IID run, against an IID one.

    python benchmarks/uneven.py [--rounds 30] [--runs 5] [--repeat 2] [--json benchmarks/results/uneven-h200.json]

Made images of ten classes, 20 clients of 600 on average (Dirichlet, β = 1) or exactly, symmetric noise, six clients a
round, 29 epochs, the paper's CNN: FedNoiL, whose steps are as many as its clients' samples ask for, and the default,
whose D^x also differs between clients of one size. Seconds and steps are those of the later rounds' records, after
graphs were captured; the shortest of the repeats counts. The same for several runs together. Fails if a step of a run
of its own takes more than 1.2 times as long in the non-IID run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fednoil.batch.cell import Cell
from fednoil.batch.together import run_together
from fednoil.batch.workers import Outcome
from fednoil.config import Config, load_config
from fednoil.history import RoundRecord
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent, run
from floor import check_device, device_name
from written import write

GOAL = 1.2
PARTITIONS: dict[str, dict[str, Any]] = {"iid": {"kind": "iid"}, "non-iid": {"kind": "dirichlet", "beta": 1.0}}
LEARNERS: dict[str, dict[str, Any]] = {
    "fednoil": {"learner": {"name": "fednoil", "frac": 0.35}, "sampling": {"name": "score", "fraction": 0.3}},
    "fednoil-plus": {"learner": {"name": "fednoil-plus"}, "sampling": {"fraction": 0.3}},
}


class Unseen:
    """A view that shows nothing."""

    def started(self, cell: Cell) -> None:
        pass

    def round(self, cell: Cell, record: RoundRecord) -> None:
        pass

    def ended(self, outcome: Outcome) -> None:
        pass


def made_images(path: Path, samples: int) -> Path:
    """Ten patterns under noise, as many images as 20 clients need, and a tenth for tests."""
    rng, count = np.random.default_rng(0), 20 * samples
    patterns = rng.integers(0, 128, (10, 28, 28))

    def split(size: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(size) % 10
        return (patterns[labels] + rng.integers(0, 128, (size, 28, 28))).astype(np.uint8), labels

    # Twice as many: a non-IID split draws each client's classes before its images.
    (x, y), (x_test, y_test) = split(2 * count), split(count // 10)
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return path


def configuration(args: argparse.Namespace, data: Path, learner: str, partition: str, seed: int) -> Config:
    return load_config(
        {
            **LEARNERS[learner],
            "data": {"name": f"npz:{data}"},
            "partition": {**PARTITIONS[partition], "clients": 20, "samples_per_client": args.samples},
            "noise": {"kind": "symmetric", "ratios": [0.5, 0.6, 0.7, 0.8]},
            "model": {"name": "cnn", "width": args.width},
            "schedule": {"name": "constant", "epochs": args.epochs},
            "train": {"rounds": args.rounds, "pad": 2},
            "run": {"device": args.device, "seed": seed},
        }
    )


def measured(configs: list[Config], folder: Path) -> dict[str, float]:
    """Seconds and client-steps of the later two thirds of the rounds."""
    cells = [Cell(config, str(seed), f"seed-{seed}", "") for seed, config in enumerate(configs)]
    if len(cells) == 1:
        run(cells[0].config, folder / cells[0].folder, Silent())
    else:
        reasons = [outcome.reason for outcome in run_together(cells, folder, None, Unseen())]
        if any(reasons) or len(reasons) < len(cells):
            sys.exit(f"the runs did not stay together: {reasons}")
    records = [RunFolder(folder / cell.folder).records() for cell in cells]
    first = len(records[0]) // 3
    steps = sum(of[-1].train_batches - of[first - 1].train_batches for of in records)
    # All runs wait for each other: a round of each lasts as long as one of all.
    seconds = sum(record.wall_s for record in records[0][first:])
    return {"seconds": round(seconds, 3), "steps": steps, "us_a_step": round(1e6 * seconds / steps, 2)}


def row_of(args: argparse.Namespace, data: Path, learner: str, runs: int) -> dict[str, Any]:
    row: dict[str, Any] = {"learner": learner, "runs": runs}
    for partition in PARTITIONS:
        found = []
        for _ in range(args.repeat):
            with tempfile.TemporaryDirectory() as folder:
                configs = [configuration(args, data, learner, partition, seed) for seed in range(runs)]
                found.append(measured(configs, Path(folder)))
        row[partition] = min(found, key=lambda one: one["us_a_step"])
    row["ratio"] = round(row["non-iid"]["us_a_step"] / row["iid"]["us_a_step"], 3)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=29)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--runs", type=int, default=5, help="runs together")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    check_device(args.device)
    rows = []
    print(
        "| learner | runs | client-steps: IID, non-IID | µs a client-step: IID, non-IID | ratio |\n"
        "|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        data = made_images(Path(folder) / "made.npz", args.samples)
        for learner in LEARNERS:
            for runs in (1, args.runs):
                rows.append(row := row_of(args, data, learner, runs))
                pairs = [", ".join(str(row[p][name]) for p in PARTITIONS) for name in ("steps", "us_a_step")]
                print(f"| {learner} | {runs} | {' | '.join(pairs)} | {row['ratio']} |", flush=True)
    if args.json:
        sizes = {name: getattr(args, name) for name in ("rounds", "epochs", "samples", "width")}
        write(args.json, {"device": device_name(args.device), "torch": torch.__version__, **sizes, "rows": rows})
    worst = max(row["ratio"] for row in rows if row["runs"] == 1)
    print(f"non-IID against IID, a run of its own: {worst} at most; the goal is {GOAL}")
    return 0 if worst <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
