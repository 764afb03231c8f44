"""Triton kernels of the stacked convolution's gradients: of images, weights and bias, and back through the pooling.

Their GEMMs gather tiles as the forward ones do (`fednoil.kernels.conv_kernels`).
"""

import triton
import triton.language as tl

from fednoil.kernels.conv_kernels import load_pixels, tap_of


@triton.jit(do_not_specialize=["rows", "images"])
def input_gradient_kernel(
    dy, w, more, dx, w_stride, rows, images,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, PIXELS: tl.constexpr,
    MORE: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx [images, H, W, C] gathered from dy, with MORE added to it; grid (row tiles * channel tiles, clients, STRIDE²).

    A pixel receives only from the taps of its own parity (mod STRIDE), so each class of pixels is a separate GEMM over
    those taps and nothing is multiplied by zero; rows counts the pixels of the largest class.

    With few channels the gathered tile is used too little: a row of the GEMM is then PIXELS neighbours of an image row
    (STRIDE is 1) and its columns are (pixel, channel). They share one gather over KW + PIXELS - 1 taps, where the
    weights of a tap that one of them lacks are zero.
    """
    HS: tl.constexpr = (H + STRIDE - 1) // STRIDE
    WS: tl.constexpr = (W + STRIDE - 1) // STRIDE // PIXELS
    TILES: tl.constexpr = (PIXELS * C + BN - 1) // BN
    client = tl.program_id(1).to(tl.int64)
    dy += client * images * (HO * WO * OUT)
    w += client * w_stride
    more += client * images * (H * W * C)
    dx += client * images * (H * W * C)
    if STRIDE == 1:  # the same formulas, but constants for the compiler
        class_h, class_v = 0, 0
        first_h, first_v = 0, 0
        taps_h, taps_v = KH, KW + PIXELS - 1
    else:
        class_h = tl.program_id(2) // STRIDE
        class_v = tl.program_id(2) % STRIDE
        first_h = (class_h + PAD) % STRIDE
        first_v = (class_v + PAD) % STRIDE
        taps_h = (KH - first_h + STRIDE - 1) // STRIDE
        taps_v = (KW - first_v + STRIDE - 1) // STRIDE
    m = (tl.program_id(0) // TILES) * BM + tl.arange(0, BM)[:, None]
    n = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)[:, None]
    image = m // (HS * WS)
    h = (m % (HS * WS)) // WS
    v = (m % (HS * WS)) % WS * PIXELS
    top = h + (class_h + PAD - first_h) // STRIDE  # the output row of the class's first tap
    left = v + (class_v + PAD - first_v) // STRIDE + PIXELS - 1
    acc = tl.zeros((BM, BN), tl.float32)
    for block in range(tl.cdiv(taps_h * taps_v * OUT, BK)):
        i, j, o = tap_of(block, taps_v, OUT, BK)
        ok = m < rows
        in_weight = n < PIXELS * C
        if OUT % BK != 0:
            ok = ok & (i < taps_h)
            in_weight = in_weight & (i < taps_h)
        oh = top - i
        ov = left - j
        gradient = load_pixels(dy, ((image * HO + oh) * WO + ov) * OUT + o, oh, ov, ok, HO, WO)
        if PIXELS == 1:
            tap = (first_h + i * STRIDE) * KW + first_v + j * STRIDE
            at = (tap * C + n) * OUT + o
        else:
            own = j - (PIXELS - 1) + n // C  # the pixel's own tap
            in_weight = in_weight & (own >= 0) & (own < KW)
            at = ((i * KW + own) * C + n % C) * OUT + o
        weight = tl.load(w + at, mask=in_weight, other=0.0)  # [BN, BK]
        acc = tl.dot(gradient, tl.trans(weight), acc, input_precision=PRECISION)
    row = h * STRIDE + class_h
    column = v * STRIDE + class_v
    n = tl.trans(n)
    inside = (m < rows) & (row < H) & (column < W) & (n < PIXELS * C)
    at = ((image * H + row) * W + column) * C + n
    if MORE:
        acc += tl.load(more + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx + at, acc.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "share"])
def weight_gradient_kernel(
    x, dy, part, x_stride, rows, share,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """part [splits, clients, taps * C, OUT] = patches of x, transposed, @ dy over the split's share of the rows.

    Grid (tiles, clients, splits); the tile of the result is [BM, BN] and BK pixels are summed at a time. share is a
    multiple of BK. The patch tile is loaded as [pixels, taps] and transposed: with one channel, neighbouring pixels of
    a tap are neighbours in memory; with many, the channels are. The compiler uses whichever it sees.

    Where BK pixels are whole rows of an image, or whole images, a pixel's place in its block is the same at every step
    and computed once; a step then adds the start of its block instead of doing three divisions per pixel.
    """
    DEPTH: tl.constexpr = KH * KW * C
    AREA: tl.constexpr = HO * WO
    WHOLE: tl.constexpr = BK % AREA == 0 or (AREA % BK == 0 and BK % WO == 0)
    TILES: tl.constexpr = (OUT + BN - 1) // BN
    client = tl.program_id(1).to(tl.int64)
    x += client * x_stride
    dy += client * rows * OUT
    part += (tl.program_id(2) * tl.num_programs(1).to(tl.int64) + client) * (DEPTH * OUT)
    # Few channels: a thread's taps are then known to the compiler, which keeps no registers for them.
    block = 0 if DEPTH <= BM else tl.program_id(0) // TILES
    n = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)[None, :]
    dh, dv, c = tap_of(block, KW, C, BM)
    tap = (dh * W + dv) * C + c
    acc = tl.zeros((BM, BN), tl.float32)
    pixel = tl.arange(0, BK)[:, None]
    own_h = (pixel % AREA) // WO * STRIDE - PAD
    own_v = (pixel % AREA) % WO * STRIDE - PAD
    own = ((pixel // AREA * H + own_h) * W + own_v) * C
    begin = tl.program_id(2) * share
    for m0 in range(begin, tl.minimum(begin + share, rows), BK):
        m = m0 + pixel
        ok = m < rows
        gradient = tl.load(dy + m * OUT + n, mask=ok & (n < OUT), other=0.0)
        if C % BM != 0:
            ok = ok & (dh < KH)
        if WHOLE:
            row = m0 % AREA // WO * STRIDE
            h = own_h + row
            v = own_v
            base = own + (m0 // AREA * H + row) * (W * C)
        else:
            h = (m % AREA) // WO * STRIDE - PAD
            v = (m % AREA) % WO * STRIDE - PAD
            base = ((m // AREA * H + h) * W + v) * C
        patch = load_pixels(x, base + tap, h + dh, v + dv, ok, H, W)
        acc = tl.dot(tl.trans(patch), gradient, acc, input_precision=PRECISION)
    k = block * BM + tl.arange(0, BM)[:, None]
    tl.store(part + k * OUT + n, acc.to(part.dtype.element_ty), mask=(k < DEPTH) & (n < OUT))


@triton.jit(do_not_specialize=["rows", "share"])
def pooled_weight_gradient_kernel(
    x, dy, winner, part, bias_part, x_stride, rows, share,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The same from dy [rows, OUT] of the pooling windows, of which BK are summed at a time: each gives its gradient to
    the patch of one of its four pixels. bias_part [splits, clients, OUT] are the sums of what was given: the result of
    one more row of patches, all ones.
    """
    DEPTH: tl.constexpr = KH * KW * C
    HP: tl.constexpr = HO // 2
    WP: tl.constexpr = WO // 2
    TILES: tl.constexpr = (OUT + BN - 1) // BN
    client = tl.program_id(1).to(tl.int64)
    x += client * x_stride
    dy += client * rows * OUT
    winner += client * rows * OUT
    result = tl.program_id(2) * tl.num_programs(1).to(tl.int64) + client
    block = 0 if DEPTH < BM else tl.program_id(0) // TILES
    n = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)[None, :]
    dh, dv, c = tap_of(block, KW, C, BM)
    ones = block * BM + tl.arange(0, BM)[None, :] == DEPTH
    acc = tl.zeros((BM, BN), tl.float32)
    begin = tl.program_id(2) * share
    for m0 in range(begin, tl.minimum(begin + share, rows), BK):
        m = m0 + tl.arange(0, BK)[:, None]
        ok = m < rows
        gradient = tl.load(dy + m * OUT + n, mask=ok & (n < OUT), other=0.0)
        won = tl.load(winner + m * OUT + n, mask=ok & (n < OUT), other=4)
        ok = ok & (dh < KH)
        for position in tl.range(4, num_stages=1):
            h = m % (HP * WP) // WP * 2 + position // 2 - PAD + dh
            v = m % WP * 2 + position % 2 - PAD + dv
            patch = load_pixels(x, ((m // (HP * WP) * H + h) * W + v) * C + c, h, v, ok, H, W)
            patch = tl.where(ones, 1.0, patch).to(gradient.dtype)
            own = tl.where(won == position, gradient, 0.0).to(gradient.dtype)
            acc = tl.dot(tl.trans(patch), own, acc, input_precision=PRECISION)
    k = block * BM + tl.arange(0, BM)[:, None]
    part += result * (DEPTH * OUT)
    tl.store(part + k * OUT + n, acc.to(part.dtype.element_ty), mask=(k < DEPTH) & (n < OUT))
    tl.store(bias_part + result * OUT + n + 0 * k, acc, mask=(k == DEPTH) & (n < OUT))


@triton.jit(do_not_specialize=["rows"])
def unpool_kernel(
    dy, winner, pixels, part, rows, images,
    HO: tl.constexpr, WO: tl.constexpr, OUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """pixels [images, HO, WO, OUT]: the gradient dy of each pooling window at its winner, zero everywhere else.

    Grid (row tiles * output tiles, clients); rows counts all windows, including those cut off by an odd height or width
    (they are zero). part [row tiles, clients, OUT] are the sums of the bias's gradient.
    """
    HP: tl.constexpr = HO // 2
    WP: tl.constexpr = WO // 2
    HW: tl.constexpr = (HO + 1) // 2
    WW: tl.constexpr = (WO + 1) // 2
    TILES: tl.constexpr = (OUT + BN - 1) // BN
    client = tl.program_id(1).to(tl.int64)
    dy += client * images * (HP * WP * OUT)
    winner += client * images * (HP * WP * OUT)
    pixels += client * images * (HO * WO * OUT)
    tile = tl.program_id(0) // TILES
    m = tile * BM + tl.arange(0, BM)[:, None]
    n = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)[None, :]
    image = m // (HW * WW)
    h = (m % (HW * WW)) // WW
    v = (m % (HW * WW)) % WW
    inside = (m < rows) & (n < OUT)
    whole = inside & (h < HP) & (v < WP)
    at = ((image * HP + h) * WP + v) * OUT + n
    gradient = tl.load(dy + at, mask=whole, other=0.0)
    won = tl.load(winner + at, mask=whole, other=4)
    to = pixels + ((image * HO + 2 * h) * WO + 2 * v) * OUT + n
    right = inside & (2 * v + 1 < WO)
    low = 2 * h + 1 < HO
    tl.store(to, tl.where(won == 0, gradient, 0.0), mask=inside)
    tl.store(to + OUT, tl.where(won == 1, gradient, 0.0), mask=right)
    tl.store(to + WO * OUT, tl.where(won == 2, gradient, 0.0), mask=inside & low)
    tl.store(to + (WO + 1) * OUT, tl.where(won == 3, gradient, 0.0), mask=right & low)
    part += (tile * tl.num_programs(1).to(tl.int64) + client) * OUT
    total = tl.sum(tl.where(won < 4, gradient, 0.0).to(tl.float32), 0)
    column = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)
    tl.store(part + column, total, mask=column < OUT)


@triton.jit(do_not_specialize=["rows", "share"])
def bias_gradient_kernel(dy, part, rows, share, OUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """part [splits, clients, OUT] = sums of dy over the split's share of the rows; grid (tiles, clients, splits)."""
    client = tl.program_id(1).to(tl.int64)
    dy += client * rows * OUT
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    begin = tl.program_id(2) * share
    for m0 in range(begin, tl.minimum(begin + share, rows), BM):
        m = m0 + tl.arange(0, BM)[:, None]
        acc += tl.load(dy + m * OUT + n[None, :], mask=(m < rows) & (n < OUT)[None, :], other=0.0).to(tl.float32)
    part += (tl.program_id(2) * tl.num_programs(1).to(tl.int64) + client) * OUT
    tl.store(part + n, tl.sum(acc, 0), mask=n < OUT)
