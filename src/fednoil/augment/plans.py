"""The parameters of augmented views, drawn ahead: one row of whole numbers for each sample.

A row of a weak plan is (flip, dy, dx). A row of a strong plan continues with (operation, level, sign, applied)
for each operation and ends with Cutout's centre (y, x). All of a key's numbers come from one stream of
counters, sample after sample, so a longer plan begins with the shorter one.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fednoil.augment.tables import OP_LEVELS, OPS
from fednoil.errors import UserError
from fednoil.seeds import integers

WEAK_COLUMNS = 3
OP_COLUMNS = 4
CENTRE_COLUMNS = 2
_OUTSIDE = -(1 << 16)  # further from any image than a square reaches

_BITS = 30
# Mixed into the keys so that one key used for a weak plan, a strong plan and an order gives three different ones.
_WEAK_STREAM = 0x2545F4914F6CDD1D
_STRONG_STREAM = 0x5851F42D4C957F2D


def _check(keys: Tensor, count: int, pad: int) -> None:
    if keys.dtype != torch.int64:
        raise UserError(f"keys must be int64, from Seed.keys(), not {keys.dtype}")
    if count < 0:
        raise UserError(f"count = {count}: the number of samples must be 0 or more")
    if pad < 0:
        raise UserError(f"pad = {pad}: the largest shift in pixels must be 0 or more")


@lru_cache(maxsize=64)
def _columns(rows: tuple[tuple[int, int, int, int], ...], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=device)


def _draw(keys: Tensor, count: int, rows: list[tuple[int, int, int, int]]) -> Tensor:
    """Whole numbers by column: int32 [*keys.shape, count, columns].

    A column is (span, scale, low, chance): (uniform in 0..span-1) · scale + low. If chance isn't negative, it is 1
    with probability chance / 2**30 and otherwise 0 instead.
    """
    words = integers(keys, count * len(rows), 0, 1 << _BITS).view(*keys.shape, count, len(rows))
    span, scale, low, chance = _columns(tuple(rows), keys.device).unbind(1)
    values = ((words * span) >> _BITS) * scale + low
    return torch.where(chance >= 0, words < chance, values).to(torch.int32)


def weak_plan(keys: Tensor, count: int, pad: int = 4, *, flip: bool = True) -> Tensor:
    """Parameters of `count` weak views for each key: int32 [*keys.shape, count, 3] = (flip, dy, dx).

    flip is 0 or 1, or always 0 without flips; dy and dx are uniform in -pad..pad pixels: a random crop after
    reflect-padding by `pad`.
    """
    _check(keys, count, pad)
    return _draw(keys ^ _WEAK_STREAM, count, _weak_rows(pad, flip))


def _weak_rows(pad: int, flip: bool) -> list[tuple[int, int, int, int]]:
    return [(2 if flip else 1, 1, 0, -1), *[(2 * pad + 1, 1, -pad, -1)] * 2]


def strong_plan(
    keys: Tensor,
    count: int,
    size: tuple[int, ...],
    pad: int = 4,
    ops: int = 2,
    prob: float = 0.5,
    *,
    flip: bool = True,
) -> Tensor:
    """Parameters of `count` strong views of images of `size` (H, W), or of vectors, whose size is (): int32
    [*keys.shape, count, 5 + 4*ops].

    A row is (flip, dy, dx), then for each of `ops` operations (id 0..13, level 1..9, sign ±1, applied 0/1
    with probability `prob`), then Cutout's centre (y, x) in pixels.
    """
    _check(keys, count, pad)
    height, width = size or (1, 1)
    if height < 1 or width < 1:
        raise UserError(f"size = {size}: height and width must be 1 or more")
    if ops < 0:
        raise UserError(f"ops = {ops}: the number of operations must be 0 or more")
    if not 0 <= prob <= 1:
        raise UserError(f"prob = {prob}: a probability must be in 0..1")
    one_op = [(len(OPS), 1, 0, -1), (OP_LEVELS, 1, 1, -1), (2, 2, -1, -1), (1, 1, 0, round(prob * (1 << _BITS)))]
    centre = [(height, 1, 0, -1), (width, 1, 0, -1)]
    return _draw(keys ^ _STRONG_STREAM, count, [*_weak_rows(pad, flip), *one_op * ops, *centre])


def weakened(plan: Tensor) -> Tensor:
    """A strong plan whose views are weak: no operation is applied, and Cutout's square lies outside."""
    weak = plan.clone()
    weak[..., WEAK_COLUMNS + OP_COLUMNS - 1 : -CENTRE_COLUMNS : OP_COLUMNS] = 0
    weak[..., -CENTRE_COLUMNS:] = _OUTSIDE
    return weak
