"""Triton kernel behind `views.py`: one program makes one augmented view of an image uint8 [C, H, W].

The view is changed where it is, in global memory, which for a program's few kilobytes means in the caches: each
operation reads what it needs of a channel into a tile of N registers, H × W padded to a power of two, waits until all
threads have read theirs, and writes. All numbers are whole, or products and sums that are rounded one by one as
PyTorch rounds them, so the pixels are the same; that takes a launch with `enable_fp_fusion=False`.
"""

# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

# Kinds of operations, their levels and Cutout's tone: those of `fednoil.augment.tables`, which comes after the kernels.
NOTHING, MOVE, CURVE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LEVELS = tl.constexpr(9)
FILL = tl.constexpr(127)


@triton.jit
def _reflected(place, shift, SIDE: tl.constexpr):
    """The source of places after a shift of any length, reflected at the borders without repeating the edge."""
    period: tl.constexpr = 2 * SIDE - 2 if SIDE > 1 else 1
    # the shift alone may need 64 bits; the remainder of a negative one is negative
    place = (place + (shift % period).to(tl.int32) + period) % period
    return tl.minimum(place, period - place) if SIDE > 1 else place


@triton.jit
def _weak(image, view, row, stride, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    """A flip, then a shift: the pixels are read where they come from."""
    pixel = tl.arange(0, N)
    flip = tl.load(row)
    y = _reflected(pixel // W, tl.load(row + stride).to(tl.int64), H)
    x = _reflected(pixel % W, tl.load(row + 2 * stride).to(tl.int64), W)
    source = y * W + tl.where(flip != 0, W - 1 - x, x)
    for c in range(C):
        tones = tl.load(image + c * (H * W) + source, mask=pixel < H * W)
        tl.store(view + c * (H * W) + pixel, tones, mask=pixel < H * W)


@triton.jit
def _moved(plane, source, inside, SIZE: tl.constexpr, N: tl.constexpr):
    """Rotate, ShearX/Y, TranslateX/Y: nearest source pixel, 0 outside."""
    pixel = tl.arange(0, N)
    place = tl.load(source + pixel, mask=pixel < SIZE, other=0).to(tl.int32)
    kept = tl.load(inside + pixel, mask=pixel < SIZE, other=0) != 0
    return tl.load(plane + place, mask=kept, other=0).to(tl.int32)


@triton.jit
def _autocontrast(tones, stretch, lift, SIZE: tl.constexpr, N: tl.constexpr):
    """Stretch the tones of a channel to 0..255."""
    ok = tl.arange(0, N) < SIZE
    low, high = tl.min(tl.where(ok, tones, 255), 0), tl.max(tl.where(ok, tones, 0), 0)
    slope, shift = tl.load(stretch + (high - low)), low.to(tl.float64) * tl.load(lift + (high - low))
    line = tones.to(tl.float64) * slope + shift
    return tl.minimum(tl.maximum(line, 0.0), 255.0).to(tl.int32)


@triton.jit
def _equalize(tones, SIZE: tl.constexpr, N: tl.constexpr):
    """Flatten the histogram of a channel."""
    tone, ok = tl.arange(0, 256), tl.arange(0, N) < SIZE
    tones = tl.where(ok, tones, 0)
    counts = tl.histogram(tones, 256) - tl.where(tone == 0, N - SIZE, 0)
    darker = tl.cumsum(counts, 0) - counts
    # all pixels but those of the brightest tone share the 255 steps
    step = (SIZE - tl.sum(tl.where(tone == tl.max(tones, 0), counts, 0), 0)) // 255
    curve = tl.where(step > 0, tl.minimum((darker + (step >> 1)) // tl.maximum(step, 1), 255), tone)
    return tl.gather(curve, tones, 0)


@triton.jit
def _curved(tones, curve, adaptive, stretch, lift, SIZE: tl.constexpr, N: tl.constexpr):
    """AutoContrast, Equalize, Posterize, Solarize: each tone by a curve, computed from the channel or known ahead."""
    if tl.load(adaptive) != 0:
        curved = _autocontrast(tones, stretch, lift, SIZE, N)
    elif tl.load(adaptive + 1) != 0:
        curved = _equalize(tones, SIZE, N)
    else:
        curved = tl.load(curve + tones).to(tl.int32)
    return curved


@triton.jit
def _grey(view, C: tl.constexpr, SIZE: tl.constexpr, N: tl.constexpr):
    """ITU-R 601 luma, rounded."""
    pixel = tl.arange(0, N)
    grey = tl.load(view + pixel, mask=pixel < SIZE, other=0).to(tl.int32)
    if C == 3:
        green = tl.load(view + SIZE + pixel, mask=pixel < SIZE, other=0).to(tl.int32)
        blue = tl.load(view + 2 * SIZE + pixel, mask=pixel < SIZE, other=0).to(tl.int32)
        grey = (grey * 19595 + green * 38470 + blue * 7471 + 32768) >> 16
    return grey


@triton.jit
def _smooth(tones, plane, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    """3 × 3 mean with weight 5 in the middle, rounded, borders kept."""
    pixel = tl.arange(0, N)
    y, x = pixel // W, pixel % W
    inner = (y > 0) & (y < H - 1) & (x > 0) & (x < W - 1)
    total = 4 * tones
    for dy in tl.static_range(-1, 2):
        for dx in tl.static_range(-1, 2):
            total += tl.load(plane + pixel + (dy * W + dx), mask=inner, other=0).to(tl.int32)
    return tl.where(inner, (2 * total + 13) // 26, tones)


@triton.jit
def _blended_in(view, blend, C: tl.constexpr, SIZE: tl.constexpr, N: tl.constexpr):
    """What a blend mixes into all channels: nothing for Brightness, grey for Color, mean grey for Contrast."""
    other = tl.zeros((N,), tl.int32)
    if tl.load(blend + 2) != 0:
        other = _grey(view, C, SIZE, N)
    elif tl.load(blend + 1) != 0:
        mean = (2 * tl.sum(_grey(view, C, SIZE, N), 0) + SIZE) // (2 * SIZE)
        other += mean
    return other


@triton.jit
def _blended(tones, plane, other, blend, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    """Brightness, Color, Contrast, Sharpness: another image, for Sharpness a smoothed one, + factor · difference."""
    if tl.load(blend + 3) != 0:
        other = _smooth(tones, plane, H, W, N)
    return ((tones - other).to(tl.float32) * tl.load(blend) + other.to(tl.float32)).to(tl.int32)


@triton.jit
def _operation(
    view, code, kinds, source, inside, curves, adaptive, blends, stretch, lift, first_move,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The operation of a code."""
    size: tl.constexpr = H * W
    pixel = tl.arange(0, N)
    kind = tl.load(kinds + code)
    curve, which, blend, move = curves + code * 256, adaptive + code * 2, blends + code * 4, (code - first_move) * size
    if kind != NOTHING:
        other = _blended_in(view, blend, C, size, N)
        for c in range(C):
            plane = view + c * size
            tones = tl.load(plane + pixel, mask=pixel < size, other=0).to(tl.int32)
            if kind == MOVE:
                tones = _moved(plane, source + move, inside + move, size, N)
            elif kind == CURVE:
                tones = _curved(tones, curve, which, stretch, lift, size, N)
            else:
                tones = _blended(tones, plane, other, blend, H, W, N)
            tl.debug_barrier()  # all have read
            tl.store(plane + pixel, tones.to(tl.uint8), mask=pixel < size)
        tl.debug_barrier()  # all have written


@triton.jit
def _cutout(view, row, stride, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    """A grey square of half the shorter side, clipped at the borders; none for a centre left of the image."""
    hole: tl.constexpr = H // 2 if H < W else W // 2
    pixel = tl.arange(0, N)
    y, x = tl.maximum(tl.load(row).to(tl.int64), 0), tl.load(row + stride).to(tl.int64)
    down, right = pixel // W - y + hole // 2, pixel % W - x + hole // 2
    covered = (down >= 0) & (down < hole) & (right >= 0) & (right < hole) & (x >= 0) & (pixel < H * W)
    for c in range(C):
        tl.store(view + c * (H * W) + pixel, FILL, mask=covered)


# Indices and parameters are rows of a longer plan, of which only the first is sure to be aligned: a kernel for the
# others would be loaded while a graph is captured. So are their strides, which are anything where there is one view.
@triton.jit(
    do_not_specialize=["index_stride", "row_stride", "stride"],
    do_not_specialize_on_alignment=["images", "index", "rows"],
)
def make_view(
    images, index, rows, views, index_stride, row_stride, stride,
    kinds, source, inside, curves, adaptive, blends, stretch, lift, first_move,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, OPS: tl.constexpr, STRONG: tl.constexpr,
):  # fmt: skip
    """View number `program` of grid (views,): weak, or with STRONG also OPS operations and Cutout.

    A row of parameters is one of a plan's. The tables are those of `OpTables`; a weak view never reads them.
    """
    program = tl.program_id(0).to(tl.int64)  # 64 bits: a pool and its views may pass 2³¹ bytes
    row = rows + program * row_stride
    image = images + tl.load(index + program * index_stride).to(tl.int64) * (C * H * W)
    view = views + program * (C * H * W)
    _weak(image, view, row, stride, C, H, W, N)
    if STRONG:
        tl.debug_barrier()
        row += 3 * stride
        for _ in range(OPS):
            op = tl.load(row).to(tl.int32) * tl.load(row + 3 * stride).to(tl.int32)  # operation 0 is Identity
            level, sign = tl.load(row + stride).to(tl.int32), tl.load(row + 2 * stride)
            code = (op * LEVELS + level - 1) * 2 + (sign < 0).to(tl.int32)
            _operation(
                view, code, kinds, source, inside, curves, adaptive, blends, stretch, lift, first_move, C, H, W, N
            )
            row += 4 * stride
        _cutout(view, row, stride, C, H, W, N)
