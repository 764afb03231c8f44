"""Launches of the stacked convolution's gradients (`fednoil.kernels.conv`)."""

from typing import Any

import torch
import triton
from torch import Tensor

from fednoil.kernels import conv_gradients as kernels
from fednoil.kernels.ahead import empty, launch
from fednoil.kernels.conv_tiles import Config, Shape, block_size, launch_options, shares, split_count
from fednoil.kernels.stacked import contiguous_clients, summed

BIAS_ROWS, BIAS_SPLITS = 64, 32
UNPOOL_NUMBERS = 2048  # of a tile: two 16-byte loads of a thread in 16-bit numbers


def unpool(dy: Tensor, winner: Tensor, s: Shape) -> tuple[Tensor, Tensor]:
    """The gradient of the convolution [K, B, Ho, Wo, O] from that of its pooled result; the bias's in parts."""
    high, wide = s.result
    rows = s.B * triton.cdiv(high, 2) * triton.cdiv(wide, 2)
    cols = block_size(s.outputs, 64)
    tiles = triton.cdiv(rows, UNPOOL_NUMBERS // cols)
    pixels = empty(dy, (s.K, s.B, high, wide, s.outputs))
    parts = empty(dy, (tiles, s.K, s.outputs), dtype=torch.float32)
    sizes = {"HO": high, "WO": wide, "OUT": s.outputs, "BM": UNPOOL_NUMBERS // cols, "BN": cols}
    grid = (tiles * triton.cdiv(s.outputs, cols), s.K)
    launch(kernels.unpool_kernel, grid, dy, winner, pixels, parts, rows, s.B, **sizes)
    return pixels, parts


def input_gradient(dy: Tensor, w: Tensor, s: Shape, config: Config, passed: Tensor | None = None) -> Tensor:
    """The gradient of the images, plus the part of it that is already known (`passed`)."""
    high, wide = s.result
    pixels = config.pixels if s.stride == 1 and s.W % config.pixels == 0 else 1
    rows = s.B * triton.cdiv(s.H, s.stride) * triton.cdiv(s.W, s.stride) // pixels
    dx = empty(dy, (s.K, s.B, s.H, s.W, s.C))
    grid = (triton.cdiv(rows, config.rows) * triton.cdiv(pixels * s.C, config.cols), s.K, s.stride * s.stride)
    options = {**s.constants(), **launch_options(config, dy.dtype), "HO": high, "WO": wide, "STRIDE": s.stride}
    more = dx if passed is None else passed.contiguous()  # any pointer will do: it is never read
    options |= {"PIXELS": pixels, "MORE": passed is not None}
    launch(kernels.input_gradient_kernel, grid, dy, w, more, dx, w.stride(0), rows, s.B, **options)
    return dx


def weight_gradient(x: Tensor, dy: Tensor, dtype: torch.dtype, s: Shape, config: Config) -> Tensor:
    """The gradient of the weights in parts [splits, K, kh, kw, C, O]: float32, or in dtype if it is one."""
    rows = s.B * s.result[0] * s.result[1]
    part, tiles, share, options = _weight_parts(dy, rows, dtype, s, config)
    args = (x, dy, part, x.stride(0), rows, share)
    launch(kernels.weight_gradient_kernel, (tiles, s.K, len(part)), *args, **options, STRIDE=s.stride)
    return part


def whole_weight_gradient(x: Tensor, dy: Tensor, dtype: torch.dtype, s: Shape, config: Config) -> Tensor | None:
    """The same as one [K, kh, kw, C, O]."""
    return summed((weight_gradient(contiguous_clients(x), dy, dtype, s, config), dtype))[0]


def pooled_weight_gradient(
    x: Tensor, dy: Tensor, winner: Tensor, dtype: torch.dtype, s: Shape, config: Config
) -> tuple[Tensor, Tensor]:
    """The same, and the bias's in parts [splits, K, O], from the gradient of the pooled result: where that of the
    images isn't wanted, nobody else would read an unpooled one."""
    rows = dy[0, ..., 0].numel()
    part, tiles, share, options = _weight_parts(dy, rows, dtype, s, config, pooled=True)
    bias_part = empty(dy, (len(part), s.K, s.outputs), dtype=torch.float32)
    args = (x, dy, winner, part, bias_part, x.stride(0), rows, share)
    launch(kernels.pooled_weight_gradient_kernel, (tiles, s.K, len(part)), *args, **options)
    return part, bias_part


def _weight_parts(
    dy: Tensor, rows: int, dtype: torch.dtype, s: Shape, config: Config, pooled: bool = False
) -> tuple[Tensor, int, int, dict[str, Any]]:
    """Where the parts go, the tiles of each, how many rows one sums, and the kernel's options."""
    tiles = triton.cdiv(s.KH * s.KW * s.C + pooled, config.rows) * triton.cdiv(s.outputs, config.cols)
    wanted = config.splits or split_count(tiles * s.K, 4 * rows if pooled else rows, config, s.C, dy.dtype.itemsize)
    share, splits = shares(rows, config.depth, wanted)
    sizes = (splits, s.K, s.KH, s.KW, s.C, s.outputs)
    part = empty(dy, sizes, dtype=torch.float32 if splits > 1 else dtype)
    high, wide = s.result
    return part, tiles, share, {**s.constants(), **launch_options(config, dy.dtype), "HO": high, "WO": wide}


def bias_gradient(dy: Tensor, s: Shape) -> Tensor:
    """The gradient of the bias in parts [splits, K, O]."""
    rows = s.B * s.result[0] * s.result[1]
    share, splits = shares(rows, BIAS_ROWS, BIAS_SPLITS)
    cols = block_size(s.outputs, 64)
    part = empty(dy, (splits, s.K, s.outputs), dtype=torch.float32)
    grid = (triton.cdiv(s.outputs, cols), s.K, splits)
    launch(kernels.bias_gradient_kernel, grid, dy, part, rows, share, OUT=s.outputs, BM=BIAS_ROWS, BN=cols)
    return part
