"""Stacked linear layer with few outputs, the head of a classifier: one launch forward and one backward for all clients.

Features are [clients, batch, D], weights [clients, outputs, D]. Features can also be images in channels-last memory
[clients, batch, height, width, channels], whose weights have PyTorch's order of `flatten`: channel by channel. PyTorch
itself copies such images, and their gradient back, and takes a launch for each product, its bias and the bias's
gradient. Both are differentiable and fold a dimension of `torch.vmap` into the clients. Sums are taken in fp32 and in a
fixed order: the results are deterministic.

Gain end to end, with `cross_entropy`, a turn of FedNoiL with six clients on an H200 (`python benchmarks/kernels.py
--kernel head`): 1.20 × for the CNN, 1.08 × with 30 clients, 1.08 × for the ResNet18.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from fednoil.kernels import head_kernels as kernels
from fednoil.kernels import processors
from fednoil.kernels.ahead import current, empty, in_its_trial, launch
from fednoil.kernels.conv_tiles import block_size, room
from fednoil.kernels.stacked import applied, contiguous_clients, fold, precision

MOST_OUTPUTS = 128
NUMBERS = 16 * 1024  # of a tile of weights in half precision, forward: 64 for each thread of eight warps
OUTPUTS = 32  # of that tile at most
WARPS = 8  # at most, forward; each has 16 features or more of a tile
FEATURES = 128  # of a tile, backward


def serves(outputs: int) -> bool:
    """Whether a layer has few enough outputs: a program of the backward pass has the weights of all."""
    return 0 < outputs <= MOST_OUTPUTS


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [K, B, D] times w [K, O, D], transposed, plus bias [K, O]: [K, B, O] in x.dtype."""
    return applied(Linear, x, w, bias)


def flat_linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` of images x [K, B, H, W, C] as PyTorch flattens them: w [K, O, C × H × W], channel by channel."""
    return applied(Linear, x, w, bias)


class Shape(NamedTuple):
    """Sizes of a stacked linear layer; a plain vector is an image of one pixel."""

    K: int
    B: int
    area: int
    C: int
    outputs: int

    def tiles(self, channels: int, pixels: int) -> int:
        return triton.cdiv(self.C, channels) * triton.cdiv(self.area, pixels)


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        return _forward(contiguous_clients(x), contiguous_clients(w), bias, _shape(x, w, bias))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias = inputs
        ctx.save_for_backward(x, w)
        ctx.trial, ctx.shape = current(), _shape(x, w, bias)
        ctx.bias_dtype = None if bias is None else bias.dtype

    @staticmethod
    @once_differentiable
    @in_its_trial
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = (contiguous_clients(t) for t in ctx.saved_tensors)
        return _backward(x, w, dy.contiguous(), ctx.bias_dtype, ctx.needs_input_grad, ctx.shape)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        y = Linear.apply(*(fold(t, d, size) for t, d in zip(inputs, in_dims, strict=True)))
        return y.unflatten(0, (size, y.shape[0] // size)), 0


def _shape(x: Tensor, w: Tensor, bias: Tensor | None) -> Shape:
    fits = x.ndim in (3, 5) and w.ndim == 3 and x.shape[0] == w.shape[0]
    if not fits or x.shape[2:].numel() != w.shape[2]:
        raise ValueError(f"features {tuple(x.shape)} and weights {tuple(w.shape)} do not fit [K,B,D], [K,O,D]")
    if bias is not None and bias.shape != w.shape[:2]:
        raise ValueError(f"bias {tuple(bias.shape)} does not fit the weights {tuple(w.shape)}")
    shape = Shape(x.shape[0], x.shape[1], x.shape[2:-1].numel(), x.shape[-1], w.shape[1])
    if min(shape) < 1:
        raise ValueError(f"a linear layer of {tuple(x.shape)} with {shape.outputs} outputs has nothing to compute")
    if not serves(shape.outputs):
        raise ValueError(f"{shape.outputs} outputs are more than {MOST_OUTPUTS}")
    if max(shape.B, shape.outputs) * w.shape[2] >= 2**31:  # offsets within a client are int32
        raise ValueError(f"{shape.B} samples of {w.shape[2]} features in one client are too many for one launch")
    return shape


def _tile(s: Shape, features: int) -> tuple[int, int]:
    """Channels and pixels of a tile of about so many features: 16 channels are a whole piece of memory in half
    precision, more only where there are few pixels; eight of a pixel are turned together."""
    if s.area == 1:
        return block_size(s.C, features), 1
    channels = 16 if s.C > 8 else 8
    pixels = min(triton.next_power_of_2(s.area), features // channels)
    return max(channels, min(triton.next_power_of_2(s.C), features // pixels)), pixels


@cache
def _forward_tile(s: Shape, dtype: torch.dtype, exact: bool) -> dict[str, Any]:
    """Exact products have no tensor cores: small tiles. The features and their order don't depend on the rows, which
    are doubled where there would be more programs than processors."""
    outputs = block_size(s.outputs, OUTPUTS)
    numbers = NUMBERS // 4 if exact else NUMBERS * 2 // dtype.itemsize
    channels, pixels = _tile(s, numbers // outputs)
    programs = s.K * triton.cdiv(s.outputs, outputs)
    rows = 16 if programs * triton.cdiv(s.B, 16) <= processors() else 32
    warps = min(WARPS, channels * pixels // 16)
    size = channels * pixels * dtype.itemsize
    buffers = max(0, min(2, (room() - outputs * size) // (rows * size)))  # of features on their way
    tile = {"BM": rows, "TO": outputs, "TC": channels, "TP": pixels, "GROUPS": warps}
    return {**tile, "num_warps": warps, "num_stages": 1 + buffers}


@cache
def _backward_tile(s: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """Smaller in full precision and with many outputs, and where some processors would have none."""
    outputs = block_size(s.outputs, MOST_OUTPUTS)
    features = FEATURES * 32 // max(32, outputs)
    if dtype == torch.float32 or s.K * s.tiles(*_tile(s, features)) < processors():
        features = min(features, FEATURES // 2)
    channels, pixels = _tile(s, features)
    rows = 16 if dtype == torch.float32 else 32  # of a step of the sum
    return {"BM": rows, "TO": outputs, "TC": channels, "TP": pixels, "num_warps": 4, "num_stages": 3}


def _forward(x: Tensor, w: Tensor, bias: Tensor | None, s: Shape) -> Tensor:
    y = empty(x, (s.K, s.B, s.outputs))
    tile = _forward_tile(s, x.dtype, precision(x.dtype) == "ieee")
    tiles = triton.cdiv(s.B, tile["BM"]) * triton.cdiv(s.outputs, tile["TO"])
    vector = w if bias is None else contiguous_clients(bias)  # any pointer will do: it is never read
    strides = (x.stride(0), w.stride(0), vector.stride(0))
    options = {**_sizes(s, x.dtype), **tile, "BIAS": bias is not None}
    launch(kernels.forward_kernel, (tiles, s.K), x, w, vector, y, *strides, s.B, **options)
    return y


def _backward(
    x: Tensor, w: Tensor, dy: Tensor, bias_dtype: torch.dtype | None, wanted: tuple[bool, ...], s: Shape
) -> tuple[Tensor | None, ...]:
    """The gradients of x, w and bias that are wanted."""
    dx = empty(dy, x.shape) if wanted[0] else None
    dw = empty(w, w.shape) if wanted[1] else None
    db = empty(dy, (s.K, s.outputs), dtype=bias_dtype) if wanted[2] else None
    tile = _backward_tile(s, dy.dtype)
    results = [dy if t is None else t for t in (dx, dw, db)]  # any pointer will do: it is never written
    args = (x, w, dy, *results, x.stride(0), w.stride(0), s.B)
    options = {**_sizes(s, dy.dtype), **tile, **dict(zip(("DX", "DW", "DB"), wanted, strict=True))}
    launch(kernels.backward_kernel, (s.tiles(tile["TC"], tile["TP"]), s.K), *args, **options)
    return dx, dw, db


def _sizes(s: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """The constants that both kernels share."""
    return {"C": s.C, "AREA": s.area, "OUT": s.outputs, "PRECISION": precision(dtype)}
