"""Counter-based random numbers in one launch instead of dozens; the same as `fednoil.seeds` computes on a CPU.

Gain end to end: `python benchmarks/kernels.py --kernel random`.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _splitmix(key, counter, GAMMA: tl.constexpr, MIX1: tl.constexpr, MIX2: tl.constexpr):
    """SplitMix64 of key + counter · GAMMA; shifts are logical, like torch's masked ones."""
    x = key + counter * GAMMA
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _bits_kernel(
    keys, out, count, total,
    GAMMA: tl.constexpr, MIX1: tl.constexpr, MIX2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    key = tl.load(keys + at // count, mask=inside, other=0)
    tl.store(out + at, _splitmix(key, at % count + 1, GAMMA, MIX1, MIX2), mask=inside)


@triton.jit
def _draw_kernel(
    keys, columns, out, count, total,
    COLUMNS: tl.constexpr, GAMMA: tl.constexpr, MIX1: tl.constexpr, MIX2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    key = tl.load(keys + at // count, mask=inside, other=0)
    word = (_splitmix(key, at % count + 1, GAMMA, MIX1, MIX2) >> 34) & 0x3FFFFFFF
    column = columns + (at % COLUMNS) * 4
    span = tl.load(column, mask=inside, other=0)
    value = ((word * span) >> 30) * tl.load(column + 1, mask=inside, other=0) + tl.load(
        column + 2, mask=inside, other=0
    )
    chance = tl.load(column + 3, mask=inside, other=0)
    value = tl.where(chance >= 0, (word < chance).to(tl.int64), value)
    tl.store(out + at, value.to(tl.int32), mask=inside)


def bits(keys: Tensor, count: int, gamma: int, mix1: int, mix2: int) -> Tensor:
    """64 random bits for each key and counter 1..count: int64 [*keys.shape, count]; the constants are int64."""
    out = torch.empty(*keys.shape, count, dtype=torch.int64, device=keys.device)
    if out.numel():
        grid = (triton.cdiv(out.numel(), BLOCK),)
        _bits_kernel[grid](keys.contiguous(), out, count, out.numel(), GAMMA=gamma, MIX1=mix1, MIX2=mix2, BLOCK=BLOCK)
    return out


def draws(keys: Tensor, count: int, columns: Tensor, gamma: int, mix1: int, mix2: int) -> Tensor:
    """Whole numbers by column: int32 [*keys.shape, count, columns].

    A row of `columns` (int64 [columns, 4]) is (span, scale, low, chance): a 30-bit word w gives
    (w · span >> 30) · scale + low. If chance isn't negative, it gives 1 where w < chance and 0 elsewhere instead.
    """
    out = torch.empty(*keys.shape, count, len(columns), dtype=torch.int32, device=keys.device)
    if out.numel():
        grid, size = (triton.cdiv(out.numel(), BLOCK),), count * len(columns)
        constants = {"COLUMNS": len(columns), "GAMMA": gamma, "MIX1": mix1, "MIX2": mix2, "BLOCK": BLOCK}
        _draw_kernel[grid](keys.contiguous(), columns, out, size, out.numel(), **constants)
    return out
