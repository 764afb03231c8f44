"""Two Gaussians on a line fitted in one launch: the expectation–maximisation of `fednoil.learners.mixture`.

As PyTorch operations it is some 150 launches, which a client needs once an epoch. Clients mapped by `torch.vmap` are
rows of one launch.

Gain end to end: `python benchmarks/kernels.py --kernel mixture`.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 4096  # of a row at most: they stay in registers


@triton.jit
def _maximise(value, resp, n, floor, tiny):
    """Share, mean and variance of a component."""
    size = tl.sum(resp, 0) + tiny
    mean = tl.sum(resp * value, 0) / size
    away = value - mean
    return size / n, mean, tl.sum(resp * away * away, 0) / size + floor


@triton.jit
def _log_joint(value, share, mean, variance):
    away = value - mean
    return tl.log(share) - 0.5 * (away * away / variance + tl.log(6.283185307179586 * variance))


@triton.jit
def _log_total(first, second):
    top = tl.maximum(first, second)
    return top + tl.log(tl.exp(first - top) + tl.exp(second - top))


@triton.jit
def mixture_kernel(
    values, upper, out, counts, width, floor, tiny, tolerance, ITERATIONS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out [R, width]: the probability of the component with the lower mean, for the first counts [R] values of each
    row; upper [R, width] (0 or 1) is where the fit starts."""
    row = tl.program_id(0).to(tl.int64) * width
    n = tl.load(counts + tl.program_id(0)).to(tl.int32)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(values + row + at, mask=inside, other=0.0)
    start = tl.load(upper + row + at, mask=inside, other=0.0)
    share0, mean0, variance0 = _maximise(value, tl.where(inside, 1.0 - start, 0.0), n, floor, tiny)
    share1, mean1, variance1 = _maximise(value, tl.where(inside, start, 0.0), n, floor, tiny)
    bound = tl.sum(tl.zeros((BLOCK,), tl.float64), 0) - 1e300
    done = bound > 0.0
    for _ in range(ITERATIONS):
        joint0 = _log_joint(value, share0, mean0, variance0)
        joint1 = _log_joint(value, share1, mean1, variance1)
        total = _log_total(joint0, joint1)
        new0 = _maximise(value, tl.where(inside, tl.exp(joint0 - total), 0.0), n, floor, tiny)
        new1 = _maximise(value, tl.where(inside, tl.exp(joint1 - total), 0.0), n, floor, tiny)
        share0, mean0, variance0 = (
            tl.where(done, share0, new0[0]),
            tl.where(done, mean0, new0[1]),
            tl.where(done, variance0, new0[2]),
        )
        share1, mean1, variance1 = (
            tl.where(done, share1, new1[0]),
            tl.where(done, mean1, new1[1]),
            tl.where(done, variance1, new1[2]),
        )
        new_bound = tl.sum(tl.where(inside, total, 0.0), 0) / n
        done = done | (tl.abs(new_bound - bound) < tolerance)
        bound = new_bound
    joint0 = _log_joint(value, share0, mean0, variance0)
    joint1 = _log_joint(value, share1, mean1, variance1)
    low = tl.where(mean1 < mean0, joint1, joint0)
    tl.store(out + row + at, tl.exp(low - _log_total(joint0, joint1)), mask=at < width)


class LowComponent(torch.autograd.Function):
    """Probabilities float64 [R, n] from values and start float64 [R, n] and the number of values [R]; no gradient."""

    @staticmethod
    def forward(values: Tensor, upper: Tensor, counts: Tensor, *settings: Any) -> Tensor:
        rows, width = values.shape
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        floor, tiny, tolerance, iterations = settings
        mixture_kernel[(rows,)](
            values.contiguous(), upper.contiguous(), out, counts.contiguous(), width, floor, tiny, tolerance,
            ITERATIONS=iterations, BLOCK=triton.next_power_of_2(width), num_warps=4 if width <= 1024 else 8,
        )  # fmt: skip
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Fold the mapped dimension into the rows, so that one launch serves all clients."""
        size = info.batch_size
        folded = (
            (t.expand(size, *t.shape) if d is None else t.movedim(d, 0)).flatten(0, 1)
            for t, d in zip(inputs[:3], in_dims[:3], strict=True)
        )
        return LowComponent.apply(*folded, *inputs[3:]).unflatten(0, (size, -1)), 0


def low_component(
    values: Tensor, upper: Tensor, count: Tensor, floor: float, tiny: float, tolerance: float, iterations: int
) -> Tensor:
    """Probabilities float64 [R, n] that the first `count` values float64 of each row [R, n] belong to the component
    with the lower mean."""
    return LowComponent.apply(values, upper, count.expand(len(values)), floor, tiny, tolerance, iterations)
