"""Which tiles suit the convolutions of a ResNet18 on this GPU: every GEMM of a step, over many tiles.

    python benchmarks/tiles.py [--clients 6] [--images 87] [--all] [--json FILE]

Without `--all` only the convolutions that a step has more than once, which are nearly all of its arithmetic.

Tiles are compiled in parallel processes first, then timed one after another. What `fednoil.kernels.conv_tiles` would
take by itself stands beside the fastest; the sums are of all convolutions of one step.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from fednoil.kernels import conv, conv_backward, conv_tiles
from fednoil.kernels.conv_tiles import Config, Shape
from written import write

SHARED_MEMORY = 227 * 1024  # bytes that a program can have on an H100/H200
ACCUMULATORS = 128  # 32-bit registers of a thread for its part of the result


class Layer(NamedTuple):
    """A convolution of ResNet18 on 32×32 images, and how often a step has it."""

    size: int
    channels: int
    outputs: int
    taps: int
    stride: int
    count: int


LAYERS = [Layer(32, 3, 64, 3, 1, 1), Layer(32, 64, 64, 3, 1, 4)]
for before, after, high in ((64, 128, 32), (128, 256, 16), (256, 512, 8)):
    LAYERS += [Layer(high, before, after, 3, 2, 1), Layer(high, before, after, 1, 2, 1)]
    LAYERS += [Layer(high // 2, after, after, 3, 1, 3)]
GEMMS = ("forward", "input gradient", "weight gradient")


def shape_of(layer: Layer, clients: int, images: int) -> Shape:
    size, taps = layer.size, layer.taps
    return Shape(clients, images, size, size, layer.channels, layer.outputs, taps, taps, layer.stride, taps // 2, False)


def default(gemm: str, shape: Shape) -> Config:
    """The package's default."""
    chosen = {
        "forward": conv_tiles.forward_config,
        "input gradient": conv_tiles.input_gradient_config,
        "weight gradient": conv_tiles.weight_gradient_config,
    }
    return chosen[gemm](shape, torch.bfloat16)


def candidates(gemm: str, shape: Shape) -> Iterator[Config]:
    """Tiles that fit the GPU and the shape."""
    wide = shape.C if gemm == "input gradient" else shape.outputs
    summed = {"forward": shape.C, "input gradient": shape.outputs, "weight gradient": 1 << 20}[gemm]
    deepest = default(gemm, shape).depth if summed < 64 else 128
    for rows in (64, 128, 256):
        for cols in (64, 128, 256):
            for depth in (32, 64, 128):
                for warps in (4, 8):
                    for stages in (3, 4):
                        memory = (rows + cols) * depth * 2 * stages
                        if cols > max(64, wide) or depth > min(deepest, max(summed, 32)) or memory > SHARED_MEMORY:
                            continue
                        if rows * cols > ACCUMULATORS * 32 * warps or rows * cols < 32 * 32 * warps:
                            continue
                        if gemm == "weight gradient" and rows > shape.C * shape.KH * shape.KW:
                            continue
                        yield Config(rows, cols, depth, warps, stages)


def work(gemm: str, shape: Shape, config: Config) -> Callable[[], object]:
    """One launch of it, on arbitrary numbers."""
    high, wide = shape.result
    image = (shape.K, shape.B, shape.H, shape.W, shape.C)
    x, dy, w = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16)
        for size in (
            image,
            (shape.K, shape.B, high, wide, shape.outputs),
            (shape.K, shape.KH, shape.KW, shape.C, shape.outputs),
        )
    )
    if gemm == "forward":
        return lambda: conv._forward(x, w, None, shape, config, True)
    if gemm == "input gradient":
        return lambda: conv_backward.input_gradient(dy, w, shape, config)
    return lambda: conv_backward.weight_gradient(x, dy, torch.bfloat16, shape, config)


def compiled(task: tuple[str, Layer, Config]) -> None:
    """Compile it into Triton's cache; what fails here fails again, with its reason, when it is timed."""
    gemm, layer, config = task
    try:
        work(gemm, shape_of(layer, 2, 2), config)()
        torch.cuda.synchronize()
    except Exception:
        return


def seconds(run: Callable[[], object], repeats: int = 10) -> float:
    """Seconds of one launch, the mean over some."""
    for _ in range(2):
        run()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000 / repeats


def measured(gemm: str, layer: Layer, shape: Shape) -> dict[str, object]:
    """Times of the default and of the fastest tiles."""
    own = default(gemm, shape)
    times: dict[Config, float] = {}
    for config in dict.fromkeys([own, *candidates(gemm, shape)]):
        try:
            times[config] = seconds(work(gemm, shape, config))
        except Exception as error:
            print(f"{gemm} {layer} {tuple(config)}: {type(error).__name__}", flush=True)
    high, wide = shape.result
    flops = 2 * shape.K * shape.B * high * wide * shape.outputs * shape.KH * shape.KW * shape.C
    best = sorted(times, key=times.__getitem__)[:3]
    return {
        "gemm": gemm,
        "layer": layer._asdict(),
        "default": [*own, times.get(own)],
        "best": [[*config, times[config]] for config in best],
        "tflops": [flops / times[own] / 1e12 if own in times else None, flops / times[best[0]] / 1e12],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--images", type=int, default=87)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    layers = [layer for layer in LAYERS if args.all or layer.count > 1]
    shapes = {layer: shape_of(layer, args.clients, args.images) for layer in layers}
    wanted = [(gemm, layer) for layer in layers for gemm in GEMMS if layer.channels > 3 or gemm != "input gradient"]
    tasks = [(gemm, layer, config) for gemm, layer in wanted for config in candidates(gemm, shapes[layer])]
    print(f"{len(tasks)} tiles to compile", flush=True)
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        pool.map(compiled, tasks, chunksize=8)
    rows = []
    print("| GEMM | layer | default, µs | TFLOP/s | fastest, µs | TFLOP/s | its tile |\n|---|---|---|---|---|---|---|")
    for gemm, layer in wanted:
        row = measured(gemm, layer, shapes[layer])
        rows.append(row)
        own, best = row["default"][-1], row["best"][0]
        name = f"{layer.channels} → {layer.outputs}, {layer.size}², {layer.taps}×{layer.taps}, /{layer.stride}"
        tile = "×".join(map(str, best[:3])) + f", {best[3]} warps, {best[4]} stages"
        cells = [f"{1e6 * own:.0f}", f"{row['tflops'][0]:.0f}", f"{1e6 * best[-1]:.0f}", f"{row['tflops'][1]:.0f}"]
        print(f"| {gemm} | {name} | {' | '.join(cells)} | {tile} |", flush=True)
    sums = [
        sum(row["layer"]["count"] * time(row) for row in rows)
        for time in (lambda row: row["default"][-1], lambda row: row["best"][0][-1])
    ]
    print(f"these convolutions of a step: {1e3 * sums[0]:.2f} ms by default, {1e3 * sums[1]:.2f} ms with the fastest")
    if args.json:
        write(args.json, {"device": torch.cuda.get_device_name(), "rows": rows})


if __name__ == "__main__":
    main()
