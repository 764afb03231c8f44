"""What the kernels of stacked clients share: folding one client's tensors into those of all, and sums of parts.

Clients are the first dimension; images are channels-last. Sums are taken in fp32 and in a fixed order.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fednoil.kernels.ahead import empty, launch

SUM_NUMBERS, SUM_SPLITS = 1024, 32  # of a tile, and the splits that it adds at a time at most


def to_nhwc(x: Tensor) -> Tensor:
    """Images [B, C, H, W] of one client as [1, B, H, W, C], a view."""
    return x.permute(0, 2, 3, 1).unsqueeze(0)


def fold(t: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """t with the vmapped dimension merged into its clients; an unbatched t is shared, as a view for one client."""
    if t is None:
        return None
    return (t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)


def applied(function: type[torch.autograd.Function], *args: Any) -> Any:
    """What the function returns; without gradients it is called itself, because `apply` reads its signature each time,
    which takes longer than a launch."""
    plain = not torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
    return function.forward(*args) if plain else function.apply(*args)


def contiguous_clients(x: Tensor) -> Tensor:
    """x [K, ...] contiguous within each client; the stride between clients can be anything, 0 where they share it."""
    return x if x[0].is_contiguous() else x.contiguous()


def precision(dtype: torch.dtype) -> str:
    """How Triton rounds the factors of products in this dtype."""
    return "tf32" if dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32 else "ieee"


@triton.jit
def _sum_block(part, total, block, splits, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """A block of total [size] = the sum of part [splits, size], SPLITS at a time to keep enough loads in flight."""
    n = block * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((SPLITS, BLOCK), tl.float32)
    for first in range(0, splits, SPLITS):
        split = (first + tl.arange(0, SPLITS))[:, None]
        ok = (split < splits) & (n < size)[None, :]
        acc += tl.load(part + split.to(tl.int64) * size + n[None, :], mask=ok, other=0.0)
    tl.store(total + n, tl.sum(acc, 0).to(total.dtype.element_ty), mask=n < size)


@triton.jit(do_not_specialize=["splits", "more_splits"])
def sum_kernel(
    part, total, splits, size, more, more_total, more_splits, more_size,
    SPLITS: tl.constexpr, MORE_SPLITS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """total [size] = the sum of part [splits, size], and a second such sum; grid (blocks of the first, of the second).

    A block reads NUMBERS at a time.
    """
    BLOCK: tl.constexpr = NUMBERS // SPLITS
    MORE_BLOCK: tl.constexpr = NUMBERS // MORE_SPLITS
    block = tl.program_id(0)
    blocks = (size + BLOCK - 1) // BLOCK
    if block < blocks:
        _sum_block(part, total, block, splits, size, SPLITS, BLOCK)
    else:
        _sum_block(more, more_total, block - blocks, more_splits, more_size, MORE_SPLITS, MORE_BLOCK)


def summed(*parts: tuple[Tensor | None, torch.dtype | None]) -> list[Tensor | None]:
    """The sum of each contiguous part (at most two) over its first dimension, taken in fp32 and returned in its dtype;
    one launch for both."""
    totals = [
        None if p is None else p.squeeze(0).to(d) if len(p) == 1 else empty(p, p.shape[1:], dtype=d) for p, d in parts
    ]
    jobs = [(p, t) for (p, _), t in zip(parts, totals, strict=True) if p is not None and t is not None and len(p) > 1]
    if jobs:
        at_once = [min(SUM_SPLITS, triton.next_power_of_2(len(part))) for part, _ in jobs]
        blocks = [triton.cdiv(t.numel(), SUM_NUMBERS // n) for (_, t), n in zip(jobs, at_once, strict=True)]
        args = [(part, total, len(part), total.numel()) for part, total in jobs]
        sizes = {"SPLITS": at_once[0], "MORE_SPLITS": at_once[-1], "NUMBERS": SUM_NUMBERS}
        launch(sum_kernel, (sum(blocks),), *args[0], *args[-1], **sizes)
    return totals
