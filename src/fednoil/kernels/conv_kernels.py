"""Triton kernels of the stacked convolution, forward: every client convolves its own images with its own weights.

They and those of its gradients (`fednoil.kernels.conv_gradients`) are implicit GEMMs over NHWC images: the matrix of
image patches is never written, its tiles are gathered on the fly. Weights are [clients, taps * channels, outputs], so
that the reduction axis of the forward GEMM is the flattened (tap, channel) index. Where the number of channels is a
multiple of a block of that axis, a block lies within one tap and the tap is a scalar (the fast case); elsewhere each
column of the block finds its own tap, which serves the first layer (25 or 27 columns in all) and odd channel counts
without padding every tap.
"""

import triton
import triton.language as tl


@triton.jit
def tap_of(block, taps_wide, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Tap row, tap column and channel [1, BLOCK] of a block of the flattened (tap, channel) axis."""
    if CHANNELS % BLOCK == 0:  # a block within one tap: scalars, multiplied so that the compiler sees the alignment
        tap = block // (CHANNELS // BLOCK)
        channel = block % (CHANNELS // BLOCK) * BLOCK + tl.arange(0, BLOCK)[None, :]
    else:
        k = block * BLOCK + tl.arange(0, BLOCK)[None, :]
        tap = k // CHANNELS
        channel = k % CHANNELS
    return tap // taps_wide, tap % taps_wide, channel


@triton.jit
def load_pixels(image, offset, row, column, ok, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """The values at offset, zero outside the image (its padding)."""
    ok = ok & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    return tl.load(image + offset, mask=ok, other=0.0)


@triton.jit
def _pool_step(best, winner, value, POSITION: tl.constexpr):
    """Running maximum over a pooling window: the first maximum wins, NaN propagates."""
    better = (value > best) | (value != value)
    return tl.where(better, value, best), tl.where(better, POSITION, winner)


@triton.jit
def _sums(total, squares, other_total, other_squares):
    return total + other_total, squares + other_squares


@triton.jit(do_not_specialize=["rows"])
def forward_kernel(
    x, w, bias, y, parts, x_stride, w_stride, bias_stride, rows,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BIAS: tl.constexpr,
    STATISTICS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [rows = images * HO * WO, OUT] = patches of x @ w + bias; grid (row tiles * output tiles, clients).

    With STATISTICS, parts [clients, 2, row tiles, OUT] are mean and squared deviations of each tile's rows.
    """
    DEPTH: tl.constexpr = KH * KW * C
    TILES: tl.constexpr = (OUT + BN - 1) // BN  # neighbours share the image tile through the L2 cache
    client = tl.program_id(1).to(tl.int64)
    x += client * x_stride
    w += client * w_stride
    y += client * rows * OUT
    m = (tl.program_id(0) // TILES) * BM + tl.arange(0, BM)[:, None]
    n = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)[None, :]
    k = tl.arange(0, BK)[:, None]
    pixel = m % (HO * WO)
    h = (pixel // WO) * STRIDE - PAD
    v = (pixel % WO) * STRIDE - PAD
    base = ((m // (HO * WO) * H + h) * W + v) * C
    acc = tl.zeros((BM, BN), tl.float32)
    for block in range((DEPTH + BK - 1) // BK):
        dh, dv, c = tap_of(block, KW, C, BK)
        ok = m < rows
        if C % BK != 0:
            ok = ok & (dh < KH)
        patch = load_pixels(x, base + (dh * W + dv) * C + c, h + dh, v + dv, ok, H, W)
        weight = tl.load(w + (block * BK + k) * OUT + n, mask=(block * BK + k < DEPTH) & (n < OUT), other=0.0)
        acc = tl.dot(patch, weight, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + client * bias_stride + n, mask=n < OUT, other=0.0).to(tl.float32)
    tl.store(y + m * OUT + n, acc.to(y.dtype.element_ty), mask=(m < rows) & (n < OUT))
    if STATISTICS:
        tile = tl.program_id(0) // TILES
        tiles = tl.num_programs(0) // TILES
        if BIAS:
            acc = tl.where(m < rows, acc, 0.0)  # without a bias they are zero
        # In one pass: a second one, with the mean, costs a tenth of the kernel's time. With so few rows to a part,
        # squares only cancel where a mean is a thousand times the deviation.
        total, squares = tl.reduce((acc, acc * acc), 0, _sums)
        mean = total / tl.minimum(BM, rows - tile * BM)
        column = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)
        parts += (client * 2 * tiles + tile) * OUT + column
        tl.store(parts, mean, mask=column < OUT)
        tl.store(parts + tiles * OUT, tl.maximum(squares - total * mean, 0.0), mask=column < OUT)


@triton.jit(do_not_specialize=["rows"])
def forward_pool_kernel(
    x, w, bias, y, winner, x_stride, w_stride, bias_stride, rows,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [rows = images * HP * WP, OUT] = relu(2×2 max-pool(convolution)) and the winning position (4: ReLU is off).

    Each of the four pixels of a window has its own accumulator, so that the maximum needs no exchange between threads
    and the four products share the weight tile.
    """
    DEPTH: tl.constexpr = KH * KW * C
    TILES: tl.constexpr = (OUT + BN - 1) // BN
    client = tl.program_id(1).to(tl.int64)
    x += client * x_stride
    w += client * w_stride
    y += client * rows * OUT
    winner += client * rows * OUT
    m = (tl.program_id(0) // TILES) * BM + tl.arange(0, BM)[:, None]
    n = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)[None, :]
    k = tl.arange(0, BK)[:, None]
    window = m % (HP * WP)
    h = (window // WP) * 2 - PAD
    v = (window % WP) * 2 - PAD
    base = ((m // (HP * WP) * H + h) * W + v) * C
    acc0 = tl.zeros((BM, BN), tl.float32)
    acc1 = tl.zeros((BM, BN), tl.float32)
    acc2 = tl.zeros((BM, BN), tl.float32)
    acc3 = tl.zeros((BM, BN), tl.float32)
    for block in range((DEPTH + BK - 1) // BK):
        dh, dv, c = tap_of(block, KW, C, BK)
        ok = m < rows
        if C % BK != 0:
            ok = ok & (dh < KH)
        at = base + (dh * W + dv) * C + c
        weight = tl.load(w + (block * BK + k) * OUT + n, mask=(block * BK + k < DEPTH) & (n < OUT), other=0.0)
        patch0 = load_pixels(x, at, h + dh, v + dv, ok, H, W)
        patch1 = load_pixels(x, at + C, h + dh, v + dv + 1, ok, H, W)
        patch2 = load_pixels(x, at + W * C, h + dh + 1, v + dv, ok, H, W)
        patch3 = load_pixels(x, at + (W + 1) * C, h + dh + 1, v + dv + 1, ok, H, W)
        acc0 = tl.dot(patch0, weight, acc0, input_precision=PRECISION)
        acc1 = tl.dot(patch1, weight, acc1, input_precision=PRECISION)
        acc2 = tl.dot(patch2, weight, acc2, input_precision=PRECISION)
        acc3 = tl.dot(patch3, weight, acc3, input_precision=PRECISION)
    best, won = _pool_step(acc0, tl.zeros((BM, BN), tl.int32), acc1, 1)
    best, won = _pool_step(best, won, acc2, 2)
    best, won = _pool_step(best, won, acc3, 3)
    if BIAS:  # the same for the whole window: after the maximum
        best += tl.load(bias + client * bias_stride + n, mask=n < OUT, other=0.0).to(tl.float32)
    off = best <= 0  # not "> 0 is on": NaN stays visible, as in PyTorch
    inside = (m < rows) & (n < OUT)
    tl.store(y + m * OUT + n, tl.where(off, 0.0, best).to(y.dtype.element_ty), mask=inside)
    tl.store(winner + m * OUT + n, tl.where(off, 4, won).to(tl.uint8), mask=inside)
