"""What clients that lie cost in accuracy, with and without limits: `python experiments/liars/study.py`.

Simulates each attack, server and seed on the embedded data, writes results.csv beside this file and the page's table.
`--table` only writes the table.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fednoil import __version__, rounds
from fednoil.config import load_config
from fednoil.errors import Diverged
from fednoil.executors.base import Job, Look, Result
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.pages.marked import fill
from fednoil.records.environment import commit
from fednoil.rounds import Policy
from fednoil.sampling import Scoring
from fednoil.tensors import Tensors

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
SEEDS = (0, 1)
LIARS = (0, 1)  # of ten clients
COLUMNS: tuple[str, ...] = ("attack", "server", "limits", "seed", "accuracy", "drawn", "version")

Change = Callable[[Tensors, Tensors], Tensors]  # sent, honest update -> what a liar sends


def moved(factor: float) -> Change:
    """An update this many times as long."""
    return lambda sent, update: {
        n: sent[n] + factor * (t - sent[n]) if t.is_floating_point() else t for n, t in update.items()
    }


def constant(sent: Tensors, update: Tensors) -> Tensors:
    return {n: torch.full_like(t, 0.05) if t.is_floating_point() else t for n, t in update.items()}


ATTACKS: dict[str, tuple[Change | None, bool, bool]] = {  # change, largest score, wrong labels
    "none": (None, False, False),
    "update × 60": (moved(60), False, False),
    "update × -10": (moved(-10), False, False),
    "constant weights": (constant, False, False),
    "replay of round 1": (None, False, False),
    "largest score": (None, True, False),
    "largest score, all labels wrong": (None, True, True),
}
SERVERS = ("fedavg", "median")


class Attacked:
    """An executor some of whose clients lie."""

    slower = None

    def __init__(self, experiment: Experiment, attack: str) -> None:
        self.inner: Any = make_executor(experiment, torch.device("cpu"))
        self.policy = Policy(experiment, self)  # pyright: ignore
        self.attack, (self.change, self.claims, mislabelled) = attack, ATTACKS[attack]
        self.sizes, self.classes, self.first = experiment.task.sizes, experiment.task.num_classes, dict[int, Tensors]()
        if mislabelled:
            wrong = {k: self.inner.clients[k] for k in LIARS}
            self.inner.clients = {
                **self.inner.clients,
                **{k: replace(c, labels=(c.labels + 1) % self.classes) for k, c in wrong.items()},
            }

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        found = self.inner.scores(jobs, sampling)
        if self.claims:
            found |= {k: replace(found[k], score=sampling.largest(self.sizes[k])) for k in LIARS}
        return found

    def train(self, jobs: Sequence[Job], progress: Any = None) -> list[Result]:
        sent = {job.client: job.received for job in jobs}
        return [self._sent(sent[r.client], r) if r.client in LIARS else r for r in self.inner.train(jobs, progress)]

    def _sent(self, sent: Tensors, honest: Result) -> Result:
        if self.attack == "replay of round 1":
            return replace(honest, tensors=self.first.setdefault(honest.client, honest.tensors))
        return honest if self.change is None else replace(honest, tensors=self.change(sent, honest.tensors))


def measure(attack: str, server: str, limits: bool, seed: int) -> dict[str, object]:
    """Twelve rounds; the last model's accuracy, and how many of the rounds' places the liars had."""
    values: dict[str, Any] = {
        "partition": {"clients": 10},
        "noise": {"kind": "symmetric", "ratios": [0.1, 0.3, 0.5]},
        "model": {"name": "cnn", "width": 6},
        "sampling": {"name": "score", "fraction": 0.5},
        "server": {"name": server, "limits": limits},
        "schedule": {"name": "constant", "epochs": 2},
        "train": {"rounds": 12},
        "run": {"seed": seed, "device": "cpu"},
    }
    experiment = make_experiment(load_config(values))
    executor: Any = Attacked(experiment, attack)
    state, accuracy, drawn = rounds.start(experiment), 10.0, []
    try:
        for _ in range(12):
            state, record = rounds.play(experiment, executor, state)
            accuracy = record.test_accuracy or 0.0
            drawn.append(sum(k in LIARS for k in record.selected) / len(record.selected))
    except Diverged:
        accuracy = 10.0  # a guess: the model holds numbers that are not finite
    share = round(100 * statistics.mean(drawn), 1) if drawn else ""
    known = {"attack": attack, "server": server, "limits": "yes" if limits else "no", "seed": seed}
    return known | {
        "accuracy": round(accuracy, 2),
        "drawn": share,
        "version": " ".join(filter(None, (__version__, commit()))),
    }


def table() -> str:
    """A line for each attack: accuracy by server without and with limits, and how often liars were drawn."""
    with (HERE / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    heads = [f"{server}{', limits' if limits == 'yes' else ''}" for server in SERVERS for limits in ("no", "yes")]
    lines = [f"| attack | {' | '.join(heads)} | liars drawn | with limits |", f"|---|{len(heads) * '---|'}---|---|"]
    for attack in dict.fromkeys(row["attack"] for row in rows):
        cells = [
            spread([row for row in rows if (row["attack"], row["server"], row["limits"]) == (attack, server, limits)])
            for server in SERVERS
            for limits in ("no", "yes")
        ]
        for limits in ("no", "yes"):
            mine = [r for r in rows if (r["attack"], r["server"], r["limits"]) == (attack, "fedavg", limits)]
            cells.append(f"{statistics.mean(float(r['drawn']) for r in mine if r['drawn']):.0f} %")
        lines.append(f"| {attack} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(rows: list[dict[str, str]]) -> str:
    found = [float(row["accuracy"]) for row in rows]
    return f"{statistics.mean(found):.1f} ± {statistics.stdev(found):.1f}"


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
            for attack in ATTACKS:
                for server in SERVERS:
                    for limits in (False, True):
                        for seed in SEEDS:
                            writer.writerow(measure(attack, server, limits, seed))
                            file.flush()
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
