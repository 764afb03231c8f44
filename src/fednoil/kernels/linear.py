"""The last, linear layer of many clients over the features of an image, in at most two launches each way.

Features are stacked and channels-last, [clients, batch, height, width, channels], as convolutions leave them; weights
are PyTorch's [clients, outputs, channels · height · width]. A library's product needs copies of the features and of
their gradient in the order of the weights, and is slow for so few outputs: its fast tiles want rows of results that
begin at multiples of 16 bytes. Sums are taken in fp32 and in a fixed order: the results are deterministic.

Gain end to end: `python benchmarks/kernels.py --kernel linear`. The version that introduced it, with fewer copies
elsewhere, took the 150 rounds of Fashion-MNIST's preset from 15.3 to 13.1 s on an H200.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from fednoil.kernels import processors
from fednoil.kernels.conv_tiles import block_size, shares
from fednoil.kernels.stacked import contiguous_clients, fold, precision, summed, to_nhwc

OUTPUTS = 64  # at most: those of a client are one tile
_FEATURES = 64  # of a tile
_ROWS, _GRADIENT_ROWS = 128, 64  # of a tile: a usual batch, and half of it where two products need registers


@triton.jit
def _in_weights(f, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """The place of a feature, counted channels-last, among the weights of an output."""
    return f % CHANNELS * PIXELS + f // CHANNELS


@triton.jit(do_not_specialize=["rows", "share"])
def linear_kernel(
    x, w, bias, part, x_stride, w_stride, bias_stride, rows, share,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """part [splits, clients, rows, OUT] = x @ w over the split's share of the features, the first plus bias.

    Grid (row tiles, clients, splits); share is in blocks of BK features.
    """
    FEATURES: tl.constexpr = PIXELS * CHANNELS
    client = tl.program_id(1).to(tl.int64)
    x += client * x_stride
    w += client * w_stride
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    begin = tl.program_id(2) * share
    for block in range(begin, tl.minimum(begin + share, (FEATURES + BK - 1) // BK)):
        f = block * BK + tl.arange(0, BK)
        feature = tl.load(x + m * FEATURES + f[None, :], mask=(m < rows) & (f < FEATURES)[None, :], other=0.0)
        at = n * FEATURES + _in_weights(f, PIXELS, CHANNELS)[:, None]
        weight = tl.load(w + at, mask=(n < OUT) & (f < FEATURES)[:, None], other=0.0).to(feature.dtype)
        acc = tl.dot(feature, weight, acc, input_precision=PRECISION)
    if BIAS:
        own = (n < OUT) & (tl.program_id(2) == 0)
        acc += tl.load(bias + client * bias_stride + n, mask=own, other=0.0).to(tl.float32)
    part += (tl.program_id(2) * tl.num_programs(1) + client) * rows * OUT
    tl.store(part + m * OUT + n, acc, mask=(m < rows) & (n < OUT))


@triton.jit(do_not_specialize=["rows"])
def linear_gradients_kernel(
    dy, x, w, dx, dw, db, x_stride, w_stride, rows,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx [rows, features] = dy @ w, dw [OUT, features] = dy, transposed, @ x, and db [OUT], the sums of dy.

    Grid (feature tiles, clients): a program has all rows of BK features.
    """
    FEATURES: tl.constexpr = PIXELS * CHANNELS
    client = tl.program_id(1).to(tl.int64)
    dy += client * rows * OUT
    x += client * x_stride
    w += client * w_stride
    dx += client * rows * FEATURES
    dw += client * (OUT * FEATURES)
    n = tl.arange(0, BN)
    f = tl.program_id(0) * BK + tl.arange(0, BK)[None, :]
    at = n[:, None] * FEATURES + _in_weights(f, PIXELS, CHANNELS)
    in_weight = (n < OUT)[:, None] & (f < FEATURES)
    weight = tl.load(w + at, mask=in_weight, other=0.0).to(x.dtype.element_ty)
    acc = tl.zeros((BN, BK), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for first in range(0, rows, BM):
        m = first + tl.arange(0, BM)[:, None]
        up = tl.load(dy + m * OUT + n[None, :], mask=(m < rows) & (n < OUT)[None, :], other=0.0)
        total += tl.sum(up, 0)
        up = up.to(x.dtype.element_ty)
        inside = (m < rows) & (f < FEATURES)
        feature = tl.load(x + m * FEATURES + f, mask=inside, other=0.0)
        down = tl.dot(up, weight, input_precision=PRECISION)
        tl.store(dx + m * FEATURES + f, down.to(dx.dtype.element_ty), mask=inside)
        acc = tl.dot(tl.trans(up), feature, acc, input_precision=PRECISION)
    tl.store(dw + at, acc.to(dw.dtype.element_ty), mask=in_weight)
    if BIAS:
        own = (n < OUT) & (tl.program_id(0) == 0)
        tl.store(db + client * OUT + n, total.to(db.dtype.element_ty), mask=own)


class Linear(torch.autograd.Function):
    """x [K, B, H, W, C], w [K, O, C · H · W] and bias [K, O]: float32 [K, B, O]."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        x, w = contiguous_clients(x), contiguous_clients(w)
        options = _options(x, w, bias, _ROWS)
        clients, rows, outputs = x.shape[0], x.shape[1], w.shape[1]
        tiles = triton.cdiv(rows, options["BM"])
        blocks = triton.cdiv(w.shape[2], options["BK"])
        share, splits = shares(blocks, 1, max(1, processors() // (tiles * clients)))
        part = x.new_empty((splits, clients, rows, outputs), dtype=torch.float32)
        vector = w if bias is None else contiguous_clients(bias)  # any pointer will do: it is never read
        strides = (x.stride(0), w.stride(0), vector.stride(0))
        linear_kernel[(tiles, clients, splits)](x, w, vector, part, *strides, rows, share, **options)
        return summed((part, torch.float32))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias = inputs
        ctx.save_for_backward(x, w)
        ctx.bias = None if bias is None else bias.dtype

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, w = map(contiguous_clients, ctx.saved_tensors)
        dy, dx, dw = dy.contiguous(), x.new_empty(x.shape), w.new_empty(w.shape)
        db = None if ctx.bias is None else w.new_empty(w.shape[:2], dtype=ctx.bias)
        options, strides = _options(x, w, db, _GRADIENT_ROWS), (x.stride(0), w.stride(0))
        grid = (triton.cdiv(w.shape[2], options["BK"]), len(x))
        args = (dy, x, w, dx, dw, dw if db is None else db)
        linear_gradients_kernel[grid](*args, *strides, x.shape[1], **options)
        return dx, dw, db

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor | None) -> tuple[Tensor, int]:
        size = info.batch_size
        y = Linear.apply(*(fold(t, d, size) for t, d in zip(inputs, in_dims, strict=True)))
        return y.unflatten(0, (size, len(y) // size)), 0


def _options(x: Tensor, w: Tensor, bias: Tensor | None, most_rows: int) -> dict[str, Any]:
    """The constants that both kernels have."""
    (_, rows, high, wide, channels), outputs = x.shape, w.shape[1]
    return {
        "PIXELS": high * wide,
        "CHANNELS": channels,
        "OUT": outputs,
        "BIAS": bias is not None,
        "PRECISION": precision(x.dtype),
        "BM": block_size(rows, most_rows),
        "BN": block_size(outputs, OUTPUTS),
        "BK": _FEATURES,
    }


def linear_nchw(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x.flatten(1) @ w.T + bias of one client, float32 [B, O]: x [B, C, H, W], not copied if it is in channels_last
    memory, and w [O, C · H · W] with at most `OUTPUTS` outputs."""
    return Linear.apply(to_nhwc(x), w.unsqueeze(0), None if bias is None else bias.unsqueeze(0)).squeeze(0)
