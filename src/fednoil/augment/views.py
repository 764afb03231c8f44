"""The views a learner trains on: plain, weak and strong, gathered from the pool of images in memory.

Weak is a horizontal flip, then a shift with reflection. Strong is the weak view, then RandAugment's operations, then
Cutout (FixMatch, Sohn et al., NeurIPS 2020). A pool of vectors float32 [N, D] has views of its own
(`fednoil.augment.vectors`). All parameters come from a plan, whose values aren't checked: reading them
would make the host wait for the GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fednoil import kernels
from fednoil.augment import vectors
from fednoil.augment.ops import apply_codes
from fednoil.augment.plans import CENTRE_COLUMNS, OP_COLUMNS, WEAK_COLUMNS
from fednoil.augment.tables import encode, op_tables, view_tables
from fednoil.errors import UserError


def _check(images: Tensor, index: Tensor) -> None:
    rows = images.dim() == 2 and images.is_floating_point()
    if not rows and (images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3)):
        raise UserError(f"images must be uint8 [N, C, H, W] with C 1 or 3, not {images.dtype} {tuple(images.shape)}")
    if not images.is_contiguous():
        raise UserError("images must not be a strided view; call contiguous() on the pool once")
    if index.dim() == 0 or index.dtype not in (torch.int64, torch.int32):
        raise UserError(f"index must be int64 or int32 [..., B], not {index.dtype} {tuple(index.shape)}")
    if index.device != images.device:
        raise UserError(f"index is on {index.device}; it must be on the images' device, {images.device}")


def _check_params(params: Tensor, index: Tensor, columns: str, fits: bool) -> None:
    if params.shape[:-1] != index.shape or not fits or params.is_floating_point():
        shape = ", ".join([*map(str, index.shape), columns])
        raise UserError(
            f"params must be whole numbers of shape [{shape}], from the plan, not {params.dtype} {tuple(params.shape)}"
        )
    if params.device != index.device:
        raise UserError(f"params are on {params.device}; they must be on the images' device, {index.device}")


def plain(images: Tensor, index: Tensor) -> Tensor:
    """Images `index` [..., B] of the pool uint8 [N, C, H, W] as they are: uint8 [..., B, C, H, W]."""
    _check(images, index)
    return images.index_select(0, index.reshape(-1)).view(*index.shape, *images.shape[1:])


def _weak(images: Tensor, index: Tensor, params: tuple[Tensor, ...]) -> Tensor:
    """Rows first (whole rows are copied), then one gather along the columns."""
    flip, down, right = params
    count, (channels, height, width) = len(index), images.shape[1:]
    tables = view_tables(channels, height, width, images.device)
    period = len(tables.columns) // 2
    rows = tables.rows.index_select(0, down % len(tables.rows))
    rows += (index.to(torch.int64) * (channels * height)).unsqueeze(1)
    picked = images.view(-1, width).index_select(0, rows.view(-1)).view(count, channels, height, width)
    columns = tables.columns.index_select(0, flip * period + right % period)
    return picked.gather(3, columns.view(count, 1, 1, width).expand(picked.shape))


def weak(images: Tensor, index: Tensor, params: Tensor) -> Tensor:
    """Weak views of the images `index` [..., B] of the pool uint8 [N, C, H, W]: uint8 [..., B, C, H, W].

    `params` [..., B, 3] is a row of `weak_plan`: flip first, then pixel (y, x) shows (y + dy, x + dx), reflected
    at the borders without repeating the edge, several times if needed.
    """
    _check(images, index)
    _check_params(params, index, "3", params.shape[-1:] == (WEAK_COLUMNS,))
    if images.dim() == 2:
        return vectors.weak(images, index, params)
    if kernels.usable(images, "views"):
        from fednoil.kernels import views

        if views.serves(images):
            return views.weak(images, index, params)
    view = _weak(images, index.reshape(-1), params.reshape(-1, WEAK_COLUMNS).to(torch.int64).unbind(1))
    return view.view(*index.shape, *images.shape[1:])


def _cutout(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Grey square of half the shorter side around (y, x) [B], clipped at the borders."""
    count, _, height, width = images.shape
    tables = view_tables(*images.shape[1:], images.device)
    rows = (tables.covered.index_select(0, y.clamp(min=0)) * (x + 1).clamp(min=0).unsqueeze(1)).view(-1)
    # clamping to 127..127 in the square and to 0..255 elsewhere is far faster on a CPU than a boolean mask
    darkest = tables.darkest.index_select(0, rows).view(count, 1, height, width)
    brightest = tables.brightest.index_select(0, rows).view(count, 1, height, width)
    return images.clamp_(darkest, brightest)


def strong(images: Tensor, index: Tensor, params: Tensor) -> Tensor:
    """Strong views of the images `index` [..., B] of the pool uint8 [N, C, H, W]: uint8 [..., B, C, H, W].

    `params` [..., B, 5 + 4*ops] is a row of `strong_plan`: the weak view, each operation in turn, Cutout.
    """
    _check(images, index)
    ops, rest = divmod(params.shape[-1] - WEAK_COLUMNS - CENTRE_COLUMNS if params.dim() else -1, OP_COLUMNS)
    _check_params(params, index, "5 + 4*ops", ops >= 0 and rest == 0)
    if images.dim() == 2:
        return vectors.strong(images, index, params)
    if kernels.usable(images, "views"):
        from fednoil.kernels import views

        if views.serves(images):
            return views.strong(images, index, params, op_tables(*images.shape[2:], images.device))
    params = params.reshape(-1, params.shape[-1]).to(torch.int64)
    columns = params.unbind(1)
    view = _weak(images, index.reshape(-1), columns[:WEAK_COLUMNS])
    rounds = params[:, WEAK_COLUMNS:-CENTRE_COLUMNS].unflatten(1, (ops, OP_COLUMNS))
    op, level, sign, applied = rounds.unbind(2)
    static = images.device.type != "cpu"
    for codes in encode(op * applied, level, sign).unbind(1):  # operation 0 is Identity
        view = apply_codes(view, codes, static=static)
    return _cutout(view, *columns[-CENTRE_COLUMNS:]).view(*index.shape, *images.shape[1:])
