"""What a learner's local update costs over plain cross-entropy, against the ratio that its arithmetic implies.

The arithmetic is counted, not assumed: every image that passes a network counts 1 without gradients and 3 with them
(a backward pass is twice a forward one), in a whole turn with all that a learner does before and between its steps.
Turns of all learners alternate on the same executor, so that whatever else the machine does falls on all alike; times
are the shortest, since other programs only ever add to them, and on a CPU one thread's own seconds. A learner may take
1.3 times what its passes imply: the rest is augmentation, losses and bookkeeping.

    python benchmarks/learners.py [--turns 9] [--epochs 3] [--width 12] [--clients 1] [--preset NAME] [--device cpu]

`--preset` takes the data, noise and model of a preset, such as the paper's, in place of the demo's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fednoil.config import load_config
from fednoil.executors.base import Executor, Job
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.base import Turn
from fednoil.models.network import Network
from fednoil.study import preset
from floor import check_device

LIMIT = 1.3
# name -> learner's section and the round that is timed; methods with a warm-up have a row for each part.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "erm": ({"name": "erm"}, 20),
    "fednoil": ({"name": "fednoil", "frac": 0.35}, 20),
    "dividemix, warm-up": ({"name": "dividemix", "warmup": 30}, 20),
    "dividemix": ({"name": "dividemix", "warmup": 10}, 20),
    "josrc, warm-up": ({"name": "josrc", "warmup": 30}, 20),
    "josrc": ({"name": "josrc", "warmup": 10}, 20),
    "coteaching": ({"name": "coteaching"}, 20),
    "jocor": ({"name": "jocor"}, 20),
}


@dataclass
class Case:
    """One learner, ready for its turn again and again."""

    executor: Executor
    jobs: list[Job]
    forward: int = 0  # images through a network without gradients in a turn
    trained: int = 0  # and with gradients
    seconds: list[float] = field(default_factory=list)

    @property
    def passes(self) -> int:
        return self.forward + 3 * self.trained

    def turn(self) -> None:
        self.executor.train(self.jobs)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """On a CPU the process's own seconds, on a GPU those until it is done."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    began = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def settings(section: dict[str, Any] | None, args: argparse.Namespace) -> dict[str, Any]:
    """The configuration of a case: the demo's setting, or a preset's, with a learner (none: the preset's own)."""
    values: dict[str, Any] = {
        "noise": {"kind": "symmetric"},
        "model": {"name": "cnn", "width": args.width},
        "train": {"rounds": 100, "lr": 0.01, "pad": 2},
    }
    if args.preset:
        chosen = preset(args.preset)
        names = ("data", "partition", "noise", "model", "train", *(() if section else ("learner",)))
        values = {name: chosen[name] for name in names if name in chosen}
    return values | ({"learner": section} if section else {}) | {"schedule": {"epochs": args.epochs}}


def jobs_of(values: dict[str, Any], round_idx: int, args: argparse.Namespace) -> tuple[Experiment, list[Job]]:
    """A round of the first clients, all with a model that has learnt something."""
    experiment = make_experiment(load_config(values))
    model, seed = _trained(values, torch.device(args.device)), experiment.seed.child("round", round_idx)
    turns = [Turn(round_idx, args.epochs, seed.child("client", k)) for k in range(args.clients)]
    return experiment, [Job(k, model, {}, turn) for k, turn in enumerate(turns)]


def make_case(section: dict[str, Any], round_idx: int, args: argparse.Namespace) -> Case:
    """Count the images of one client's turn on the reference executor; the one that is timed may capture and replay."""
    values, device = settings(section, args), torch.device(args.device)
    experiment, jobs = jobs_of(values, round_idx, args)
    case = Case(make_executor(experiment, device), jobs)
    reference = make_experiment(load_config({**values, "run": {"parallel": 0}}))
    plain = Network.__call__

    def counted(net: Network, images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            case.trained += args.clients * len(images)
        else:
            case.forward += args.clients * len(images)
        return plain(net, images)

    Network.__call__ = counted  # type: ignore[method-assign]
    try:
        make_executor(reference, device).train(case.jobs[:1])
    finally:
        Network.__call__ = plain  # type: ignore[method-assign]
    return case


def _trained(values: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    """A model after some cross-entropy, for every network: losses that differ between labels, as in mid-run."""
    start = make_experiment(load_config({**values, "learner": {"name": "erm"}, "run": {"parallel": 0}}))
    turn = Turn(1, 5, start.seed.child("start"))
    (result,) = make_executor(start, device).train([Job(1, start.initial_model(), {}, turn)])
    experiment = make_experiment(load_config(values))
    networks = [role.name for role in experiment.learner.roles if role.shared]
    return {name.replace("model/", f"{n}/", 1): t for n in networks for name, t in result.tensors.items()}


def forward_price(args: argparse.Namespace, repeats: int = 30) -> float:
    """What a bare forward pass of 32 images costs of a forward and backward one, each the shortest of some."""
    device = torch.device(args.device)
    experiment = make_experiment(load_config({"model": {"name": "cnn", "width": args.width}}))
    net = Network(experiment.build_model("model"), *experiment.normalisation, device)
    images = torch.tensor(experiment.setting.dataset.train.images[:32], device=device)

    def both() -> None:
        net(images).square().mean().backward()

    forward = torch.no_grad()(lambda: net(images))
    times = [(seconds(forward, device), seconds(both, device)) for _ in range(repeats)]
    return min(t for t, _ in times) / min(t for _, t in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--preset")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    check_device(args.device)
    device = torch.device(args.device)
    torch.set_num_threads(1)
    cases = {name: make_case(section, round_idx, args) for name, (section, round_idx) in CASES.items()}
    for _ in range(args.turns + 1):
        for case in cases.values():
            case.seconds.append(seconds(case.turn, device))
    shortest = {name: min(case.seconds[1:]) for name, case in cases.items()}  # the first one warms up
    base, unit = cases["erm"].passes, shortest["erm"]
    print("| learner | images a turn: without, with gradients | implied ratio | measured | measured / implied |")
    print("|---|---|---|---|---|")
    over = {}
    for name, case in cases.items():
        implied, measured = case.passes / base, shortest[name] / unit
        over[name] = measured / implied
        print(f"| {name} | {case.forward}, {case.trained} | {implied:.2f} | {measured:.2f} | {over[name]:.2f} |")
    print(f"a turn of {args.clients} clients, {args.epochs} epochs, shortest of {args.turns}, on {device}")
    print(f"a bare forward pass costs {forward_price(args):.2f} of a forward and backward one; implied counts 0.33")
    slow = [name for name, ratio in over.items() if ratio > LIMIT]
    if slow:
        sys.exit(f"more than {LIMIT} times what the passes imply: {', '.join(slow)}")


if __name__ == "__main__":
    main()
