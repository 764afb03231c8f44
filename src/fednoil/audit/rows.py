"""Rows of a table for people to read: columns and their values as a picture, as the pages of an audit show samples."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fednoil.data.vectors import MARK

Picture = Callable[[int], np.ndarray]
Font = ImageFont.FreeTypeFont
_SMALL, _LARGE = (96, 10), (512, 17)  # pixels of a picture's side, and of its letters
_PAPER, _INK, _FAINT = 255, 0, 110


class Cell(NamedTuple):
    """A column's name and value in a row, and how unusual it is, in standard deviations."""

    name: str
    value: str
    unusual: float


def pictures_of(
    values: Callable[[int], np.ndarray], columns: Sequence[str], mean: Sequence[float], std: Sequence[float]
) -> tuple[Picture, Picture]:
    """Pictures of rows, whose standardised `values` [D] are given by their numbers: small ones, with what is most
    unusual first, and large ones with all columns as far as there is room."""

    def cells(row: int) -> list[Cell]:
        return cells_of(values(row), columns, np.asarray(mean), np.asarray(std))

    def small(row: int) -> np.ndarray:
        return drawn(sorted(cells(row), key=lambda cell: -cell.unusual), *_SMALL)

    return small, lambda row: drawn(cells(row), *_LARGE)


def cells_of(values: np.ndarray, columns: Sequence[str], mean: np.ndarray, std: np.ndarray) -> list[Cell]:
    """What a row has in its columns; of a column of categories, the one that it has."""
    found = []
    for name, value, unusual in zip(columns, (mean + std * values).tolist(), np.abs(values).tolist(), strict=True):
        column, mark, category = name.rpartition(MARK)
        if not mark:
            found.append(Cell(name, f"{value:.4g}", unusual))
        elif value > 0.5:
            found.append(Cell(column, category, unusual))
    return found


def drawn(cells: Sequence[Cell], side: int, letters: int) -> np.ndarray:
    """Names on the left and values on the right, one line each, uint8 [side, side, 3]; what has no room is counted."""
    image = Image.new("L", (side, side), _PAPER)
    draw, font, line = ImageDraw.Draw(image), _font(letters), letters + letters // 5
    most = (side - 2) // line
    shown = cells if len(cells) <= most else cells[: most - 1]
    for place, cell in enumerate(shown):
        value = _cut(cell.value, font, side * 0.6)
        width = font.getlength(value)
        draw.text((2, place * line), _cut(cell.name, font, side - 8 - width), _FAINT, font)
        draw.text((side - 2 - width, place * line), value, _INK, font)
    if len(shown) < len(cells):
        draw.text((2, len(shown) * line), f"and {len(cells) - len(shown)} more", _FAINT, font)
    return np.repeat(np.asarray(image)[..., np.newaxis], 3, axis=2)


@cache
def _font(size: int) -> Font:
    """A font with the letters of most European languages, from the system or matplotlib; else Pillow's own."""
    for folder in ("", *(f"{path}/mpl-data/fonts/ttf/" for path in _matplotlib())):
        with contextlib.suppress(OSError):
            return ImageFont.truetype(f"{folder}DejaVuSans.ttf", size)
    found = ImageFont.load_default(size)
    assert isinstance(found, ImageFont.FreeTypeFont)  # Pillow is built with FreeType wherever it comes as a wheel
    return found


def _matplotlib() -> Sequence[str]:
    found = find_spec("matplotlib")
    return [] if found is None else found.submodule_search_locations or []


def _cut(text: str, font: Font, room: float) -> str:
    """The text as far as it fits; where only Pillow's font is there, without accents, which it lacks."""
    text = " ".join(text.split())
    if font.getname()[0] != "DejaVu Sans":
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode() or "?"
    if font.getlength(text) <= room:
        return text
    while text and font.getlength(f"{text}…") > room:
        text = text[:-1]
    return f"{text}…"
