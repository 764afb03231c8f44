"""Cross-entropy of many clients in one launch each way, where PyTorch's `vmap` makes some twenty small ones.

Gain end to end: `python benchmarks/kernels.py --kernel loss`.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false, reportIndexIssue=false
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

CLASSES = 1024  # at most: a row of logits stays in registers
_NUMBERS = 2048  # of a tile


@triton.jit
def _row(logits, labels, row, n, row_stride, label_stride, ignored, classes, BC: tl.constexpr):
    """Logits [BN, BC] of some rows, the columns, which of them is the label's, and which rows count.

    A label that is not a class makes its row NaN: nothing can raise here, and training must not seem to work.
    """
    column = tl.arange(0, BC)[None, :]
    label = tl.load(labels + row * label_stride, mask=row < n, other=0)
    inside = (row < n)[:, None] & (column < classes)
    x = tl.load(logits + row[:, None] * row_stride + column, mask=inside, other=0.0)
    x = tl.where(column < classes, x, float("-inf"))
    counts = (row < n) & (label != ignored)
    wrong = counts & ((label < 0) | (label >= classes))
    x = tl.where(wrong[:, None] & (column == 0), float("nan"), x)
    return x, column, column == label[:, None], counts


@triton.jit
def cross_entropy_kernel(
    logits, labels, losses, counts, n, client_stride, row_stride, label_client, label_stride, ignored, classes,
    MEAN: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """losses [K, n], or with MEAN [K] and the number of rows that count [K]; a program for each client."""
    client = tl.program_id(0).to(tl.int64)
    logits += client * client_stride
    labels += client * label_client
    total = tl.zeros((BN,), tl.float32)
    count = tl.zeros((BN,), tl.float32)
    for start in range(0, n, BN):
        row = start + tl.arange(0, BN)
        x, _, own, counts_here = _row(logits, labels, row, n, row_stride, label_stride, ignored, classes, BC)
        top = tl.max(x, 1)
        lse = top + tl.log(tl.sum(tl.exp(x - top[:, None]), 1))
        loss = tl.where(counts_here, lse - tl.sum(tl.where(own, x, 0.0), 1), 0.0)
        if MEAN:
            total += loss
            count += counts_here.to(tl.float32)
        else:
            tl.store(losses + client * n + row, loss, mask=row < n)
    if MEAN:
        rows = tl.sum(count, 0)
        tl.store(losses + client, tl.sum(total, 0) / rows)
        tl.store(counts + client, rows)


@triton.jit
def cross_entropy_gradient_kernel(
    logits, labels, upstream, counts, gradient, n, client_stride, row_stride, label_client, label_stride, ignored,
    classes, up_client, up_row, MEAN: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """gradient [K, n, classes] = (softmax − one-hot) × upstream; grid (row tiles, clients)."""
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    logits += client * client_stride
    labels += client * label_client
    x, column, own, counts_here = _row(logits, labels, row, n, row_stride, label_stride, ignored, classes, BC)
    power = tl.exp(x - tl.max(x, 1)[:, None])
    share = power / tl.sum(power, 1)[:, None]
    if MEAN:
        weight = tl.load(upstream + client * up_client) / tl.load(counts + client) + tl.zeros((BN,), tl.float32)
    else:
        weight = tl.load(upstream + client * up_client + row * up_row, mask=row < n, other=0.0)
    value = tl.where(counts_here[:, None], (share - own.to(tl.float32)) * weight[:, None], 0.0)
    inside = (row < n)[:, None] & (column < classes)
    tl.store(gradient + (client * n + row[:, None]) * classes + column, value, mask=inside)


class CrossEntropy(torch.autograd.Function):
    """(losses, counts) of logits [K, n, C] and labels [K, n]; the counts are for the backward pass only."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, ignored: int, mean: bool) -> tuple[Tensor, Tensor]:
        logits = _rows(logits)
        clients, n, classes = logits.shape
        losses = logits.new_empty((clients,) if mean else (clients, n))
        counts = logits.new_empty((clients,))
        cols = triton.next_power_of_2(classes)
        sizes = {"MEAN": mean, "BN": _tile(n, cols), "BC": cols}
        strides = (*logits.stride()[:2], *labels.stride())
        cross_entropy_kernel[(clients,)](logits, labels, losses, counts, n, *strides, ignored, classes, **sizes)
        return losses, counts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        logits, labels, ctx.ignored, ctx.mean = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, labels, output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, _: Any) -> tuple[Tensor | None, None, None, None]:
        if upstream is None:
            return None, None, None, None
        logits, labels, counts = ctx.saved_tensors
        logits = _rows(logits)
        clients, n, classes = logits.shape
        gradient = logits.new_empty((clients, n, classes))
        cols = triton.next_power_of_2(classes)
        tile = _tile(n, cols)
        strides = (*logits.stride()[:2], *labels.stride())
        up = (upstream.stride(0), 0 if ctx.mean else upstream.stride(1))
        cross_entropy_gradient_kernel[(triton.cdiv(n, tile), clients)](
            logits, labels, upstream, counts, gradient, n, *strides, ctx.ignored, classes, *up,
            MEAN=ctx.mean, BN=tile, BC=cols,
        )  # fmt: skip
        return gradient, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        """Fold the mapped dimension into the clients, so that one launch serves all of them."""
        size = info.batch_size
        folded = (
            (t.expand(size, *t.shape) if d is None else t.movedim(d, 0)).flatten(0, 1)
            for t, d in zip(inputs[:2], in_dims[:2], strict=True)
        )
        outputs = CrossEntropy.apply(*folded, *inputs[2:])
        return tuple(t.unflatten(0, (size, -1)) for t in outputs), (0, 0)


def _rows(logits: Tensor) -> Tensor:
    """Logits with contiguous classes; the strides of rows and clients can be anything."""
    return logits if logits.stride(2) == 1 else logits.contiguous()


def _tile(n: int, cols: int) -> int:
    return max(1, min(triton.next_power_of_2(n), _NUMBERS // cols))


def cross_entropy(logits: Tensor, labels: Tensor, ignored: int = -100, mean: bool = True) -> Tensor:
    """Cross-entropy of one client's logits [n, C] and labels [n]: the mean over those not `ignored`, or each [n]."""
    return CrossEntropy.apply(logits.unsqueeze(0), labels.unsqueeze(0), ignored, mean)[0].squeeze(0)
