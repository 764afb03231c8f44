"""Counter-based random bits in one launch instead of fourteen; the same numbers as `fednoil.seeds.bits`."""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _bits_kernel(
    keys, out, count, total,
    GAMMA: tl.constexpr, MIX1: tl.constexpr, MIX2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """SplitMix64 of key + counter · GAMMA; shifts are logical, as torch's masked ones."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    x = tl.load(keys + at // count, mask=inside, other=0) + (at % count + 1) * GAMMA
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX2
    tl.store(out + at, x ^ ((x >> 31) & 0x1FFFFFFFF), mask=inside)


def bits(keys: Tensor, count: int, gamma: int, mix1: int, mix2: int) -> Tensor:
    """64 random bits for each key and counter 1..count: int64 [*keys.shape, count]; the constants are int64."""
    out = torch.empty(*keys.shape, count, dtype=torch.int64, device=keys.device)
    if out.numel():
        grid = (triton.cdiv(out.numel(), BLOCK),)
        _bits_kernel[grid](keys.contiguous(), out, count, out.numel(), GAMMA=gamma, MIX1=mix1, MIX2=mix2, BLOCK=BLOCK)
    return out
