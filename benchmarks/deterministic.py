"""What `run.deterministic` costs: some clients' turn with it against the same turn without.

The ways alternate in one process, each on its own executor, and its first turns warm up: there graphs are captured.
Times are the shortest. The third way has what PyTorch adds to deterministic algorithms by default and a run leaves out:
it fills all new memory with known values, for programs that read what they haven't written. A run on a CPU is the same
to the bit anyway and doesn't set any of this; there the script only shows what PyTorch's switch would cost. cuBLAS
takes the workspace that deterministic runs need in all three ways, because a process decides on it once.

    python benchmarks/deterministic.py [--learners fednoil dividemix] [--turns 9] [--epochs 3] [--width 12]
        [--clients 1] [--preset NAME] [--device cpu]
"""

from __future__ import annotations

import argparse

import torch
from torch.utils import deterministic as memory

from fednoil.devices import be_deterministic
from fednoil.experiment import make_executor
from floor import check_device, device_name
from learners import CASES, jobs_of, seconds, settings

# way -> whether algorithms are deterministic, whether new memory is filled
WAYS = {"without": (False, True), "with": (True, False), "with, and new memory filled": (True, True)}
WARM_UP = 3  # the shapes of steps come, come again and are captured eight at a time, and are all known


def measure(learner: str, args: argparse.Namespace) -> dict[str, float]:
    """The shortest turn in each way, in units of the one without."""
    section, round_idx = CASES[learner]
    experiment, jobs = jobs_of(settings(section, args), round_idx, args)
    device = torch.device(args.device)
    executors = {way: make_executor(experiment, device) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        for _ in range(WARM_UP + args.turns):
            for way, (wanted, filled) in WAYS.items():
                be_deterministic(wanted)
                memory.fill_uninitialized_memory = filled
                times[way].append(seconds(lambda way=way: executors[way].train(jobs), device))
    finally:
        be_deterministic(False)
        memory.fill_uninitialized_memory = True
    shortest = {way: min(taken[WARM_UP:]) for way, taken in times.items()}
    return {way: taken / shortest["without"] for way, taken in shortest.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", nargs="+", choices=CASES, default=["fednoil", "dividemix"])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--preset")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    check_device(args.device)
    torch.set_num_threads(1)
    be_deterministic(True)  # before anything is computed, for cuBLAS's workspace
    print(f"| learner | {' | '.join(WAYS)} |")
    print("|---|" + "---|" * len(WAYS))
    for learner in args.learners:
        print(f"| {learner} | {' | '.join(f'{ratio:.2f}' for ratio in measure(learner, args).values())} |")
    print(
        f"a turn of {args.clients} clients, {args.epochs} epochs, shortest of {args.turns}, {device_name(args.device)}"
    )


if __name__ == "__main__":
    main()
