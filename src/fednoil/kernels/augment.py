"""Weak and strong views of a whole batch in one launch; the same pixels as `fednoil.augment.views` on a CPU.

One program makes one view and runs only the operations that its row of the plan asks for. The image stays in
registers from the first load to the last store: a pixel is one int32 with ten bits for each channel, so that moving
pixels takes one gather for any number of channels, and sums of three pixels fit without unpacking.

Gain end to end, a turn of FedNoiL with six clients on an H200 (`python benchmarks/kernels.py --kernel augment`): 1.17 ×
for the CNN, 0.91 × for the ResNet18, within some 10 % between repeats; to be measured again.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_PIXELS = 64 * 64  # more would not stay in the registers of one program
MIN_BLOCK, MAX_WARPS = 256, 8  # never more threads than pixels or tones, so that no thread repeats another's work
PIXELS_PER_WARP = 256  # eight a thread, which takes 128 registers: four programs of 28 × 28 a multiprocessor at a time

_SLICED = ("images", "index", "plan")

_BITS = tl.constexpr(10)
_FIELD = tl.constexpr((1 << 10) - 1)
_EVERY = tl.constexpr(1 | 1 << 10 | 1 << 20)  # times a tone: that tone in every channel

# The same numbers as in `fednoil.augment`, which imports this module, so they can't be imported from there.
_MOVE, _CURVE, _BLEND = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
_SIGNED_LEVELS = tl.constexpr(18)  # codes of an operation
_FILL = tl.constexpr(127)
_WEAK_COLUMNS, _OP_COLUMNS, _CENTRE_COLUMNS = tl.constexpr(3), tl.constexpr(4), tl.constexpr(2)


class Tables(Protocol):
    """The part of `fednoil.augment.tables.OpTables` that the kernels use."""

    @property
    def kinds(self) -> Tensor: ...
    @property
    def source(self) -> Tensor: ...
    @property
    def inside(self) -> Tensor: ...
    @property
    def curves(self) -> Tensor: ...
    @property
    def adaptive(self) -> Tensor: ...
    @property
    def blends(self) -> Tensor: ...
    @property
    def stretch(self) -> Tensor: ...
    @property
    def lift(self) -> Tensor: ...


@triton.jit
def _tone(pixels, channel):
    return (pixels >> (channel * _BITS)) & _FIELD


@triton.jit
def _reflected(place, shift, SIDE: tl.constexpr):
    """Place + shift, reflected at the borders without repeating the edge."""
    PERIOD: tl.constexpr = 2 * SIDE - 2 if SIDE > 1 else 1
    place = (place + (shift % PERIOD + PERIOD)) % PERIOD  # % keeps the sign of the shift
    return tl.minimum(place, PERIOD - place)


@triton.jit
def _viewed(images, index, plan, view, at, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """The weak view: packed pixels [BLOCK]; `plan` points to its row of the plan."""
    images += tl.load(index + view).to(tl.int64) * (C * H * W)
    flip = tl.load(plan).to(tl.int32)
    y = _reflected(at // W, tl.load(plan + 1).to(tl.int32), H)
    x = _reflected(at % W, tl.load(plan + 2).to(tl.int32), W)
    x = tl.where(flip != 0, W - 1 - x, x)
    pixels = tl.zeros_like(at)
    for channel in tl.static_range(C):
        tone = tl.load(images + (channel * H * W + y * W + x), mask=at < H * W, other=0)
        pixels |= tone.to(tl.int32) << (channel * _BITS)
    return pixels


@triton.jit
def _save(out, pixels, view, at, C: tl.constexpr, SIZE: tl.constexpr):
    out += view * (C * SIZE)
    for channel in tl.static_range(C):
        tl.store(out + (channel * SIZE + at), _tone(pixels, channel).to(tl.uint8), mask=at < SIZE)


@triton.jit
def _moved(pixels, row, source, inside, at, SIZE: tl.constexpr):
    """Rotate, ShearX/Y, TranslateX/Y: nearest source pixel, 0 outside."""
    places = tl.load(source + (row * SIZE + at), mask=at < SIZE, other=0).to(tl.int32)
    kept = tl.load(inside + (row * SIZE + at), mask=at < SIZE, other=0)
    return tl.where(kept != 0, tl.gather(pixels, places, 0), 0)


@triton.jit
def _equalized(tone, high, valid):
    """One channel after Equalize: the curve that flattens the histogram of its tones."""
    counts = tl.histogram(tone, 256, mask=valid)
    darker = tl.cumsum(counts, 0) - counts
    # all pixels but those of the brightest tone share the 255 steps
    step = tl.sum((valid & (tone < high)).to(tl.int32)) // 255
    curve = tl.minimum((darker + (step >> 1)) // tl.maximum(step, 1), 255)
    return tl.where(step > 0, tl.gather(curve, tone, 0), tone)


@triton.jit
def _curved(pixels, code, curves, adaptive, stretch, lift, at, C: tl.constexpr, SIZE: tl.constexpr):
    """AutoContrast, Equalize, Posterize, Solarize: a tone curve for each channel."""
    valid = at < SIZE
    stretched, equalized = tl.load(adaptive + 2 * code), tl.load(adaptive + 2 * code + 1)
    result = tl.zeros_like(pixels)
    for channel in range(C):  # not unrolled: a histogram is a lot of code
        tone = _tone(pixels, channel)
        if stretched != 0:
            low = tl.min(tl.where(valid, tone, 255))
            span = tl.max(tl.where(valid, tone, 0)) - low
            shift = low.to(tl.float64) * tl.load(lift + span)
            line = tone.to(tl.float64) * tl.load(stretch + span) + shift
            tone = tl.minimum(tl.maximum(line.to(tl.int32), 0), 255)  # cut to a whole number, like the clamped line
        elif equalized != 0:
            tone = _equalized(tone, tl.max(tl.where(valid, tone, 0)), valid)
        else:
            tone = tl.load(curves + (code * 256 + tone)).to(tl.int32)
        result |= tone << (channel * _BITS)
    return result


@triton.jit
def _grey(pixels, C: tl.constexpr):
    """ITU-R 601 luma, rounded."""
    if C == 1:
        grey = _tone(pixels, 0)
    else:
        grey = (_tone(pixels, 0) * 19595 + _tone(pixels, 1) * 38470 + _tone(pixels, 2) * 7471 + 32768) >> 16
    return grey


@triton.jit
def _smooth(pixels, at, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    """3 × 3 mean with weight 5 in the middle, rounded; border pixels keep their values."""
    last = BLOCK - 1
    three = pixels + tl.gather(pixels, tl.maximum(at - W, 0), 0) + tl.gather(pixels, tl.minimum(at + W, last), 0)
    before, after = tl.gather(three, tl.maximum(at - 1, 0), 0), tl.gather(three, tl.minimum(at + 1, last), 0)
    mean = tl.zeros_like(pixels)
    for channel in tl.static_range(C):
        total = _tone(three, channel) + _tone(before, channel) + _tone(after, channel) + 4 * _tone(pixels, channel)
        mean |= ((2 * total + 13) // 26) << (channel * _BITS)
    y, x = at // W, at % W
    return tl.where((y > 0) & (y < H - 1) & (x > 0) & (x < W - 1), mean, pixels)


@triton.jit
def _blended(pixels, blend, at, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    """Brightness, Color, Contrast, Sharpness: black, grey, mean grey or smoothed + factor · difference."""
    factor, flat = tl.load(blend), tl.load(blend + 1)
    colour, sharp = tl.load(blend + 2), tl.load(blend + 3)
    other = tl.zeros_like(pixels)
    if colour != 0:
        other = _grey(pixels, C) * _EVERY
    elif flat != 0:
        total = tl.sum(tl.where(at < H * W, _grey(pixels, C), 0))
        other += (2 * total + H * W) // (2 * H * W) * _EVERY  # whole numbers: halves always round up
    elif sharp != 0:
        other = _smooth(pixels, at, C, H, W, BLOCK)
    result = tl.zeros_like(pixels)
    for channel in tl.static_range(C):
        base = _tone(other, channel).to(tl.float32)
        # product and sum round separately, as in Pillow (the launch forbids fusing them); then truncation
        tone = (_tone(pixels, channel).to(tl.float32) - base) * factor + base
        result |= tone.to(tl.int32) << (channel * _BITS)
    return result


@triton.jit
def _cut(pixels, centre_y, centre_x, at, H: tl.constexpr, W: tl.constexpr):
    """Cutout: a grey square of half the shorter side, clipped at the borders."""
    HOLE: tl.constexpr = (H if H < W else W) // 2
    y, x = at // W - centre_y + HOLE // 2, at % W - centre_x + HOLE // 2
    return tl.where((y >= 0) & (y < HOLE) & (x >= 0) & (x < HOLE), _FILL * _EVERY, pixels)


# Slices of a plan have any alignment; compiling for each one could happen during the capture of a CUDA graph.
@triton.jit(do_not_specialize_on_alignment=_SLICED)
def _weak_kernel(images, index, plan, out, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    view = tl.program_id(0).to(tl.int64)  # 64 bits: a batch may have more than 2³¹ pixels
    at = tl.arange(0, BLOCK)
    _save(out, _viewed(images, index, plan + view * _WEAK_COLUMNS, view, at, C, H, W), view, at, C, H * W)


@triton.jit(do_not_specialize_on_alignment=_SLICED)
def _strong_kernel(
    images, index, plan, out, kinds, source, inside, curves, adaptive, blends, stretch, lift,
    FIRST_MOVE: tl.constexpr, ROUNDS: tl.constexpr,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    view = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    plan += view * (_WEAK_COLUMNS + _OP_COLUMNS * ROUNDS + _CENTRE_COLUMNS)
    pixels = _viewed(images, index, plan, view, at, C, H, W)
    plan += _WEAK_COLUMNS
    for _ in range(ROUNDS):
        op = (tl.load(plan) * tl.load(plan + 3)).to(tl.int32)  # operation 0, Identity, where it is not applied
        level, sign = tl.load(plan + 1).to(tl.int32), tl.load(plan + 2).to(tl.int32)
        code = op * _SIGNED_LEVELS + (level - 1) * 2 + (sign < 0).to(tl.int32)  # as `tables.encode`
        kind = tl.load(kinds + code)
        if kind == _MOVE:
            pixels = _moved(pixels, code - FIRST_MOVE, source, inside, at, H * W)
        elif kind == _CURVE:
            pixels = _curved(pixels, code, curves, adaptive, stretch, lift, at, C, H * W)
        elif kind == _BLEND:
            pixels = _blended(pixels, blends + code * 4, at, C, H, W, BLOCK)
        plan += _OP_COLUMNS
    pixels = _cut(pixels, tl.load(plan).to(tl.int32), tl.load(plan + 1).to(tl.int32), at, H, W)
    _save(out, pixels, view, at, C, H * W)


def fits(images: Tensor) -> bool:
    """Whether images of this shape [..., C, H, W] are small enough for the kernels."""
    return images.shape[-3] in (1, 3) and 0 < images.shape[-2] * images.shape[-1] <= MAX_PIXELS


def _start(images: Tensor, index: Tensor) -> tuple[Tensor, dict[str, int | bool]]:
    """The batch to fill, and the constants of a launch."""
    if not fits(images) or not images.is_contiguous():
        raise ValueError(f"images must be contiguous and have at most {MAX_PIXELS} pixels, not {tuple(images.shape)}")
    channels, height, width = images.shape[1:]
    block = max(MIN_BLOCK, triton.next_power_of_2(height * width))
    out = torch.empty(*index.shape, channels, height, width, dtype=torch.uint8, device=images.device)
    return out, {
        **{"C": channels, "H": height, "W": width, "BLOCK": block},
        **{"num_warps": min(MAX_WARPS, block // PIXELS_PER_WARP), "enable_fp_fusion": False},
    }


def weak(images: Tensor, index: Tensor, plan: Tensor) -> Tensor:
    """Weak views of images `index` int [..., B] of the pool uint8 [P, C, H, W]: uint8 [..., B, C, H, W].

    `plan` int [..., B, 3] is a row of `weak_plan`. Neither is checked for range.
    """
    out, constants = _start(images, index)
    if index.numel():
        _weak_kernel[(index.numel(),)](images, index.contiguous(), plan.contiguous(), out, **constants)
    return out


def strong(images: Tensor, index: Tensor, plan: Tensor, tables: Tables) -> Tensor:
    """Strong views of images `index` int [..., B] of the pool uint8 [P, C, H, W]: uint8 [..., B, C, H, W].

    `plan` int [..., B, 5 + 4*ops] is a row of `strong_plan`; `tables` are the `op_tables` of the images' size and
    device. None of them is checked for range.
    """
    out, constants = _start(images, index)
    rounds = (plan.shape[-1] - _WEAK_COLUMNS.value - _CENTRE_COLUMNS.value) // _OP_COLUMNS.value
    first_move = len(tables.kinds) - len(tables.source)  # the codes before it have no row in `source`
    if index.numel():
        _strong_kernel[(index.numel(),)](
            images, index.contiguous(), plan.contiguous(), out, tables.kinds, tables.source, tables.inside,
            tables.curves, tables.adaptive, tables.blends, tables.stretch, tables.lift,
            FIRST_MOVE=first_move, ROUNDS=rounds, **constants,
        )  # fmt: skip
    return out
