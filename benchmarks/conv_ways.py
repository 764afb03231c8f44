"""Two ways to a ResNet18's convolutions on a Hopper GPU: kernels that gather pixels, and kernels that fetch boxes.

    python benchmarks/conv_ways.py [--seconds 110] [--settings 6x32 6x87 10x10] [--json FILE]

For each stride-1 layer and each of its GEMMs: the gathering kernel with its own tile, the boxes with the tile that
`fednoil.kernels.conv_tiles` takes by itself, and the fastest of a few. A weight gradient's time includes the sum of its
parts. Results of the two ways are compared first. Launches are timed inside a CUDA graph, as in training.

Tiles are compiled in parallel processes, without a launch. Launches happen in a process that is replaced if it fails or
hangs, and the table is printed as far as the time allows.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fednoil.kernels import conv, conv_boxes, conv_tiles
from fednoil.kernels.conv_tiles import Config, Shape
from fednoil.kernels.stacked import summed
from tiles import GEMMS, LAYERS, Layer, default, shape_of
from written import write

HALF = torch.bfloat16
PATIENCE = 10.0  # seconds that one measurement may take
HARMLESS = ("OutOfResources", "CompilationError", "AssertionError", "ValueError")  # nothing was launched
TOLERANCE = 0.02  # of the largest value; bfloat16 has 0.004
SPAWN = multiprocessing.get_context("spawn")


class Task(NamedTuple):
    """One GEMM of a layer, and the tile to try."""

    gemm: str
    layer: Layer
    clients: int
    images: int
    config: Config

    @property
    def shape(self) -> Shape:
        return shape_of(self.layer, self.clients, self.images)

    @property
    def operations(self) -> float:
        s = self.shape
        return 2.0 * s.K * s.B * s.H * s.W * s.C * s.outputs * s.KH * s.KW


def gathering(gemm: str, shape: Shape) -> Config:
    """The tile of the kernels that gather."""
    kinds = (conv_tiles._forward, conv_tiles._input_gradient, conv_tiles._weight_gradient)
    return conv_tiles._fitting(kinds[GEMMS.index(gemm)](shape, HALF), HALF)


def boxes(gemm: str, layer: Layer) -> Iterator[Config]:
    """A few tiles that promise something: rows, columns, depth, warps, stages and taps."""
    if gemm == "weight gradient":
        if layer.channels == 64:
            sizes = [(64, 64, 64, 4, 3, 3), (64, 64, 64, 4, 2, 3), (64, 64, 128, 4, 2, 3), (64, 64, 64, 4, 4, 1)]
            sizes += [(64, 64, 128, 4, 3, 1)]
        else:
            sizes = [(128, 128, 64, 4, 3, 1), (128, 128, 64, 4, 2, 1), (128, 128, 64, 8, 4, 1), (64, 128, 64, 4, 3, 1)]
            sizes += [(64, 128, 64, 8, 3, 3), (128, 128, 64, 8, 3, 3)]
            sizes += [(256, 128, 64, 8, 3, 1), (128, 256, 64, 8, 3, 1)] if layer.channels > 128 else []
    elif layer.channels == 64:
        sizes = [(128, 64, 64, 4, 3, 1), (128, 64, 64, 4, 4, 1), (256, 64, 64, 4, 2, 1), (256, 64, 64, 4, 3, 1)]
        sizes += [(256, 64, 64, 8, 3, 1), (512, 64, 64, 8, 3, 1)]
    else:
        sizes = [(128, 128, 64, 4, 3, 1), (128, 128, 64, 8, 3, 1), (128, 128, 64, 8, 5, 1), (256, 128, 64, 8, 3, 1)]
        sizes += [(64, 128, 64, 4, 4, 1), (128, 64, 64, 4, 4, 1), (128, 128, 128, 4, 3, 1)]
        sizes += [(128, 256, 64, 8, 3, 1), (64, 256, 64, 8, 4, 1)] if layer.channels > 128 else []
    for *tile, taps in sizes:
        yield Config(*tile, boxes=True, taps=taps)


def work(task: Task) -> Callable[[], tuple[Tensor, ...]]:
    """One launch of it, on the same arbitrary numbers each time; its results."""
    s, config = task.shape, task.config
    torch.manual_seed(0)
    x, dy, w = (
        torch.randn(size, device="cuda", dtype=HALF)
        for size in ((s.K, s.B, s.H, s.W, s.C), (s.K, s.B, s.H, s.W, s.outputs), (s.K, s.KH, s.KW, s.C, s.outputs))
    )
    if task.gemm == "forward":
        return lambda: conv._forward(x, w, None, s, config, True)[::2]
    if task.gemm == "input gradient":
        return lambda: (conv._input_gradient(dy, w, s, config),)
    return lambda: tuple(t for t in summed((conv._weight_gradient(x, dy, HALF, s, config), HALF)) if t is not None)


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        return lambda *args, **options: self.kernel.warmup(*args, grid=grid, **options)


def compile_only(tasks: list[Task]) -> None:
    """Compile a tile in all settings into Triton's cache; what fails here fails again, with its reason, when timed."""
    for module, names in (
        (conv_boxes, ("box_kernel", "box_weight_gradient_kernel")),
        (conv.kernels, ("forward_kernel",)),
        (conv.gradients, ("input_gradient_kernel", "weight_gradient_kernel")),
    ):
        for name in names:
            kernel = getattr(module, name)
            setattr(module, name, kernel if isinstance(kernel, Compiled) else Compiled(kernel))
    for task in tasks:
        with contextlib.suppress(Exception):
            work(task)()


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


def difference(task: Task, run: Callable[[], tuple[Tensor, ...]]) -> float:
    """The largest difference from what the gathering kernel finds, as a share of the largest value.

    A forward launch's statistics are in parts of as many rows as its tile has; united they are those of its result.
    """
    got, again = run(), run()
    if not all(torch.equal(a, b) for a, b in zip(got, again, strict=True)):
        raise RuntimeError("two launches differ")
    pairs = [(got[0], work(task._replace(config=gathering(task.gemm, task.shape)))()[0])]
    if task.gemm == "forward":
        pixels = got[0].float().flatten(1, 3)
        wanted = torch.stack((pixels.mean(1), pixels.var(1, correction=0)), 1)
        pairs.append((united(got[1], pixels.shape[1], task.config.rows), wanted))
    return max(float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in pairs)


def united(parts: Tensor, rows: int, size: int) -> Tensor:
    """Mean and variance [K, 2, C] from parts [K, 2, T, C] of `size` rows, the last maybe shorter."""
    counts = torch.full((parts.shape[2], 1), float(size), device=parts.device)
    counts[-1] = rows - size * (len(counts) - 1)
    mean = (counts * parts[:, 0]).sum(1) / rows
    squares = (parts[:, 1] + counts * (parts[:, 0] - mean[:, None]) ** 2).sum(1)
    return torch.stack((mean, squares / rows), 1)


def serve(pipe: Any) -> None:
    """Measure one task after another: its time and difference, or what went wrong."""
    while True:
        task: Task = pipe.recv()
        try:
            run = work(task)
            error = difference(task, run) if task.config.boxes else 0.0
            run()
            torch.cuda.synchronize()
            pipe.send((seconds(run), error, ""))
        except Exception as problem:
            lines = str(problem).strip().splitlines() or [""]
            pipe.send((None, None, f"{type(problem).__name__}: {lines[0][:200]}"))


class Worker:
    """The process that launches; after a failed launch a new one takes its place: its CUDA context may be lost."""

    def __init__(self) -> None:
        self.process: Any = None

    def measure(self, task: Task) -> tuple[float | None, float | None, str]:
        patience = PATIENCE if self.process is not None else 3 * PATIENCE  # a new one has to start
        if self.process is None:
            self.pipe, other = SPAWN.Pipe()
            self.process = SPAWN.Process(target=serve, args=(other,), daemon=True)
            self.process.start()
            other.close()  # so that its end is noticed
        try:
            self.pipe.send(task)
            found = self.pipe.recv() if self.pipe.poll(patience) else (None, None, f"no answer in {patience:.0f} s")
        except (EOFError, OSError) as problem:
            found = (None, None, f"its process ended: {type(problem).__name__}")
        if found[0] is None and not found[2].startswith(HARMLESS):
            self.close()
        return found

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join(5)
            self.process = None


def name_of(config: Config) -> str:
    taps = f", {config.taps} taps" if config.taps > 1 else ""
    return f"{config.rows}×{config.cols}×{config.depth}, {config.warps} warps, {config.stages} stages{taps}"


def compared(worker: Worker, base: Task, until: float) -> dict[str, Any]:
    """Times of the gathering kernel, of the default boxes and of all candidates, in a row of the table."""
    old, own = gathering(base.gemm, base.shape), default(base.gemm, base.shape)
    times: dict[Config, float] = {}
    errors: list[float] = []
    for config in dict.fromkeys([old, own, *boxes(base.gemm, base.layer)]):
        if time.monotonic() > until:
            break
        found, error, problem = worker.measure(base._replace(config=config))
        if found is None or error is None:
            print(f"failed: {base.gemm}, {base.layer.channels}, {name_of(config)}: {problem}", flush=True)
            continue
        if not error < TOLERANCE:  # NaN too
            print(f"WRONG: {base.gemm}, {base.layer.channels}, {name_of(config)}: {error:.3g}", flush=True)
            continue
        times[config] = found
        errors.append(error)
    return {
        **{"gemm": base.gemm, "layer": base.layer._asdict(), "setting": [base.clients, base.images]},
        "operations": base.operations,
        "old": times.get(old),
        "own": [own, times.get(own)],
        "times": [[*item] for item in sorted(times.items(), key=lambda item: item[1]) if item[0].boxes],
        "error": max(errors, default=None),
    }


def printed(row: dict[str, Any]) -> None:
    layer, best = row["layer"], row["times"][0] if row["times"] else [row["own"][0], None]
    cells = "".join(
        f"| {1e6 * t:.1f} | {row['operations'] / t / 1e12:.0f} " if t else "| – | – "
        for t in (row["old"], row["own"][1], best[1])
    )
    error = "–" if row["error"] is None else f"{row['error']:.1e}"
    clients, images = row["setting"]
    what = f"{clients}×{images} | {row['gemm']} | {layer['channels']}, {layer['size']}²"
    print(f"| {what} {cells}| {name_of(best[0])} | {name_of(row['own'][0])} | {error} |", flush=True)
    print("  " + "; ".join(f"{name_of(c)}: {1e6 * t:.1f}" for c, t in row["times"]), flush=True)


def total(rows: list[dict[str, Any]], setting: tuple[int, int]) -> None:
    """What these convolutions take of one step, in ms a client."""
    mine = [row for row in rows if tuple(row["setting"]) == setting and row["old"] and row["times"]]
    ways = (lambda r: r["old"], lambda r: r["own"][1] or r["old"], lambda r: r["times"][0][1])
    sums = [sum(row["layer"]["count"] * way(row) for row in mine) * 1e3 / setting[0] for way in ways]
    numbers = f"gathered {sums[0]:.3f}, default boxes {sums[1]:.3f}, fastest boxes {sums[2]:.3f}"
    print(f"{setting[0]}×{setting[1]}: ms a client-step in {len(mine)} of 12 GEMMs: {numbers}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--settings", nargs="+", default=["6x32", "6x87", "10x10"])
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    begin = time.monotonic()
    settings = [(int(k), int(b)) for k, b in (setting.split("x") for setting in args.settings)]
    layers = [layer for layer in LAYERS if layer.stride == 1 and layer.channels > 3]
    bases = [Task(gemm, layer, *s, Config(0, 0, 0)) for s in settings for layer in layers for gemm in GEMMS]
    wanted: dict[tuple[str, Layer, Config], list[Task]] = {}
    for base in bases:
        mine = [gathering(base.gemm, base.shape), default(base.gemm, base.shape), *boxes(base.gemm, base.layer)]
        for config in dict.fromkeys(mine):
            wanted.setdefault((base.gemm, base.layer, config), []).append(base._replace(config=config))
    with SPAWN.Pool(args.jobs) as pool, contextlib.suppress(multiprocessing.TimeoutError):
        pool.map_async(compile_only, list(wanted.values()), chunksize=1).get(args.seconds / 2)
    print(f"{len(wanted)} tiles compiled in {time.monotonic() - begin:.0f} s")
    ways = "gathered, µs | TFLOP/s | default, µs | TFLOP/s | fastest, µs | TFLOP/s | its tile | default tile | error"
    print(f"| setting | GEMM | layer | {ways} |\n" + "|---" * 12 + "|", flush=True)
    worker, rows = Worker(), []
    for base in bases:
        rows.append(compared(worker, base, begin + args.seconds - 5))
        printed(rows[-1])
    worker.close()
    for setting in settings:
        total(rows, setting)
    if args.json:
        write(args.json, {"device": torch.cuda.get_device_name(), "rows": rows})


if __name__ == "__main__":
    main()
