"""Which tiles suit the convolutions of a ResNet18 on this GPU, in kernels that gather pixels and kernels of boxes.

    python benchmarks/tiles.py [--settings 6x32 6x87 10x10] [--json FILE]

A setting is clients x images. Those 13 of the 20 convolutions that keep size and channels are nearly all of a step's
arithmetic. A weight gradient's time includes the sum of its parts. Launches are timed inside a CUDA
graph, as in training, and what boxes find is compared with what the gathering kernel finds.

Tiles are compiled in parallel processes first. A process that fails or hangs is replaced. Beside the
fastest stand what the gathering kernels and what `fednoil.kernels.conv_tiles` take by themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from itertools import product
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fednoil.kernels import boxes, conv, conv_tiles, fetches_boxes
from fednoil.kernels.conv_tiles import Config, Shape
from fednoil.kernels.stacked import summed
from floor import check_device
from written import write

HALF = torch.bfloat16
SHARED_MEMORY = 227 * 1024  # bytes that a program can have on an H100/H200
ACCUMULATORS = 128  # 32-bit registers of a thread for its part of the result
TOLERANCE = 0.02  # of the largest value; bfloat16 has 0.004
PATIENCE, LONGEST = 60.0, 300.0  # seconds to time one tile, and to compile all: the rest is compiled when timed
KINDS = ("gathered", "default", "fastest")
SPAWN = multiprocessing.get_context("spawn")
DEFAULTS = {
    "forward": conv_tiles.forward_config,
    "input gradient": conv_tiles.input_gradient_config,
    "weight gradient": conv_tiles.weight_gradient_config,
}


class Layer(NamedTuple):
    """A 3×3 convolution of ResNet18 with as many outputs as channels, and how often a step has it."""

    size: int
    channels: int
    count: int


LAYERS = [Layer(32, 64, 4), Layer(16, 128, 3), Layer(8, 256, 3), Layer(4, 512, 3)]


class Task(NamedTuple):
    """One GEMM of a layer, in a setting."""

    gemm: str
    layer: Layer
    clients: int
    images: int

    @property
    def shape(self) -> Shape:
        size, channels, _ = self.layer
        return Shape(self.clients, self.images, size, size, channels, channels, 3, 3, 1, 1, False)

    def default(self, with_boxes: bool = True) -> Config:
        return DEFAULTS[self.gemm](self.shape, HALF, with_boxes)


def candidates(task: Task) -> Iterator[Config]:
    """Tiles of both kinds that fit the GPU and the shape: the defaults, and many of depth 64."""
    s = task.shape
    yield task.default(False)
    yield task.default()
    for rows, cols, warps, stages in product((64, 128, 256), (64, 128, 256), (4, 8), (3, 4)):
        registers = rows * cols / (32 * warps)
        if cols > s.C or not 32 <= registers <= ACCUMULATORS or (rows + cols) * 64 * 2 * stages > SHARED_MEMORY:
            continue
        yield Config(rows, cols, 64, warps, stages)
        sides = {"forward": (rows, 64, cols), "input gradient": (rows, cols, 64), "weight gradient": (64, rows, cols)}
        if fetches_boxes() and boxes.serves(s, *sides[task.gemm]):
            yield Config(rows, cols, 64, warps, stages, boxes=True)


def work(task: Task, config: Config) -> Callable[[], Tensor]:
    """One launch of it, on the same arbitrary numbers each time; its result."""
    s = task.shape
    torch.manual_seed(0)
    sizes = ((s.K, s.B, s.H, s.W, s.C), (s.K, s.B, *s.result, s.outputs), (s.K, s.KH, s.KW, s.C, s.outputs))
    x, dy, w = (torch.randn(size, device="cuda", dtype=HALF) for size in sizes)
    if task.gemm == "forward":
        return lambda: conv._forward(x, w, None, s, config, True)[0]
    if task.gemm == "input gradient":
        return lambda: conv._input_gradient(dy, w, s, config)
    return lambda: next(t for t in summed((conv._weight_gradient(x, dy, HALF, s, config), HALF)) if t is not None)


def compiled(tasks: list[Task], config: Config) -> None:
    """Compile it into Triton's cache; what fails here fails again, with its reason, when it is timed."""
    with contextlib.suppress(Exception):
        for task in tasks:
            work(task, config)()
            torch.cuda.synchronize()


def seconds(run: Callable[[], object], launches: int = 8, replays: int = 5) -> float:
    """Seconds of one launch in a captured graph, the least of some replays."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            run()
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000 / launches)
    return min(times)


def timed(task: Task, config: Config) -> float | str:
    """Seconds of a launch, or what is wrong with it."""
    try:
        run = work(task, config)
        found = run().float()
        wanted = work(task, task.default(False))().float() if config.boxes else found
        error = float((found - wanted).abs().max() / wanted.abs().max())
        return seconds(run) if error < TOLERANCE else f"WRONG by {error:.2g} of the largest value"  # NaN too
    except Exception as problem:
        return f"{type(problem).__name__}: {(str(problem).strip().splitlines() or [''])[0][:200]}"


class Worker:
    """The process that times; after a failure a new one takes its place: its CUDA context may be lost."""

    def __init__(self) -> None:
        self.pool = SPAWN.Pool(1)

    def timed(self, task: Task, config: Config) -> float | str:
        try:
            found = self.pool.apply_async(timed, (task, config)).get(PATIENCE)
        except multiprocessing.TimeoutError:
            found = f"no answer in {PATIENCE:.0f} s"
        if isinstance(found, str):
            self.pool.terminate()
            self.pool = SPAWN.Pool(1)
        return found


def name_of(config: Config) -> str:
    kind = "boxes" if config.boxes else "gathered"
    return f"{config.rows}×{config.cols}×{config.depth}, {config.warps} warps, {config.stages} stages, {kind}"


def measured(worker: Worker, task: Task) -> dict[str, Any]:
    """The times of all tiles, and a row of the table."""
    times: dict[Config, float] = {}
    for config in dict.fromkeys(candidates(task)):
        found = worker.timed(task, config)
        if isinstance(found, str):
            print(f"failed: {task}, {name_of(config)}: {found}", flush=True)
        else:
            times[config] = found
    own, layer = task.default(), task.layer
    best = min(times, key=times.__getitem__, default=own)
    shown = {kind: times.get(c, nan) for kind, c in zip(KINDS, (task.default(False), own, best), strict=True)}
    what = (f"{task.clients}×{task.images}", task.gemm, f"{layer.channels}, {layer.size}²")
    cells = [*what, *(f"{1e6 * t:.1f}" for t in shown.values())]
    print(f"| {' | '.join([*cells, name_of(own), name_of(best)])} |", flush=True)
    return {**task._asdict(), "layer": layer._asdict(), **shown, "times": [[*item] for item in times.items()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=["6x32", "6x87", "10x10"])
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    check_device("cuda")
    settings = [tuple(map(int, setting.split("x"))) for setting in args.settings]
    tasks = [Task(gemm, layer, *setting) for setting, layer, gemm in product(settings, LAYERS, DEFAULTS)]
    wanted: dict[tuple[str, Layer, Config], list[Task]] = {}
    for task in tasks:
        for config in dict.fromkeys(candidates(task)):
            wanted.setdefault((task.gemm, task.layer, config), []).append(task)
    print(f"{len(wanted)} tiles to compile", flush=True)
    with SPAWN.Pool(args.jobs, maxtasksperchild=20) as pool, contextlib.suppress(multiprocessing.TimeoutError):
        jobs = [(mine, config) for (*_, config), mine in wanted.items()]
        pool.starmap_async(compiled, jobs, chunksize=1).get(LONGEST)
    print(
        "| setting | GEMM | layer | gathered, µs | default, µs | fastest, µs | default | fastest |\n" + "|---" * 8 + "|"
    )
    worker, rows = Worker(), []
    for task in tasks:
        rows.append(measured(worker, task))
        if args.json:
            write(args.json, {"device": torch.cuda.get_device_name(), "rows": rows})
    for clients, images in settings:
        mine = [row for row in rows if (row["clients"], row["images"]) == (clients, images)]
        sums = [sum(row["layer"]["count"] * row[kind] for row in mine) * 1e3 / clients for kind in KINDS]
        shown = ", ".join(f"{kind} {total:.3f}" for kind, total in zip(KINDS, sums, strict=True))
        print(f"{clients}×{images}, ms of a step for each client: {shown}")


if __name__ == "__main__":
    main()
