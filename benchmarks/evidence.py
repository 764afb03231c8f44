"""Which share of a round goes into the clients' evidence on their labels.

Rounds of a preset are played as users play them, with what `fednoil.rounds` spends on evidence noted: the statistics
over all clients' samples, and the probabilities they are made of, which the scores would not need. On a GPU the device
is waited for before and after, which makes evidence look dearer than it is.

    python benchmarks/evidence.py [--device cpu] [--preset demo] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch

from fednoil import rounds
from fednoil.config import load_config
from fednoil.experiment import make_executor, make_experiment, pick_device
from fednoil.rounds import loop
from fednoil.study import preset

LIMIT = 1.0  # percent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    device = pick_device(options.device)
    experiment = make_experiment(load_config(preset(options.preset)))
    executor, state = make_executor(experiment, device), rounds.placed(rounds.start(experiment), device)
    spent: list[float] = []
    plain: Any = loop._remembered

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def noting(*args: Any) -> Any:
        wait()
        began = time.perf_counter()
        looks = args[2].chosen.looks
        if looks:  # as much again as the softmax at τ = 1 that the scores don't need
            torch.softmax(torch.cat(list(looks.values())), dim=1)
        after = plain(*args)
        wait()
        spent.append(time.perf_counter() - began)
        return after

    loop._remembered = noting  # type: ignore[assignment]
    shares = []
    for number in range(options.rounds + 1):
        began = time.perf_counter()
        state, _ = rounds.play(experiment, executor, state)
        wait()
        if number:  # the first is a warm-up
            shares.append(100 * spent[-1] / (time.perf_counter() - began))
    size = sum(t.numel() * t.element_size() for t in state.evidence.values())
    samples = len(state.evidence["given"])
    print(f"{options.preset} on {device.type}: evidence takes {statistics.median(shares):.3f} % of a round", end=" ")
    print(f"(at most {max(shares):.3f} %), {size / samples:.0f} bytes a sample")
    return 0 if statistics.median(shares) < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
