"""What each kernel file gains end to end: a turn with all of them against the same turn with one left to PyTorch.

    python benchmarks/kernels.py [--case fashion-mnist cifar10] [--epochs 4] [--kernel conv …] [--json FILE]

A turn of FedNoiL with the paper's CNN or its ResNet18, six clients at once (or 30, those of five runs), on images of
noise: augmentation, plans, steps and optimiser, captured in graphs as in a run. Each line is the shortest of three
turns after graphs were captured. A kernel that gains less than 1.2 × in all of them is not worth its code.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from fednoil import kernels, rounds
from fednoil.experiment import Experiment, make_executor
from floor import check_device, noise_experiment
from written import write

LEAST = 1.2
# name -> model, clients, samples of each, and the kernels that its turn can have
CASES: dict[str, tuple[str, int, int, tuple[str, ...]]] = {
    "fashion-mnist": ("cnn", 6, 600, ("conv", "sgd", "head", "views")),
    "five runs": ("cnn", 30, 600, ("conv", "sgd", "head", "views")),
    "cifar10": ("resnet18", 6, 500, ("conv", "norm", "sgd", "head", "views")),
}


def turn_ms(experiment: Experiment, clients: int, epochs: int) -> float:
    """Milliseconds of a turn of all clients, the shortest of three."""
    device = torch.device("cuda")
    executor = make_executor(experiment, device)
    state = rounds.placed(rounds.start(experiment), device)
    jobs = [rounds.make_job(experiment, state, k, epochs) for k in range(clients)]
    times = []
    for number in range(6):  # the first ones compile and capture: a shape gets its long graph the second time
        torch.cuda.synchronize()
        began = time.perf_counter()
        executor.train(jobs)
        torch.cuda.synchronize()
        if number >= 3:
            times.append(time.perf_counter() - began)
    return 1000 * min(times)


def measured(case: str, names: list[str], epochs: int) -> dict[str, float]:
    """The turn with all kernels and with each left out, by name."""
    model, clients, samples, used = CASES[case]
    experiment = noise_experiment({"name": model}, samples, clients, epochs, {"device": "cuda", "parallel": clients})
    found = {"all": turn_ms(experiment, clients, epochs)}
    for name in [name for name in used if not names or name in names]:
        torch.cuda.empty_cache()
        with kernels.without(name):
            found[name] = turn_ms(experiment, clients, epochs)
        print(f"{case:14} without {name:8} {found[name]:9.1f} ms, {found[name] / found['all']:5.2f} ×", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), nargs="+", default=list(CASES))
    parser.add_argument("--kernel", choices=kernels.KERNELS, nargs="+", default=[])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    given = parser.parse_args()
    check_device("cuda")
    found = {}
    for case in given.case:
        found[case] = measured(case, given.kernel, given.epochs)
        print(f"{case:14} with all         {found[case]['all']:9.1f} ms", flush=True)
    gains = {
        name: max(times[name] / times["all"] for times in found.values() if name in times)
        for name in kernels.KERNELS
        if any(name in times for times in found.values())
    }
    for name, gain in gains.items():
        print(f"{name:8} {gain:5.2f} × {'' if gain >= LEAST else f'less than {LEAST} ×'}")
    if given.json:
        device = torch.cuda.get_device_name()
        write(given.json, {"device": device, "epochs": given.epochs, "ms": found})


if __name__ == "__main__":
    main()
