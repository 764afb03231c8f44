"""Cross-entropy of all clients' logits in one launch, and its gradient in another.

PyTorch's own, mapped over clients, is a score of small launches, each of which takes longer to start than to run: a
quarter of a step of the small CNN. Softmax and sums are taken in float32, in a fixed order.
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

from fednoil.kernels.ahead import current, empty, in_its_trial, launch
from fednoil.kernels.stacked import fold

TILE = 2048  # logits of a tile
CLASSES = 1024  # at most


@triton.jit
def _tile(
    logits, labels, first, rows, row_stride, label_stride, ignored, C: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr
):
    """Logits [BM, BC], which of them are a row's own label's, which rows there are, count, and have a label."""
    row = first + tl.arange(0, BM)
    column = tl.arange(0, BC)[None, :]
    inside = row < rows
    label = tl.load(labels + row * label_stride, mask=inside, other=0)
    here = inside[:, None] & (column < C)
    value = tl.load(logits + row[:, None] * row_stride + column, mask=here, other=-float("inf"))
    value = tl.where(inside[:, None], value, 0.0)  # or the rows that there aren't would be NaN
    return value, column == label[:, None], inside, inside & (label != ignored), (label >= 0) & (label < C)


# Labels are rows of a longer plan, of which only the first is sure to be aligned (as in `sgd`).
@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["labels"])
def loss_kernel(
    logits, labels, losses, mean, share, logits_stride, row_stride, labels_stride, label_stride, rows, ignored,
    C: tl.constexpr, MEAN: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """losses [clients, rows], or with MEAN their mean over the rows that count, and one row's share of it; grid
    (clients,)."""
    client = tl.program_id(0).to(tl.int64)
    logits += client * logits_stride
    labels += client * labels_stride
    total = tl.zeros((BM,), tl.float32)
    number = tl.zeros((BM,), tl.float32)
    for first in range(0, rows, BM):
        value, own, inside, counts, known = _tile(
            logits, labels, first, rows, row_stride, label_stride, ignored, C, BM, BC
        )
        top = tl.max(value, 1)
        loss = top + tl.log(tl.sum(tl.exp(value - top[:, None]), 1)) - tl.sum(tl.where(own, value, 0.0), 1)
        # Nothing can raise here, so a label that isn't a class makes its loss NaN.
        loss = tl.where(counts, tl.where(known, loss, float("nan")), 0.0)
        if MEAN:
            total += loss
            number += tl.where(counts, 1.0, 0.0)
        else:
            tl.store(losses + client * rows + first + tl.arange(0, BM), loss, mask=inside)
    if MEAN:
        one = 1.0 / tl.sum(number, 0)
        tl.store(mean + client, tl.sum(total, 0) * one)
        tl.store(share + client, one)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["labels"])
def gradient_kernel(
    logits, labels, upper, share, gradient, logits_stride, row_stride, labels_stride, label_stride,
    upper_stride, upper_row, rows, ignored,
    C: tl.constexpr, MEAN: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """gradient [clients, rows, C] = (softmax − one-hot) × that of the losses, `upper`; grid (row tiles, clients)."""
    client = tl.program_id(1).to(tl.int64)
    logits += client * logits_stride
    labels += client * labels_stride
    first = tl.program_id(0) * BM
    value, own, inside, counts, known = _tile(logits, labels, first, rows, row_stride, label_stride, ignored, C, BM, BC)
    row = first + tl.arange(0, BM)
    slope = tl.load(upper + client * upper_stride + row * upper_row, mask=inside, other=0.0)
    if MEAN:
        slope = slope * tl.load(share + client)
    power = tl.exp(value - tl.max(value, 1)[:, None])
    found = (power / tl.sum(power, 1)[:, None] - tl.where(own, 1.0, 0.0)) * slope[:, None]
    found = tl.where((counts & known)[:, None], found, 0.0)
    column = tl.arange(0, BC)[None, :]
    at = (client * rows + row[:, None]) * C + column
    tl.store(gradient + at, found, mask=inside[:, None] & (column < C))


class CrossEntropy(torch.autograd.Function):
    """Of logits [K, B, C] and labels [K, B]: losses [K, B], or with `mean` [K]; and one row's share of that [K, 1]."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, mean: bool, ignored: int) -> tuple[Tensor, Tensor]:
        clients, rows, classes = logits.shape
        found = empty(logits, (clients,) if mean else (clients, rows))
        share = empty(logits, (clients, int(mean)))
        sizes = _sizes(classes, mean)
        launch(
            loss_kernel,
            (clients,),
            logits,
            labels,
            found,
            found,
            share,
            *_strides(logits, labels),
            rows,
            ignored,
            **sizes,
        )
        return found, share

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        logits, labels, ctx.mean, ctx.ignored = inputs
        ctx.trial = current()
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, labels, output[1])

    @staticmethod
    @once_differentiable
    @in_its_trial
    def backward(ctx: Any, upper: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if upper is None:
            return None, None, None, None
        logits, labels, share = ctx.saved_tensors
        clients, rows, classes = logits.shape
        gradient = empty(logits, (clients, rows, classes))
        sizes = _sizes(classes, ctx.mean)
        strides = (*_strides(logits, labels), upper.stride(0), 0 if ctx.mean else upper.stride(1))
        grid = (triton.cdiv(rows, sizes["BM"]), clients)
        launch(gradient_kernel, grid, logits, labels, upper, share, gradient, *strides, rows, ctx.ignored, **sizes)
        return gradient, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        size = info.batch_size
        folded = [fold(t, d, size) for t, d in zip(inputs[:2], in_dims[:2], strict=True)]
        outputs = CrossEntropy.apply(*folded, *inputs[2:])
        return tuple(t.unflatten(0, (size, t.shape[0] // size)) for t in outputs), (0, 0)


def _sizes(classes: int, mean: bool) -> dict[str, Any]:
    wide = triton.next_power_of_2(classes)
    return {"C": classes, "MEAN": mean, "BM": max(1, TILE // wide), "BC": wide}


def _strides(logits: Tensor, labels: Tensor) -> tuple[int, ...]:
    return (*logits.stride()[:2], *labels.stride())


def serves(logits: Tensor, labels: Tensor) -> bool:
    """Whether the kernel works on one client's logits [B, C] and labels [B]."""
    return logits.dtype == torch.float32 and labels.dtype == torch.int64 and 0 < logits.shape[1] <= CLASSES


def cross_entropy(logits: Tensor, labels: Tensor, mean: bool = True, ignored: int = -100) -> Tensor:
    """PyTorch's cross-entropy of one client's logits float32 [B, C] and labels int64 [B]: their mean, or [B].

    A label that isn't a class makes its loss NaN.
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1] or not serves(logits, labels):
        raise ValueError(f"logits {logits.dtype} {tuple(logits.shape)} and labels {labels.dtype} {tuple(labels.shape)}")
    logits = logits if logits.stride(1) == 1 or logits.shape[1] == 1 else logits.contiguous()
    return CrossEntropy.apply(logits.unsqueeze(0), labels.unsqueeze(0), mean, ignored)[0].squeeze(0)
