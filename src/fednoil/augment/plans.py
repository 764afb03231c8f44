"""The parameters of augmented views, drawn ahead: one row of whole numbers for each sample.

A row of a weak plan is (flip, dy, dx). A row of a strong plan goes on with (operation, level, sign, applied)
for each operation and ends with Cutout's centre (y, x). All of a key's numbers come from one stream of
counters, sample after sample, so a longer plan begins with the shorter one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fednoil.augment.tables import LEVELS, OPS
from fednoil.errors import UserError
from fednoil.seeds import integers

WEAK_COLUMNS = 3
OP_COLUMNS = 4
CENTRE_COLUMNS = 2

_BITS = 30
# Mixed into the keys so that one key used for a weak and a strong plan, or for an order, gives no two alike.
_WEAK_STREAM = 0x2545F4914F6CDD1D
_STRONG_STREAM = 0x5851F42D4C957F2D


def _check(keys: Tensor, count: int, pad: int) -> None:
    if keys.dtype != torch.int64:
        raise UserError(f"keys: dtype {keys.dtype} given; int64 keys from Seed.keys() are needed")
    if count < 0:
        raise UserError(f"count: {count} given; the number of samples must be 0 or more")
    if pad < 0:
        raise UserError(f"pad: {pad} given; the largest shift in pixels must be 0 or more")


def _draw(keys: Tensor, count: int, spans: list[int]) -> Tensor:
    """Whole numbers, uniform in 0..spans[j]-1 in column j: int64 [*keys.shape, count, len(spans)]."""
    words = integers(keys, count * len(spans), 0, 1 << _BITS).view(*keys.shape, count, len(spans))
    return (words * torch.tensor(spans, device=keys.device)) >> _BITS


def weak_plan(keys: Tensor, count: int, pad: int = 4) -> Tensor:
    """Parameters of `count` weak views for each key: int32 [*keys.shape, count, 3] = (flip, dy, dx).

    flip is 0 or 1, dy and dx are uniform in -pad..pad pixels: a random crop after reflect-padding by `pad`.
    """
    _check(keys, count, pad)
    side = 2 * pad + 1
    drawn = _draw(keys ^ _WEAK_STREAM, count, [2, side, side])
    lows = torch.tensor([0, -pad, -pad], device=keys.device)
    return (drawn + lows).to(torch.int32)


def strong_plan(
    keys: Tensor,
    count: int,
    size: tuple[int, int],
    pad: int = 4,
    ops: int = 2,
    prob: float = 0.5,
) -> Tensor:
    """Parameters of `count` strong views of images of `size` (H, W): int32 [*keys.shape, count, 5 + 4*ops].

    A row is (flip, dy, dx), then for each of `ops` operations (id 0..13, level 1..9, sign ±1, applied 0/1
    with probability `prob`), then Cutout's centre (y, x) in pixels.
    """
    _check(keys, count, pad)
    height, width = size
    if height < 1 or width < 1:
        raise UserError(f"size: {size} given; height and width must be 1 or more")
    if ops < 0:
        raise UserError(f"ops: {ops} given; the number of operations must be 0 or more")
    if not 0 <= prob <= 1:
        raise UserError(f"prob: {prob} given; a probability from 0 to 1 is needed")
    side = 2 * pad + 1
    one_op = [len(OPS), LEVELS, 2, 1 << _BITS]
    drawn = _draw(keys ^ _STRONG_STREAM, count, [2, side, side, *one_op * ops, height, width])
    lows = torch.tensor([0, -pad, -pad, *[0, 1, 0, 0] * ops, 0, 0], device=keys.device)
    plan = drawn + lows
    op_part = plan[..., WEAK_COLUMNS:-CENTRE_COLUMNS].unflatten(-1, (ops, OP_COLUMNS))
    op_part[..., 2] = 2 * op_part[..., 2] - 1
    op_part[..., 3] = (op_part[..., 3] < round(prob * (1 << _BITS))).to(torch.int64)
    return plan.to(torch.int32)
