"""Weak and strong views of vectors, whose columns are in standard deviations: noise, and columns that are blanked.

A plan has the same rows as one for images. Of a vector's the shift (dy, dx) is a number that names its noise: where
both are 0 there is none. A strong view is a weak one of which a quarter of the columns are at their mean, unless
Cutout's centre lies outside.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fednoil.augment.plans import CENTRE_COLUMNS
from fednoil.seeds import bits, uniform

NOISE_DRAWS = 1 << 14
"""The `pad` of vectors' plans: shifts are drawn from so many numbers that no two samples share their noise."""

NOISE = 0.1  # standard deviation of the noise
BLANKED = 0.25  # chance of a column to be at its mean in a strong view
_NOISE_STREAM, _BLANK_STREAM = 0x1B873593, 0x6A09E667


def _keys(params: Tensor, stream: int) -> Tensor:
    """A key for each row [..., P] of a plan."""
    down, right = params[..., 1].to(torch.int64), params[..., 2].to(torch.int64)
    return bits((down * (4 * NOISE_DRAWS) + right) ^ (stream << 32), 1)[..., 0]


def weak(rows: Tensor, index: Tensor, params: Tensor) -> Tensor:
    """Rows `index` [..., B] of the pool float32 [N, D] with noise: float32 [..., B, D]."""
    found = rows[index]
    even = uniform(_keys(params, _NOISE_STREAM), rows.shape[1])
    noise = torch.special.ndtri((even + 2.0**-25).clamp_(max=1 - 2.0**-24))
    shifted = (params[..., 1:3] != 0).any(-1, keepdim=True)
    return found + noise * (NOISE * shifted)


def strong(rows: Tensor, index: Tensor, params: Tensor) -> Tensor:
    """Rows `index` [..., B] of the pool with noise and some columns blanked: float32 [..., B, D]."""
    kept = uniform(_keys(params, _BLANK_STREAM), rows.shape[1]) >= BLANKED
    inside = (params[..., -CENTRE_COLUMNS:] >= 0).all(-1, keepdim=True)
    return weak(rows, index, params) * (kept | ~inside)
