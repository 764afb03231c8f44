"""The share of a round that goes into the clients' evidence about their labels.

Rounds of a preset are played as in a run, and the time that `fednoil.rounds` spends on evidence is recorded: the
statistics over all clients' samples, and the probabilities behind them, which the scores would not need. On a GPU the
script waits for the device before and after, which makes evidence look more expensive than it is.

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
from fednoil.devices import pick_device
from fednoil.experiment import make_executor, make_experiment
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
