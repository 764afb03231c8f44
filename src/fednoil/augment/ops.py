"""RandAugment's 14 operations on a batch of uint8 images, each sample with its own operation and level.

The operations are three kinds of work: moving pixels (one gather by a table of sources), a tone curve (one
gather by a 256-entry table for each image and channel) and blending with a second image (Pillow's four
enhancers). Each kind runs once for the batch. With static shapes, as on a GPU, it runs on all samples and the
result is selected; otherwise only on the samples that need it, which gives the same pixels (in about half the time
for 56 images of 28 × 28). Pixels equal Pillow's; geometric operations fill with 0, its default.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fednoil.augment.tables import (
    BLEND,
    CURVE,
    FIRST_MOVE,
    MOVE,
    OP_LEVELS,
    OPS,
    OpTables,
    encode,
    op_tables,
)
from fednoil.errors import UserError

Change = Callable[[Tensor, Tensor, OpTables], Tensor]


def _moved(images: Tensor, codes: Tensor, tables: OpTables) -> Tensor:
    """Rotate, ShearX/Y, TranslateX/Y: nearest source pixel, 0 outside."""
    rows = (codes - FIRST_MOVE).clamp_(min=0)
    pixels = images.flatten(2)
    source = tables.source.index_select(0, rows).unsqueeze(1).expand(pixels.shape)
    inside = tables.inside.index_select(0, rows).unsqueeze(1)
    return pixels.gather(2, source).mul_(inside).view(images.shape)


def _autocontrast(low: Tensor, high: Tensor, tables: OpTables) -> Tensor:
    """Curves that stretch the tones low..high (int64 [rows, 1]) to 0..255: uint8 [rows, 256]."""
    span = (high - low).squeeze(1)
    stretch = tables.stretch.index_select(0, span)
    shift = low * tables.lift.index_select(0, span)
    return (tables.tones * stretch).add_(shift).clamp_(0, 255).to(torch.uint8)


def _equalize(pixels: Tensor, high: Tensor, tables: OpTables) -> Tensor:
    """Curves that flatten the histograms of pixels int64 [rows, H*W]: uint8 [rows, 256]."""
    counts = torch.zeros(len(pixels), 256, dtype=torch.int32, device=pixels.device)
    counts.scatter_add_(1, pixels, tables.one.expand(pixels.shape))
    darker = counts.cumsum(1, dtype=torch.int32).sub_(counts)
    # all pixels but those of the brightest tone share the 255 steps
    step = darker.gather(1, high).div_(255, rounding_mode="floor")
    tone = darker.add_(step >> 1).div_(step.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    return torch.where(step > 0, tone, tables.same).to(torch.uint8)


def _curved(images: Tensor, codes: Tensor, tables: OpTables) -> Tensor:
    """AutoContrast, Equalize, Posterize, Solarize: a fixed curve + one of the two computed from the image."""
    count, channels = images.shape[:2]
    tones = images.view(count * channels, -1)
    pixels = tones.to(torch.int64)
    low = tones.amin(1, keepdim=True).to(torch.int64)
    high = tones.amax(1, keepdim=True).to(torch.int64)
    if channels > 1:
        codes = codes.unsqueeze(1).expand(count, channels).reshape(-1)
    stretched, equalized = tables.adaptive.index_select(0, codes).split(1, 1)
    # whole rows times 0 or 1: torch.where takes three times as long on a CPU
    curve = tables.curves.index_select(0, codes).addcmul_(_autocontrast(low, high, tables), stretched)
    curve.addcmul_(_equalize(pixels, high, tables), equalized)
    return curve.gather(1, pixels).view(images.shape)


def _grey(images: Tensor) -> Tensor:
    """ITU-R 601 luma, rounded: whole float32 [B, 1, H, W]. The sums stay under 2**24, so they are exact."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, 1)
    return (red * 19595).add_(green * 38470).add_(blue * 7471).add_(32768).mul_(2.0**-16).floor_()


def _smooth(images: Tensor) -> Tensor:
    """3 × 3 mean with weight 5 in the middle, rounded, borders kept: whole float32 [B, C, H, W]."""
    if min(images.shape[2:]) < 3:
        return images
    three = (images[:, :, :-2] + images[:, :, 2:]).add_(images[:, :, 1:-1])
    total = (three[..., :-2] + three[..., 2:]).add_(three[..., 1:-1])
    smooth = images.clone()
    middle = smooth[:, :, 1:-1, 1:-1]
    # a thirteenth of a whole number is never near a half, so rounding is safe in float32
    middle.copy_(total.add_(middle, alpha=4).mul_(1 / 13).add_(0.5).floor_())
    return smooth


def _blended(images: Tensor, codes: Tensor, tables: OpTables) -> Tensor:
    """Brightness, Color, Contrast, Sharpness: black, grey, mean grey or smoothed + factor · difference."""
    pixels = images.to(torch.float32)
    factor, flat, colour, sharp = tables.blends.index_select(0, codes).unbind(1)
    grey = _grey(pixels)
    size = pixels.shape[2] * pixels.shape[3]
    mean = grey.sum((1, 2, 3), keepdim=True, dtype=torch.float64).div_(size).add_(0.5).floor_()
    other = torch.addcmul(mean.to(torch.float32).mul_(flat), grey, colour)
    other = torch.addcmul(other, _smooth(pixels), sharp)
    # product and sum are separate operations, so they round twice as Pillow's do; then truncation
    return pixels.sub_(other).mul_(factor).add_(other).to(torch.uint8)


_WORK: tuple[tuple[int, Change], ...] = ((MOVE, _moved), (CURVE, _curved), (BLEND, _blended))


def apply_codes(images: Tensor, codes: Tensor, *, static: bool) -> Tensor:
    """Each image uint8 [B, C, H, W] after the operation of its code int64 [B]: uint8 [B, C, H, W].

    With `static` no shape depends on a value and nothing waits for the host.
    """
    tables = op_tables(images.shape[2], images.shape[3], images.device)
    kinds = tables.kinds.index_select(0, codes)
    if static:
        for kind, change in _WORK:
            images = torch.where((kinds == kind).view(-1, 1, 1, 1), change(images, codes, tables), images)
        return images
    order = kinds.argsort()
    sizes = torch.bincount(kinds, minlength=1 + len(_WORK)).tolist()
    ordered = images.index_select(0, order)
    parts, part_codes = ordered.split(sizes), codes.index_select(0, order).split(sizes)
    for kind, change in _WORK:
        if sizes[kind]:
            parts[kind].copy_(change(parts[kind], part_codes[kind], tables))
    return ordered.index_select(0, order.argsort())


def apply_op(images: Tensor, op_id: int, levels: Tensor, signs: Tensor, *, static: bool | None = None) -> Tensor:
    """Operation `OPS[op_id]` on images uint8 [B, C, H, W], levels 1..9 [B], signs ±1 [B]: uint8 [B, C, H, W].

    It reads the values to check them, so it is for tests and pictures, not for a CUDA graph.
    """
    if not 0 <= op_id < len(OPS):
        raise UserError(f"op_id = {op_id} must be in 0..{len(OPS) - 1}")
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise UserError(f"images must be uint8 [B, C, H, W] with C 1 or 3, not {images.dtype} {tuple(images.shape)}")
    for name, values in (("levels", levels), ("signs", signs)):
        if values.shape != images.shape[:1]:
            raise UserError(f"{name} must be of shape [{len(images)}], not {tuple(values.shape)}")
    if not bool(((levels >= 1) & (levels <= OP_LEVELS)).all()):
        raise UserError(f"levels = {levels.tolist()}: each must be in 1..{OP_LEVELS}")
    if not bool((signs.abs() == 1).all()):
        raise UserError(f"signs = {signs.tolist()}: each must be 1 or -1")
    codes = encode(torch.full_like(levels, op_id), levels, signs).to(torch.int64)
    if static is None:
        static = images.device.type != "cpu"
    return apply_codes(images.contiguous(), codes, static=static)
