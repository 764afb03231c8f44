"""Time of a round over clients per round, samples per client and, on a GPU, clients that train at once.

Each with other numbers of the same process: the bare optimiser steps of the same number and size in plain PyTorch,
client after client (`benchmarks/floor.py`), and, on a GPU, the same steps as replays of one CUDA graph and as bare
arithmetic. A round is FedNoiL's with every client trained: confidences, pseudo-labels, augmentation, steps, averaging,
and a test on 100 images. The first round of each warms up (captures, compiles); then the shortest counts. Sweeps are
repeated several times, so that other load on the machine doesn't affect a single point.

    python benchmarks/scaling.py [--device cpu] [--json benchmarks/results/cpu.json]
"""

from __future__ import annotations

import argparse
import gc
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fednoil import rounds
from fednoil.experiment import make_executor
from fednoil.learners.base import Trainee, Turn
from fednoil.learners.fednoil import FedNoil
from fednoil.seeds import Seed
from floor import PEAK, PlainCNN, bare_step, check_device, device_name, noise_experiment, step_flops
from written import write

CLIENTS = (1, 2, 5, 10, 20, 30, 60)
SAMPLES = (100, 200, 500, 1000, 2000)
PARALLEL = (1, 2, 6, 12, 30)


@dataclass(frozen=True)
class Size:
    """How large a measurement is: the CNN's width, and what stays fixed while the other thing varies."""

    width: int
    epochs: int
    samples: int  # of a client, while clients vary
    clients: int  # of a round, while samples vary
    repeats: int


SIZES = {
    "cpu": Size(width=12, epochs=2, samples=100, clients=2, repeats=2),
    "cuda": Size(width=32, epochs=16, samples=500, clients=6, repeats=3),
}


@dataclass(frozen=True)
class Point:
    """One point of a chart."""

    axis: str  # clients, samples or parallel
    value: int
    clients: int
    samples: int
    parallel: int


def points(device: str, size: Size) -> Iterator[Point]:
    """All points of all charts."""
    for clients in CLIENTS:
        yield Point("clients", clients, clients, size.samples, 32)
    for samples in SAMPLES:
        yield Point("samples", samples, size.clients, samples, 32)
    if device == "cuda":
        for parallel in PARALLEL:
            yield Point("parallel", parallel, 30, size.samples, parallel)


class Case:
    """An experiment that plays its rounds again and again."""

    def __init__(self, point: Point, device: str, size: Size, model: dict[str, Any] | None = None) -> None:
        run = {"device": device, "parallel": point.parallel}
        model = model or {"name": "cnn", "width": size.width}
        self.experiment = noise_experiment(model, point.samples, point.clients, size.epochs, run)
        self.device = torch.device(device)
        self.executor = make_executor(self.experiment, self.device)
        self.state = rounds.placed(rounds.start(self.experiment), self.device)

    def seconds(self) -> float:
        began = time.perf_counter()
        self.state, _ = rounds.play(self.experiment, self.executor, self.state)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def shape(self) -> tuple[int, int]:
        """Steps of a round, and images in each."""
        learner, client = self.experiment.learner, self.executor.clients[0]
        assert isinstance(learner, FedNoil)
        samples = len(client)
        trainee = Trainee({}, client, {"confidence": torch.zeros(samples)}, Turn(1, 1, Seed(0)))
        (labelled,) = learner.labelled_sizes([trainee], learner.shares([client], [trainee.state]))
        steps = -(-labelled // learner.task.batch_size)
        batch = learner.task.batch_size + -(-(samples - labelled) // steps)
        return steps * self.experiment.schedule.epochs(1) * len(self.experiment.setting.parts), batch


def measure(point: Point, device: str, size: Size) -> dict[str, Any]:
    """Seconds of a round and of its bare steps; on a GPU also the memory in use at most."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    case = Case(point, device, size)
    case.seconds()  # captures and compiles
    steps, batch = case.shape()
    row = asdict(point) | {"steps": steps, "batch": batch, "round_s": min(case.seconds() for _ in range(size.repeats))}
    assert case.state.train_batches == steps * case.state.round_idx
    if device == "cuda":
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    del case
    shape = (batch, 1, 28, 28)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    row["bare_s"] = steps * bare_step(PlainCNN(size.width), shape, dtype, device)
    if device == "cuda":
        row["graph_s"] = steps * bare_step(PlainCNN(size.width), shape, dtype, device, graph=True)
        row["arithmetic_s"] = steps * step_flops(PlainCNN(size.width), shape) / PEAK
    return row


def shortest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each point, with its least times; other numbers are alike in all of its rows."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault((row["axis"], row["value"]), dict(row))
        known["round_s"] = min(known["round_s"], row["round_s"])
    for name in ("bare_s", "graph_s"):  # a step of the same size takes as long wherever it was timed
        for row in (r for r in found.values() if name in r):
            alike = [r[name] / r["steps"] for r in rows if r["batch"] == row["batch"]]
            row[name] = min(alike) * row["steps"]
    return list(found.values())


def line_of(row: dict[str, Any]) -> str:
    graph = f", {row['round_s'] / row['graph_s']:5.2f} × as a graph" if "graph_s" in row else ""
    memory = f", {row['peak_gib']:.2f} GiB" if "peak_gib" in row else ""
    return (
        f"{row['axis']:8} {row['value']:5}: {1000 * row['round_s']:9.1f} ms a round, {row['steps']} steps of "
        f"{row['batch']}, {row['round_s'] / row['bare_s']:5.2f} × bare steps{graph}{memory}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SIZES), default="cpu")
    parser.add_argument("--sweeps", type=int, help="times that all points are gone through; 2 on a CPU, 1 on a GPU")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    given = parser.parse_args()
    check_device(given.device)
    size, rows = SIZES[given.device], []
    sweeps = given.sweeps or (2 if given.device == "cpu" else 1)
    for _ in range(sweeps):
        for point in points(given.device, size):
            rows.append(measure(point, given.device, size))
            print(line_of(rows[-1]), flush=True)
    found = {
        "device": device_name(given.device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "sweeps": sweeps,
        "size": asdict(size),
        "rows": shortest(rows),
    }
    if given.json:
        write(given.json, found)


if __name__ == "__main__":
    main()
