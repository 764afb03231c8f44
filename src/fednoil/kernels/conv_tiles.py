"""The sizes of a stacked convolution, and the default tiles of its kernels.

A tile is chosen by the sizes, the dtype, the GPU's shared memory and its processors, never by a measurement: on the
same GPU the same convolution always sums in the same order.
"""

from functools import cache
from math import ceil
from typing import Any, NamedTuple

import torch
import triton

from fednoil.kernels import processors
from fednoil.kernels.stacked import precision

_TALL = 128  # rows of a tile
_PART = 400  # rows of a sum that take as long as writing and reading one part of it: 8 bytes against 2 · rows products


class Config(NamedTuple):
    """Tile of a kernel: rows × cols of its result and the depth of a step of the sum; splits are the weight gradient's
    (0: as many as fill the GPU), pixels the input gradient's (neighbours in one row of the GEMM)."""

    rows: int
    cols: int
    depth: int
    warps: int = 4
    stages: int = 3
    splits: int = 0
    pixels: int = 1


def launch_options(config: Config, dtype: torch.dtype) -> dict[str, Any]:
    """The launch options that all GEMM kernels share."""
    tile = {"BM": config.rows, "BN": config.cols, "BK": config.depth}
    return {**tile, "PRECISION": precision(dtype), "num_warps": config.warps, "num_stages": config.stages}


class Configs(NamedTuple):
    """Tiles of the three GEMMs of a convolution; None stands for the default of its shape."""

    forward: Config | None = None
    input_gradient: Config | None = None
    weight_gradient: Config | None = None


class Shape(NamedTuple):
    """Sizes of a stacked convolution, K clients with B images each; pool: 2×2 max-pooling (and ReLU) follows."""

    K: int
    B: int
    H: int
    W: int
    C: int
    outputs: int
    KH: int
    KW: int
    stride: int
    padding: int
    pool: bool

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of the result, after pooling where there is one (the last odd row and column dropped)."""
        high = (self.H + 2 * self.padding - self.KH) // self.stride + 1
        wide = (self.W + 2 * self.padding - self.KW) // self.stride + 1
        return (high // 2, wide // 2) if self.pool else (high, wide)

    @property
    def plain(self) -> "Shape":
        """The convolution alone: what the gradients see once the pooling is undone."""
        return self._replace(pool=False)

    def constants(self) -> dict[str, Any]:
        """The constants that all GEMM kernels share."""
        return {
            "H": self.H,
            "W": self.W,
            "C": self.C,
            "OUT": self.outputs,
            "KH": self.KH,
            "KW": self.KW,
            "PAD": self.padding,
        }


def shares(rows: int, block: int, wanted: int) -> tuple[int, int]:
    """Rows of a split, a multiple of block, and the number of splits, at most `wanted`."""
    share = ceil(ceil(rows / wanted) / block) * block
    return share, ceil(rows / share)


@cache
def split_count(tiles: int, rows: int, config: Config, channels: int, bytes_of_one: int) -> int:
    """Into how many parts the weight gradient's sum over its rows is split, given the tiles of all clients.

    A processor holds as many programs as fit into its shared memory. The best number of splits fills whole waves of
    these and is small: each part is written and read once more, which matters where a sum is short. With few channels
    loads are too narrow for the pipeline to run ahead, so many programs hide their latency instead.
    """
    if channels < 16:
        return max(1, min(ceil(8 * processors() / tiles), rows // (4 * config.depth)))
    memory = (config.rows + config.cols) * config.depth * bytes_of_one * config.stages
    held = processors() * max(1, room() // memory)

    def cost(splits: int) -> float:
        programs = splits * tiles
        return ceil(programs / held) * held / programs + (splits * _PART / rows if splits > 1 else 0.0)

    return min(range(1, max(1, rows // (8 * config.depth)) + 1), key=cost)


def block_size(size: int, most: int) -> int:
    """The power of two from 16 to most that covers size."""
    return min(most, max(16, triton.next_power_of_2(size)))


def _depth(channels: int, taps: int, most: int) -> int:
    """Step along the flattened (tap, channel) axis: a divisor of the channels where one is large enough."""
    while most > 16 and channels % most and channels >= 16:
        most //= 2
    return most if channels % most == 0 else block_size(taps * channels, 32)


def forward_config(s: Shape, dtype: torch.dtype) -> Config:
    """Default tile of the forward kernel."""
    return _fitting(_forward(s, dtype), dtype, 4 if s.pool else 1)


def _forward(s: Shape, dtype: torch.dtype) -> Config:
    if dtype == torch.float32:  # exact products have no tensor cores: small tiles
        return Config(32 if s.pool else 64, block_size(s.outputs, 32), _depth(s.C, s.KH * s.KW, 32), 4, 2)
    if s.pool:  # rows are windows, with four accumulators
        cols = block_size(s.outputs, 64)
        return Config(128 if cols <= 32 else 64, cols, _depth(s.C, s.KH * s.KW, 32), 4, 4)
    depth = _depth(s.C, s.KH * s.KW, 64)
    if s.C < 16:
        return Config(128, block_size(s.outputs, 128), depth, 8, 3)
    high, wide = s.result
    return _wide(s.outputs, depth, s.K * ceil(s.B * high * wide / _TALL))


def input_gradient_config(s: Shape, dtype: torch.dtype) -> Config:
    """Default tile of the input gradient's kernel."""
    return _fitting(_input_gradient(s, dtype), dtype)


def _input_gradient(s: Shape, dtype: torch.dtype) -> Config:
    if dtype == torch.float32:
        return Config(64, block_size(s.C, 32), _depth(s.outputs, s.KH * s.KW, 32), 4, 2)
    depth = _depth(s.outputs, s.KH * s.KW, 64)
    if s.C <= 64 and s.KW > 1 and s.stride == 1 and s.W % 2 == 0:
        cols = block_size(2 * s.C, 128)
        return Config(128, cols, depth, 4 if cols <= 64 else 8, 3, pixels=2)
    pixels = s.B * ceil(s.H / s.stride) * ceil(s.W / s.stride)  # of each class
    return _wide(s.C, depth, s.K * s.stride**2 * ceil(pixels / _TALL))


def _wide(cols: int, depth: int, tall: int) -> Config:
    """The fastest tile of a ResNet18's layers on an H200 (`benchmarks/tiles.py`): as wide as the channels, given so
    many tiles over the rows of all clients.

    Where it doesn't fit into a processor's shared memory it is half as wide. Where there are too few tiles for all
    processors it is halved, as long as that leaves the busiest of them at most three quarters of its work.
    """
    width = block_size(cols, 256 if (_TALL + 256) * depth * 2 * 3 <= room() else 128)

    def most(width: int) -> int:  # columns that a processor computes
        return ceil(tall * ceil(cols / width) / processors()) * width

    while width > 64 and 4 * most(width // 2) <= 3 * most(width):
        width //= 2
    return Config(_TALL, width, depth, 8 if width > 128 else 4, 3)


def _fitting(config: Config, dtype: torch.dtype, windows: int = 1) -> Config:
    """The tile with as many stages as fit into a processor's shared memory; `windows`: loads of its rows in a step."""
    stage = (windows * config.rows + config.cols) * config.depth * dtype.itemsize
    return config._replace(stages=max(1, min(config.stages, room() // stage)))


@cache
def room() -> int:
    """Bytes of shared memory that a program can have; without a GPU what those that the kernels serve have at least."""
    return torch.cuda.get_device_properties(0).shared_memory_per_block_optin if torch.cuda.is_available() else 99 << 10


def weight_gradient_config(s: Shape, dtype: torch.dtype) -> Config:
    """Default tile of the weight gradient's kernel: taps * channels × outputs, its depth in pixels."""
    return _fitting(_weight_gradient(s, dtype), dtype)


def pooled_weight_gradient_config(s: Shape, dtype: torch.dtype) -> Config:
    """Default tile of the weight gradient's kernel that reads the pooled gradient: many small programs, which wait for
    each other's loads less."""
    config = weight_gradient_config(s, dtype)
    if dtype == torch.float32:
        return config
    return config._replace(depth=64, warps=2 if config.rows <= 32 else 4, stages=1)


def _weight_gradient(s: Shape, dtype: torch.dtype) -> Config:
    rows, cols = s.KH * s.KW * s.C, block_size(s.outputs, 128)
    if dtype == torch.float32:
        return Config(block_size(rows, 32), block_size(s.outputs, 32), 32, 4, 2)
    if s.C < 16:  # all taps in one tile, many pixels at a time
        return Config(block_size(rows, 128), block_size(s.outputs, 64), 128, 4, 3)
    # Four warps: with eight, ptxas serializes the products of a tile 128 wide.
    return Config(block_size(rows, 64), cols, 64, 4, 4) if cols <= 64 else Config(block_size(rows, 128), cols, 64, 4, 3)
