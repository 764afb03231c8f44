"""Triton kernels of the stacked linear layer with few outputs, forward and backward in one launch each.

The features of a sample are those of an image in channels-last memory, pixel by pixel, while PyTorch orders the columns
of the weights channel by channel (that is how it flattens images). Nothing is copied: a tile of features is some
channels of some pixels, and its weights are turned within the kernel. With one pixel (AREA = 1) both orders are the
same, which is the plain linear layer.
"""

import triton
import triton.language as tl


@triton.jit
def _every_eighth(
    w, channel, pixel, outputs,
    C: tl.constexpr, AREA: tl.constexpr, TO: tl.constexpr, TC: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """The weights [TO, TC / 8, TP] of every eighth channel of a tile, beginning with this one."""
    o = tl.arange(0, TO)[:, None, None]
    c = channel + tl.arange(0, TC // 8)[None, :, None] * 8
    p = pixel + tl.arange(0, TP)[None, None, :]
    # Every eighth channel is aligned, its neighbours are not: all are to be read alike, by one thread each.
    at = tl.multiple_of((o * C + c) * AREA + p, [1, 1, 1])
    return tl.load(w + at, mask=(o < outputs) & (c < C) & (p < AREA), other=0.0)


@triton.jit
def load_weights(
    w, tile, outputs,
    C: tl.constexpr, AREA: tl.constexpr, TO: tl.constexpr, TC: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """The weights [TO, TP * TC] of a tile of the features, in the order of the features; zero beyond the last tile.

    Neighbouring threads read neighbouring pixels, which is how the weights lie in memory. Eight channels of a pixel are
    joined, so that one thread has them side by side: it can then pass them on at once, in the order of the features.
    """
    TILES: tl.constexpr = (C + TC - 1) // TC
    channel = tile % TILES * TC
    pixel = tile // TILES * TP
    if AREA == 1:
        o = tl.arange(0, TO)[:, None]
        c = tile * TC + tl.arange(0, TC)[None, :]
        return tl.load(w + o * C + c, mask=(o < outputs) & (c < C), other=0.0)
    else:
        w0 = _every_eighth(w, channel, pixel, outputs, C, AREA, TO, TC, TP)
        w1 = _every_eighth(w, channel + 1, pixel, outputs, C, AREA, TO, TC, TP)
        w2 = _every_eighth(w, channel + 2, pixel, outputs, C, AREA, TO, TC, TP)
        w3 = _every_eighth(w, channel + 3, pixel, outputs, C, AREA, TO, TC, TP)
        w4 = _every_eighth(w, channel + 4, pixel, outputs, C, AREA, TO, TC, TP)
        w5 = _every_eighth(w, channel + 5, pixel, outputs, C, AREA, TO, TC, TP)
        w6 = _every_eighth(w, channel + 6, pixel, outputs, C, AREA, TO, TC, TP)
        w7 = _every_eighth(w, channel + 7, pixel, outputs, C, AREA, TO, TC, TP)
        even = tl.join(tl.join(w0, w4), tl.join(w2, w6))
        odd = tl.join(tl.join(w1, w5), tl.join(w3, w7))
        eights = tl.reshape(tl.join(even, odd), (TO, TC // 8, TP, 8))
        return tl.reshape(tl.permute(eights, (0, 2, 1, 3)), (TO, TP * TC))


@triton.jit(do_not_specialize=["rows"])
def forward_kernel(
    x, w, bias, y, x_stride, w_stride, bias_stride, rows,
    C: tl.constexpr, AREA: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, TO: tl.constexpr, TC: tl.constexpr, TP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """y [rows, OUT] = x [rows, AREA * C] @ weights + bias; grid (row tiles * output tiles, clients).

    A tile of the result is so small that one warp computes it, and its products wait for each other. So each warp has a
    part of the features (GROUPS of them, as many as warps) and a sum of its own; these are added at the end.
    """
    KK: tl.constexpr = TC * TP // GROUPS
    CHANNEL_TILES: tl.constexpr = (C + TC - 1) // TC
    TILES: tl.constexpr = CHANNEL_TILES * ((AREA + TP - 1) // TP)
    OUTPUT_TILES: tl.constexpr = (OUT + TO - 1) // TO
    client = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) % OUTPUT_TILES * TO
    row = tl.program_id(0) // OUTPUT_TILES * BM
    x += client * x_stride
    w += client * w_stride + first * (AREA * C)
    m = row + tl.arange(0, BM)[None, :, None]
    k = tl.arange(0, GROUPS)[:, None, None] * KK + tl.arange(0, KK)[None, None, :]
    acc = tl.zeros((GROUPS, BM, TO), tl.float32)
    ahead = load_weights(w, 0, OUT - first, C, AREA, TO, TC, TP)
    for tile in range(TILES):
        c = tile % CHANNEL_TILES * TC + k % TC
        p = tile // CHANNEL_TILES * TP + k // TC
        features = tl.load(x + m * (AREA * C) + p * C + c, mask=(m < rows) & (c < C) & (p < AREA), other=0.0)
        weights = tl.reshape(ahead.to(features.dtype), (TO, GROUPS, KK))
        # Those of the next tile are on their way while this one's products run.
        ahead = load_weights(w, tile + 1, OUT - first, C, AREA, TO, TC, TP)
        acc = tl.dot(features, tl.permute(weights, (1, 2, 0)), acc, input_precision=PRECISION)
    total = tl.sum(acc, 0)
    n = first + tl.arange(0, TO)[None, :]
    m = row + tl.arange(0, BM)[:, None]
    if BIAS:
        total += tl.load(bias + client * bias_stride + n, mask=n < OUT, other=0.0).to(tl.float32)
    tl.store(y + (client * rows + m) * OUT + n, total.to(y.dtype.element_ty), mask=(m < rows) & (n < OUT))


@triton.jit
def _load_gradient(dy, first, rows, OUT: tl.constexpr, BM: tl.constexpr, TO: tl.constexpr):
    m = first + tl.arange(0, BM)[:, None]
    n = tl.arange(0, TO)[None, :]
    return tl.load(dy + m * OUT + n, mask=(m < rows) & (n < OUT), other=0.0)


@triton.jit(do_not_specialize=["rows"])
def backward_kernel(
    x, w, dy, dx, dw, db, x_stride, w_stride, rows,
    C: tl.constexpr, AREA: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr,
    DX: tl.constexpr, DW: tl.constexpr, DB: tl.constexpr,
    BM: tl.constexpr, TO: tl.constexpr, TC: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """All gradients for one tile of the features, from all rows; grid (tiles of the features, clients).

    DX, DW and DB say which are wanted: dx [rows, AREA * C] like x, dw [OUT, C * AREA] and db [OUT]. The bias's is the
    first tile's.
    """
    D: tl.constexpr = C * AREA
    CHANNEL_TILES: tl.constexpr = (C + TC - 1) // TC
    tile = tl.program_id(0)
    client = tl.program_id(1).to(tl.int64)
    x += client * x_stride
    dy += client * rows * OUT
    dx += client * rows * D
    channel = tile % CHANNEL_TILES * TC
    pixel = tile // CHANNEL_TILES * TP
    k = tl.arange(0, TP * TC)[None, :]
    inside = (channel + k % TC < C) & (pixel + k // TC < AREA)
    column = (pixel + k // TC) * C + channel + k % TC
    if DX:
        weights = load_weights(w + client * w_stride, tile, OUT, C, AREA, TO, TC, TP).to(dy.dtype.element_ty)
    acc = tl.zeros((TO, TP * TC), tl.float32)
    bias = tl.zeros((BM, TO), tl.float32)
    ahead = _load_gradient(dy, 0, rows, OUT, BM, TO)
    for first in range(0, rows, BM):
        m = first + tl.arange(0, BM)[:, None]
        at = m * D + column
        gradient = ahead
        ahead = _load_gradient(dy, first + BM, rows, OUT, BM, TO)
        if DW:
            features = tl.load(x + at, mask=(m < rows) & inside, other=0.0)
            acc = tl.dot(tl.trans(gradient), features, acc, input_precision=PRECISION)
        if DX:
            part = tl.dot(gradient, weights, input_precision=PRECISION)
            tl.store(dx + at, part.to(dx.dtype.element_ty), mask=(m < rows) & inside)
        if DB:
            bias += gradient.to(tl.float32)
    if DW:
        o = tl.arange(0, TO)[:, None, None]
        c = channel + tl.arange(0, TC)[None, :, None]
        p = pixel + tl.arange(0, TP)[None, None, :]
        turned = tl.permute(tl.reshape(acc.to(dw.dtype.element_ty), (TO, TP, TC)), (0, 2, 1))
        tl.store(dw + client * (OUT * D) + (o * C + c) * AREA + p, turned, mask=(o < OUT) & (c < C) & (p < AREA))
    if DB:
        n = tl.arange(0, TO)
        tl.store(db + client * OUT + n, tl.sum(bias, 0).to(db.dtype.element_ty), mask=(n < OUT) & (tile == 0))
