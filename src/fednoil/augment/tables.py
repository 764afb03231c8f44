"""The level tables of RandAugment's 14 operations, and the lookup tables that depend on the image size only.

Every combination of operation, level and sign has a row, its `code`. What can be worked out ahead for a code (where
each pixel comes from, a tone curve, a blending factor) is a table, so a training step only looks it up. The arithmetic
is Pillow's (16.16 fixed point for geometry, fill 0, nearest pixel), so the pixels are the same. Tables are built once
for each image size and device and kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

OPS = (
    "Identity",
    "AutoContrast",
    "Equalize",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Rotate",
    "ShearX",
    "ShearY",
    "Solarize",
    "TranslateX",
    "TranslateY",
)
CUTOUT_FILL = 127
OP_LEVELS = 9  # a level v is in 1..9; the tables read it as v/10

# What an operation does to an image: nothing, move pixels, apply a tone curve, blend with a second image.
NOTHING, MOVE, CURVE, BLEND = range(4)
OP_KINDS = (NOTHING, CURVE, CURVE, BLEND, BLEND, BLEND, BLEND, CURVE, MOVE, MOVE, MOVE, CURVE, MOVE, MOVE)

_PER_OP = 2 * OP_LEVELS
FIRST_MOVE = OP_KINDS.index(MOVE) * _PER_OP  # codes below it move nothing and have no row in `OpTables.source`
_ONE = 1 << 16


def encode(ops: Tensor, levels: Tensor, signs: Tensor) -> Tensor:
    """The code of operation ids 0..13, levels 1..9 and signs ±1, all of one shape: int64 of that shape."""
    return ops * _PER_OP + (levels - 1) * 2 + (signs < 0)


@dataclass(frozen=True)
class OpTables:
    """Lookup tables by code, for images of one size on one device.

    `kinds`: int64 [codes]. Moves: `source` int64 [moves, H*W], the pixel each pixel comes from, and `inside`
    uint8 [moves, H*W], 0 where that is outside the image. Curves: `curves` uint8 [codes, 256], and `adaptive`
    uint8 [codes, 2], 1 for AutoContrast and Equalize. Blends: `blends` float32 [codes, 4, 1, 1, 1], the factor
    and 1 for Contrast, Color and Sharpness. AutoContrast's line by range of tones: `stretch`, `lift` float64
    [256, 1]. Constants: `tones` float64 [256] and `same` int32 [256], both 0..255; `one` int32 [1, 1].
    """

    kinds: Tensor
    source: Tensor
    inside: Tensor
    curves: Tensor
    adaptive: Tensor
    blends: Tensor
    stretch: Tensor
    lift: Tensor
    tones: Tensor
    same: Tensor
    one: Tensor


def _blend(name: str, level: int) -> list[float]:
    """The enhancement factor, and which image is blended in: mean grey, grey or smoothed (black if none of them)."""
    return [0.05 + 0.9 * level / 10, *(float(name == other) for other in ("Contrast", "Color", "Sharpness"))]


def _curve(name: str, level: int) -> list[int]:
    """The tone curve of an operation that needs nothing from the image; zeros for all others."""
    if name == "Posterize":
        dropped = 8 - (4 + 4 * level // 10)
        return [tone >> dropped << dropped for tone in range(256)]
    if name == "Solarize":
        threshold = 256 - 256 * level // 10
        return [tone if tone < threshold else 255 - tone for tone in range(256)]
    return [0] * 256


def _affine(name: str, level: int, sign: int, height: int, width: int) -> tuple[float, ...]:
    """(a, b, c, d, e, f): the pixel at x, y comes from a·x + b·y + c, d·x + e·y + f."""
    part = sign * 0.3 * level / 10
    if name == "Rotate":
        angle = -math.radians(sign * (30 * level // 10) % 360)
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        x, y = width / 2, height / 2
        return cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y
    if name == "ShearX":
        return 1, part, 0, 0, 1, 0
    if name == "ShearY":
        return 1, 0, 0, part, 1, 0
    if name == "TranslateX":
        return 1, 0, int(part * width), 0, 1, 0
    if name == "TranslateY":
        return 1, 0, 0, 0, 1, int(part * height)
    return 1, 0, 0, 0, 1, 0


def _fixed(value: float) -> int:
    return math.floor(value * _ONE + 0.5)


def _sources(affines: list[tuple[float, ...]], height: int, width: int) -> tuple[Tensor, Tensor]:
    """Source pixels int64 [n, H*W] and whether they lie inside, uint8 [n, H*W], for n affine maps."""
    # a pixel is looked up at its centre, hence the halves
    fixed = [
        [_fixed(v) for v in (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)] for a, b, c, d, e, f in affines
    ]
    a, b, c, d, e, f = torch.tensor(fixed, dtype=torch.int64).view(-1, 6, 1, 1).unbind(1)
    ys, xs = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1)
    x = (a * xs + b * ys + c) >> 16
    y = (d * xs + e * ys + f) >> 16
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    source = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    return source.flatten(1), inside.flatten(1).to(torch.uint8)


def _stretch() -> tuple[Tensor, Tensor]:
    """AutoContrast sends tone t to t·stretch + darkest·lift; an image of one tone stays as it is."""
    stretch = torch.tensor([1.0] + [255.0 / span for span in range(1, 256)], dtype=torch.float64)
    lift = -stretch
    lift[0] = 0.0
    return stretch.unsqueeze(1), lift.unsqueeze(1)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def op_tables(height: int, width: int, device: torch.device) -> OpTables:
    """The tables for images of `height` × `width` pixels."""
    codes = list(product(OPS, range(1, OP_LEVELS + 1), (1, -1)))
    moves = [_affine(name, level, sign, height, width) for name, level, sign in codes[FIRST_MOVE:]]
    source, inside = _sources(moves, height, width)
    curves = [_curve(name, level) for name, level, _ in codes]
    adaptive = [[name == "AutoContrast", name == "Equalize"] for name, _, _ in codes]
    blends = [_blend(name, level) for name, level, _ in codes]
    stretch, lift = _stretch()
    tables = OpTables(
        kinds=torch.tensor([OP_KINDS[OPS.index(name)] for name, _, _ in codes]),
        source=source,
        inside=inside,
        curves=torch.tensor(curves, dtype=torch.uint8),
        adaptive=torch.tensor(adaptive, dtype=torch.uint8),
        blends=torch.tensor(blends, dtype=torch.float32).view(-1, 4, 1, 1, 1),
        stretch=stretch,
        lift=lift,
        tones=torch.arange(256, dtype=torch.float64),
        same=torch.arange(256, dtype=torch.int32),
        one=torch.ones(1, 1, dtype=torch.int32),
    )
    return OpTables(**{name: table.to(device) for name, table in vars(tables).items()})


@dataclass(frozen=True)
class ViewTables:
    """Lookup tables of the weak view and of Cutout, for images of one shape on one device.

    `rows`: int64 [period, C*H], source rows by vertical shift; `columns`: int64 [2 * period, W], source
    columns by flip and horizontal shift; `covered`: int64 [H, H], 1 for the rows that a square centred on a row
    covers; `darkest`, `brightest`: uint8 [W + 1, W], the tones allowed in a row of pixels, row 0 for a row that
    is not covered and row 1 + x for one that is, by a square centred on column x.
    """

    rows: Tensor
    columns: Tensor
    covered: Tensor
    darkest: Tensor
    brightest: Tensor


def _reflected(side: int) -> Tensor:
    """Source of each position for each shift modulo the period of the reflections: int64 [period, side]."""
    period = max(2 * (side - 1), 1)
    place = (torch.arange(period).unsqueeze(1) + torch.arange(side)) % period
    return torch.minimum(place, period - place) if side > 1 else torch.zeros_like(place)


def _covered(side: int, hole: int) -> Tensor:
    """Positions from centre - hole//2 on, `hole` of them, clipped at the borders: bool [centre, side]."""
    offset = torch.arange(side) - torch.arange(side).unsqueeze(1) + hole // 2
    return (offset >= 0) & (offset < hole)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def view_tables(channels: int, height: int, width: int, device: torch.device) -> ViewTables:
    """The tables for images of `channels` × `height` × `width`."""
    rows = _reflected(height).unsqueeze(1) + torch.arange(channels).unsqueeze(1) * height
    columns = _reflected(width)
    hole = min(height, width) // 2
    square = torch.cat([torch.zeros(1, width, dtype=torch.bool), _covered(width, hole)])
    return ViewTables(
        rows=rows.flatten(1).to(device),
        columns=torch.cat([columns, width - 1 - columns]).to(device),
        covered=_covered(height, hole).to(torch.int64).to(device),
        darkest=(square * CUTOUT_FILL).to(torch.uint8).to(device),
        brightest=(255 - square * (255 - CUTOUT_FILL)).to(torch.uint8).to(device),
    )
