"""Our engine against a plain PyTorch loop that does the same work, as a ratio in one process.

One round: 20 clients, 6 of them trained by cross-entropy with weak augmentation, averaged, and tested. The plain loop
uses a module, torch.optim.SGD and state_dicts; the augmentation is the package's own in both, so the ratio shows what
the engine costs. Rounds of both alternate, so that other load on the machine affects both alike; the ratio is that of
the medians.

    python benchmarks/plain_loop.py [--rounds 15] [--epochs 5] [--width 12]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time

import torch
from torch import nn

from fednoil import rounds
from fednoil.augment import weak, weak_plan
from fednoil.config import load_config
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.schedules import make
from fednoil.seeds import Seed

LIMIT = 1.05


class PlainLoop:
    """FedAvg in plain PyTorch."""

    def __init__(self, experiment: Experiment) -> None:
        self.config = experiment.config
        dataset = experiment.setting.dataset
        self.model = experiment.build_model("model")
        self.local = copy.deepcopy(self.model)
        self.images = torch.tensor(dataset.train.images)
        self.test_images, self.test_labels = torch.tensor(dataset.test.images), torch.tensor(dataset.test.labels)
        self.mean, self.std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
        pairs = zip(experiment.setting.parts, experiment.setting.labels.given, strict=True)
        self.clients = [(torch.tensor(p), torch.tensor(y)) for p, y in pairs]

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        return (images.float() / 255 - self.mean) / self.std

    def round(self, number: int) -> float:
        """One round; returns the test accuracy."""
        train = self.config.train
        selected = torch.randperm(len(self.clients))[:6].tolist()
        total = sum(len(self.clients[k][0]) for k in selected)
        average = {name: torch.zeros_like(t) for name, t in self.model.state_dict().items()}
        for k in selected:
            index, labels = self.clients[k]
            self.local.load_state_dict(self.model.state_dict())
            self.local.train()
            sgd = torch.optim.SGD(
                self.local.parameters(), lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay
            )
            for epoch in range(make(self.config.schedule).epochs(number)):
                order = torch.randperm(len(index))
                order = torch.cat([order, order[: -len(order) % train.batch_size]])
                views = weak_plan(Seed(number).child(k, epoch).keys(["weak"]), len(order), train.pad)[0]
                for start in range(0, len(order), train.batch_size):
                    chosen = order[start : start + train.batch_size]
                    images = weak(self.images, index[chosen], views[start : start + train.batch_size])
                    sgd.zero_grad()
                    nn.functional.cross_entropy(self.local(self.normalised(images)), labels[chosen]).backward()
                    sgd.step()
            for name, tensor in self.local.state_dict().items():
                average[name] += tensor * (len(index) / total)
        self.model.load_state_dict(average)
        self.model.eval()
        with torch.no_grad():
            right = sum(
                int((self.model(self.normalised(x)).argmax(1) == y).sum())
                for x, y in zip(self.test_images.split(1000), self.test_labels.split(1000), strict=True)
            )
        return 100 * right / len(self.test_labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=12)
    args = parser.parse_args()
    experiment = make_experiment(
        load_config(
            {
                "noise": {"kind": "symmetric"},
                "model": {"name": "cnn", "width": args.width},
                "schedule": {"epochs": args.epochs},
                "train": {"rounds": args.rounds},
            }
        )
    )
    plain, executor, state = (
        PlainLoop(experiment),
        make_executor(experiment, torch.device("cpu")),
        rounds.start(experiment),
    )
    times: dict[str, list[float]] = {"plain": [], "fednoil": []}
    for number in range(1, args.rounds + 1):
        began = time.perf_counter()
        plain_accuracy = plain.round(number)
        middle = time.perf_counter()
        state, record = rounds.play(experiment, executor, state)
        times["plain"].append(middle - began)
        times["fednoil"].append(time.perf_counter() - middle)
        ratio = times["fednoil"][-1] / times["plain"][-1]
        print(f"round {number}/{args.rounds}: {ratio:.3f}", flush=True)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}  # the first one warms up
    ratio = medians["fednoil"] / medians["plain"]
    print(f"accuracy after {args.rounds} rounds: plain {plain_accuracy:.1f} %, fednoil {record.test_accuracy:.1f} %")
    threads = torch.get_num_threads()
    print(f"ratio of a round, fednoil / plain loop: {ratio:.3f}  (median of {args.rounds - 1}, {threads} threads)")
    if ratio > LIMIT:
        sys.exit(f"slower than {LIMIT} times the plain loop")


if __name__ == "__main__":
    main()
