"""Triton kernels of the stacked convolution for GPUs whose copy engine fetches whole boxes (Hopper's TMA).

They serve convolutions that keep the images' size (stride 1). The pixels that a tile of the result needs at one tap are
then a box of the image tensor, [images, rows, whole width, channels], shifted by the tap. The engine fills what lies
outside the images with zeros, so no thread computes addresses or masks, and the tensor cores read the box where the
engine has put it. For that the box has to be the *second* operand of a product: a first operand that was reshaped goes
through registers (Triton 3.6). All results are therefore computed transposed, [channels, pixels].

Descriptors are made on the host for each launch, so they are part of a captured graph. Their first dimension are the
clients: a box that reaches beyond a client's last image gets zeros there, and nothing of it is stored.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fednoil.kernels.conv_tiles import Config, Shape, image_box, keeps_size

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # a Triton without descriptors: `serves` says no
    TensorDescriptor = None


@triton.jit
def _corner(pixel, H: tl.constexpr, W: tl.constexpr):
    """Image and row of the first of a box of pixels."""
    return pixel // (H * W), pixel % (H * W) // W


@triton.jit(do_not_specialize=["rows"])
def box_kernel(
    x, w, bias, more, y, parts, bias_stride, rows,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PAD: tl.constexpr, GRADIENT: tl.constexpr, BIAS: tl.constexpr, MORE: tl.constexpr, STATISTICS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [images, H, W, OUT] from x [images, H, W, C] and w; grid (row tiles * output tiles, clients).

    w is [taps * C, OUT], or with GRADIENT [taps * OUT, C] for the input gradient: x is then the result's gradient, and
    the taps reach the other way. `more` is added to y; parts are those of `fednoil.kernels.conv_kernels`.
    """
    BLOCKS: tl.constexpr = C // BK
    TILES: tl.constexpr = OUT // BN  # neighbours share the image tile through the L2 cache
    client = tl.program_id(1)
    tile = tl.program_id(0) // TILES
    n = (tl.program_id(0) % TILES) * BN
    image, top = _corner(tile * BM, H, W)
    acc = tl.zeros((BN, BM), tl.float32)
    for block in range(KH * KW * BLOCKS):
        tap = block // BLOCKS
        c = block % BLOCKS * BK
        if GRADIENT:
            box = x.load([client, image, top + PAD - tap // KW, PAD - tap % KW, c])
            weight = w.load([client, tap * OUT + n, c]).reshape(BN, BK)
        else:
            box = x.load([client, image, top + tap // KW - PAD, tap % KW - PAD, c])
            weight = w.load([client, block * BK, n]).reshape(BK, BN).T
        acc = tl.dot(weight, box.reshape(BM, BK).T, acc)
    column = n + tl.arange(0, BN)
    if BIAS:
        acc += tl.load(bias + client.to(tl.int64) * bias_stride + column).to(tl.float32)[:, None]
    if MORE:
        acc += more.load([client, image, top, 0, n]).reshape(BM, BN).T.to(tl.float32)
    y.store([client, image, top, 0, n], acc.to(y.dtype).T.reshape(y.block_shape))
    if STATISTICS:
        inside = (tile * BM + tl.arange(0, BM) < rows)[None, :]
        tiles = tl.num_programs(0) // TILES
        mean = tl.sum(tl.where(inside, acc, 0.0), 1) / tl.minimum(BM, rows - tile * BM)
        away = tl.where(inside, acc - mean[:, None], 0.0)
        parts += (client.to(tl.int64) * 2 * tiles + tile) * OUT + column
        tl.store(parts, mean)
        tl.store(parts + tiles * OUT, tl.sum(away * away, 1))


@triton.jit(do_not_specialize=["rows", "share"])
def box_weight_gradient_kernel(
    x, dy, part, rows, share,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """part [splits * clients, taps, C, OUT] = patches of x, transposed, @ dy [rows, OUT] over the split's share.

    Grid (tiles, clients, splits); a tile is [BM, BN] and BK pixels are summed at a time, of which share is a multiple.
    """
    BLOCKS: tl.constexpr = C // BM
    TILES: tl.constexpr = OUT // BN
    client = tl.program_id(1)
    n = tl.program_id(0) % TILES * BN
    c = tl.program_id(0) // TILES % BLOCKS * BM
    tap = tl.program_id(0) // TILES // BLOCKS
    acc = tl.zeros((BN, BM), tl.float32)
    begin = tl.program_id(2) * share
    for m in range(begin, tl.minimum(begin + share, rows), BK):
        image, top = _corner(m, H, W)
        gradient = dy.load([client, m, n]).reshape(BK, BN).T
        box = x.load([client, image, top + tap // KW - PAD, tap % KW - PAD, c])
        acc = tl.dot(gradient, box.reshape(BK, BM), acc)
    row = tl.program_id(2) * tl.num_programs(1) + client
    part.store([row, tap, c, n], acc.to(part.dtype).T.reshape(1, 1, BM, BN))


def serves(s: Shape, pixels: int, channels: int, outputs: int, *tensors: Tensor) -> bool:
    """Whether a tile of this many pixels, channels and outputs suits the convolution and these tensors.

    Weights are often a part of a longer vector: the engine needs 16-byte alignment, of every client.
    """
    if TensorDescriptor is None or not keeps_size(s) or image_box(s, pixels) is None:
        return False
    fits = s.C % channels == 0 and s.outputs % outputs == 0
    return fits and all(t.itemsize == 2 and _aligned(t) for t in tensors)


def _aligned(t: Tensor) -> bool:
    return t.data_ptr() % 16 == 0 and t.stride(0) > 0 and t.stride(0) * t.itemsize % 16 == 0


def _images(t: Tensor, s: Shape, pixels: int, channels: int) -> Any:
    """The descriptor of images [K, B, H, W, any], contiguous within a client, in boxes of pixels."""
    inner = t.shape[4]
    strides = [t.stride(0), s.H * s.W * inner, s.W * inner, inner, 1]
    return TensorDescriptor(t, [*t.shape], strides, [1, *image_box(s, pixels), channels])


def _table(t: Tensor, rows: int, cols: int, block: tuple[int, int]) -> Any:
    """The descriptor of a table [K, rows, cols], contiguous within a client."""
    return TensorDescriptor(t, [len(t), rows, cols], [t.stride(0), cols, 1], [1, *block])


def _options(s: Shape, config: Config) -> dict[str, Any]:
    tile = {"BM": config.rows, "BN": config.cols, "BK": config.depth}
    sizes = {"H": s.H, "W": s.W, "KH": s.KH, "KW": s.KW, "PAD": s.padding}
    return {**tile, **sizes, "num_warps": config.warps, "num_stages": config.stages}


def forward(
    x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, parts: Tensor, s: Shape, config: Config, statistics: bool
) -> None:
    """Write y [K, B, H, W, O] and, for statistics, parts [K, 2, row tiles, O]."""
    rows = s.B * s.H * s.W
    vector = w if bias is None else bias  # any pointer will do: it is never read
    args = (
        _images(x, s, config.rows, config.depth),
        _table(w, s.KH * s.KW * s.C, s.outputs, (config.depth, config.cols)),
        *(vector, w, _images(y, s, config.rows, config.cols), parts, vector.stride(0), rows),
    )
    uses = {"GRADIENT": False, "BIAS": bias is not None, "MORE": False, "STATISTICS": statistics}
    grid = (triton.cdiv(rows, config.rows) * (s.outputs // config.cols), s.K)
    box_kernel[grid](*args, C=s.C, OUT=s.outputs, **uses, **_options(s, config))


def input_gradient(dy: Tensor, w: Tensor, passed: Tensor | None, dx: Tensor, s: Shape, config: Config) -> None:
    """Write dx [K, B, H, W, C], plus what is `passed` if anything."""
    rows = s.B * s.H * s.W
    more = w if passed is None else _images(passed, s, config.rows, config.cols)
    args = (
        _images(dy, s, config.rows, config.depth),
        _table(w, s.KH * s.KW * s.C, s.outputs, (config.cols, config.depth)),
        *(w, more, _images(dx, s, config.rows, config.cols), w, 0, rows),
    )
    uses = {"GRADIENT": True, "BIAS": False, "MORE": passed is not None, "STATISTICS": False}
    grid = (triton.cdiv(rows, config.rows) * (s.C // config.cols), s.K)
    box_kernel[grid](*args, C=s.outputs, OUT=s.C, **uses, **_options(s, config))


def weight_gradient(x: Tensor, dy: Tensor, part: Tensor, share: int, s: Shape, config: Config) -> None:
    """Write the parts [splits, K, kh, kw, C, O] of the weights' gradient."""
    rows, taps = s.B * s.H * s.W, s.KH * s.KW
    sums = part.view(-1, taps, s.C, s.outputs)
    args = (
        _images(x, s, config.depth, config.rows),
        _table(dy, rows, s.outputs, (config.depth, config.cols)),
        *(TensorDescriptor(sums, [*sums.shape], [*sums.stride()], [1, 1, config.rows, config.cols]), rows, share),
    )
    grid = (taps * (s.C // config.rows) * (s.outputs // config.cols), s.K, len(part))
    box_weight_gradient_kernel[grid](*args, C=s.C, OUT=s.outputs, **_options(s, config))
