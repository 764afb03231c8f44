"""Triton kernels behind `norm.py`: batch normalisation of stacked clients [K, M, C].

Arguments: M rows and C channels of a client, cut into T parts of `rows` rows; a program walks over one part of BC
channels in tiles [BM, BC]. Channels are contiguous, so each tile row is read in 16-byte pieces. STAGES tiles are in
flight through shared memory at a time: registers alone would hold too few loads to fill the bandwidth.
"""

# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def _place(M, C, rows, BM: tl.constexpr, BC: tl.constexpr, REVERSE: tl.constexpr):
    """This program's client, part, channels [BC], channel mask, first element and offsets of a tile [BM, BC]."""
    pid, client = tl.program_id(0), tl.program_id(1)
    if REVERSE:  # the previous pass ended with the last client, which is still in the L2 cache
        pid, client = tl.num_programs(0) - 1 - pid, tl.num_programs(1) - 1 - client
    blocks = tl.cdiv(C, BC)
    part = pid // blocks
    cols = (pid % blocks) * BC + tl.arange(0, BC)
    first = (client.to(tl.int64) * M + part * rows) * C  # 64 bits: K × M × C may pass 2³¹
    tile = tl.arange(0, BM)[:, None] * C + cols[None, :]
    return client, part, cols, cols < C, first, tile


@triton.jit
def _channel(ptr, client, stride, cols, valid):
    """One client's row of a [K, C] tensor, as fp32 [1, BC]."""
    return tl.load(ptr + client.to(tl.int64) * stride + cols, mask=valid, other=0.0).to(tl.float32)[None, :]


@triton.jit
def statistics(x, parts, M, C, rows, T, BM: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr):
    """Mean and sum of squared deviations of each part of the rows, to parts [K, 2, T, C]."""
    client, part, cols, valid, first, tile = _place(M, C, rows, BM, BC, False)
    x += first
    # Sums are taken around the part's first row: squares of values far from zero would cancel in fp32.
    shift = tl.load(x + cols, mask=valid, other=0.0).to(tl.float32)
    left = tl.minimum(rows, M - part * rows)
    total = tl.zeros((BM, BC), tl.float32)
    squares = tl.zeros((BM, BC), tl.float32)
    for start in tl.range(0, left, BM, num_stages=STAGES):
        mask = (start + tl.arange(0, BM) < left)[:, None] & valid[None, :]
        value = tl.load(x + start * C + tile, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - shift[None, :], 0.0)
        total += value
        squares += value * value
    total_sum = tl.sum(total, 0)
    offset = total_sum / left
    deviations = tl.maximum(tl.sum(squares, 0) - total_sum * offset, 0.0)
    out = parts + (client * 2 * T + part) * C + cols
    tl.store(out, shift + offset, mask=valid)
    tl.store(out + T * C, deviations, mask=valid)


@triton.jit
def combine(
    parts, mean_ptr, rstd_ptr, running_mean, running_var, stride_mean, stride_var, batches, stride_batches,
    M, C, rows, T, momentum, eps,
    TRACK: tl.constexpr, COUNT: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Merge the parts' statistics into mean and 1/std [K, C], move the running statistics and count the batch."""
    client = tl.program_id(1)
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    valid = cols < C
    parts += client.to(tl.int64) * 2 * T * C
    shift = tl.load(parts + cols, mask=valid, other=0.0)  # squares around zero would cancel in fp32
    total = tl.zeros((BC,), tl.float32)
    squares = tl.zeros((BC,), tl.float32)
    for first in range(0, T, BT):
        part = first + tl.arange(0, BT)
        count = tl.where(part < T, tl.minimum(rows, M - part * rows), 0).to(tl.float32)[:, None]
        mask = (part < T)[:, None] & valid[None, :]
        at = parts + part[:, None] * C + cols[None, :]
        away = tl.load(at, mask=mask, other=0.0) - shift[None, :]
        deviations = tl.load(at + T * C, mask=mask, other=0.0)
        total += tl.sum(count * away, 0)
        squares += tl.sum(deviations + count * away * away, 0)
    offset = total / M
    mean = shift + offset
    squares = tl.maximum(squares - total * offset, 0.0)
    tl.store(mean_ptr + client * C + cols, mean, mask=valid)
    tl.store(rstd_ptr + client * C + cols, 1.0 / tl.sqrt(squares / M + eps), mask=valid)
    if TRACK:
        running_mean += client.to(tl.int64) * stride_mean + cols
        running_var += client.to(tl.int64) * stride_var + cols
        old_mean = tl.load(running_mean, mask=valid, other=0.0)
        old_var = tl.load(running_var, mask=valid, other=0.0)
        tl.store(running_mean, old_mean + momentum * (mean - old_mean), mask=valid)
        tl.store(running_var, old_var + momentum * (squares / (M - 1) - old_var), mask=valid)
    if COUNT:
        own = batches + client.to(tl.int64) * stride_batches
        tl.store(own, tl.load(own) + 1, mask=tl.program_id(0) == 0)


@triton.jit
def apply(
    x, residual, y, mean_ptr, rstd_ptr, weight, bias, stride_w, stride_b, M, C, rows,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y = relu((x − mean) × rstd × weight + bias + residual)."""
    client, part, cols, valid, first, tile = _place(M, C, rows, BM, BC, True)
    mean = _channel(mean_ptr, client, C, cols, valid)
    scale = _channel(rstd_ptr, client, C, cols, valid) * _channel(weight, client, stride_w, cols, valid)
    shift = _channel(bias, client, stride_b, cols, valid)
    left = tl.minimum(rows, M - part * rows)
    for start in tl.range(0, left, BM, num_stages=STAGES):
        mask = (start + tl.arange(0, BM) < left)[:, None] & valid[None, :]
        at = first + start * C + tile
        value = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean) * scale + shift
        if RESIDUAL:
            value += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0.0, 0.0, value)  # not a maximum: NaN must stay NaN
        tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def gradient_sums(
    dy, x, y, g_out, parts, mean_ptr, rstd_ptr, weight, bias, stride_w, stride_b, M, C, rows, T,
    MASK: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of g and g × x̂ over each part's rows, to parts [2, K, T, C]; with MASK "y" also writes g, masked by y."""
    client, part, cols, valid, first, tile = _place(M, C, rows, BM, BC, False)
    mean = _channel(mean_ptr, client, C, cols, valid)
    scale = _channel(rstd_ptr, client, C, cols, valid) * _channel(weight, client, stride_w, cols, valid)
    shift = _channel(bias, client, stride_b, cols, valid)
    left = tl.minimum(rows, M - part * rows)
    total = tl.zeros((BM, BC), tl.float32)
    products = tl.zeros((BM, BC), tl.float32)
    for start in tl.range(0, left, BM, num_stages=STAGES):
        mask = (start + tl.arange(0, BM) < left)[:, None] & valid[None, :]
        at = first + start * C + tile
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        centred = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean
        if MASK == "x":
            g = tl.where(centred * scale + shift <= 0.0, 0.0, g)
        if MASK == "y":
            g = tl.where(tl.load(y + at, mask=mask, other=0.0).to(tl.float32) <= 0.0, 0.0, g)
            tl.store(g_out + at, g.to(g_out.dtype.element_ty), mask=mask)
        total += g
        products += g * centred
    # Loaded again after the loop: during it, it would only take registers.
    rstd = tl.load(rstd_ptr + client * C + cols, mask=valid, other=0.0)
    out = parts + (client * T + part) * C + cols
    tl.store(out, tl.sum(total, 0), mask=valid)
    tl.store(out + tl.num_programs(1) * T * C, tl.sum(products, 0) * rstd, mask=valid)


@triton.jit
def total(parts, sums, C, T, BT: tl.constexpr, BC: tl.constexpr):
    """sums [N, C] of parts [N, T, C]; grid (channel blocks, N)."""
    row = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    acc = tl.zeros((BT, BC), tl.float32)
    for first in range(0, T, BT):
        part = first + tl.arange(0, BT)[:, None]
        acc += tl.load(parts + (row * T + part) * C + cols[None, :], mask=(part < T) & (cols < C)[None, :], other=0.0)
    tl.store(sums + row * C + cols, tl.sum(acc, 0), mask=cols < C)


@triton.jit
def gradient_apply(
    g_in, x, dx, sums, mean_ptr, rstd_ptr, weight, bias, stride_w, stride_b, M, C, rows,
    MASK: tl.constexpr, TRAINING: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dx = weight × rstd × (g − mean(g) − x̂ × mean(g × x̂)); fixed statistics pass weight × rstd × g."""
    client, part, cols, valid, first, tile = _place(M, C, rows, BM, BC, True)
    mean = _channel(mean_ptr, client, C, cols, valid)
    rstd = _channel(rstd_ptr, client, C, cols, valid)
    scale = rstd * _channel(weight, client, stride_w, cols, valid)
    shift = _channel(bias, client, stride_b, cols, valid)
    mean_g = _channel(sums, client, C, cols, valid) / M
    slope = _channel(sums + tl.num_programs(1) * C, client, C, cols, valid) * rstd / M
    left = tl.minimum(rows, M - part * rows)
    for start in tl.range(0, left, BM, num_stages=STAGES):
        mask = (start + tl.arange(0, BM) < left)[:, None] & valid[None, :]
        at = first + start * C + tile
        g = tl.load(g_in + at, mask=mask, other=0.0).to(tl.float32)
        if TRAINING or MASK == "x":
            centred = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean
            if MASK == "x":
                g = tl.where(centred * scale + shift <= 0.0, 0.0, g)
            if TRAINING:
                g = g - mean_g - centred * slope
        tl.store(dx + at, (g * scale).to(dx.dtype.element_ty), mask=mask)
