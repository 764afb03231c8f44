"""Encoded pictures (PNG, JPEG, WebP, …) to arrays, all of one size and one number of channels."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from fednoil.errors import UserError

_BATCH = 256
_LARGE = 128 * 128  # pixels
_GREY = ("1", "L")


@dataclass(frozen=True)
class Encoded:
    """One picture: its bytes or its file, and what to call it in an error."""

    where: str
    source: bytes | Path


def decode(*splits: Sequence[Encoded], rgb: bool = False) -> list[np.ndarray]:
    """Decode each split into uint8 [N, C, H, W]; C is 1 if every picture is grey and `rgb` is off, else 3.

    Pictures must all have the size of the first one. Most have its format too, which is tried first.
    """
    pictures = list(chain(*splits))
    size, kind = _size_and_format(pictures[0])
    batches = [pictures[i : i + _BATCH] for i in range(0, len(pictures), _BATCH)]
    with ThreadPoolExecutor(_threads(pictures[0], size)) as pool:
        arrays = list(chain(*pool.map(lambda batch: [_decode(p, size, kind, rgb) for p in batch], batches)))
    channels = 3 if any(a.ndim == 3 for a in arrays) else 1
    out, start = [], 0
    for split in splits:
        out.append(_stack(arrays[start : start + len(split)], channels, size))
        start += len(split)
    return out


def _threads(first: Encoded, size: tuple[int, int]) -> int:
    """How many decode: Pillow does so outside the interpreter's lock, and from 128×128 pixels on two are 1.2 to 1.9
    times as fast as one.

    With smaller pictures that are in memory they wait for the lock instead: with 32×32 pixels up to twice as long.
    """
    waits = isinstance(first.source, Path) or size[0] * size[1] >= _LARGE
    return min(8, os.cpu_count() or 1) if waits else 1


def _stack(arrays: list[np.ndarray], channels: int, size: tuple[int, int]) -> np.ndarray:
    """Put arrays [H, W] or [H, W, 3] into one uint8 [N, channels, H, W]; grey fills every channel."""
    stacked = np.empty((len(arrays), channels, size[1], size[0]), np.uint8)
    for row, array in zip(stacked, arrays, strict=True):
        row[:] = array if array.ndim == 2 else array.transpose(2, 0, 1)
    return stacked


def why_unreadable(error: Exception) -> str:
    """Why a picture can't be decoded, by what Pillow has raised."""
    known = "" if isinstance(error, Image.UnidentifiedImageError) else f" ({str(error) or type(error).__name__})"
    return f"can't be read as an image{known}"


def _unreadable(picture: Encoded, error: Exception) -> UserError:
    return UserError(f"{picture.where} {why_unreadable(error)}; replace or remove it")


def as_mode(image: Image.Image, mode: str, where: str) -> Image.Image:
    """The image with 8 bits a channel in the mode L or RGB."""
    if image.mode == "F" or image.mode.startswith("I"):
        raise UserError(f"{where} has more than 8 bits a channel; save it with 8")
    # Through RGBA, because Pillow warns when a palette with transparency goes straight to RGB.
    through = image.convert("RGBA") if image.mode == "P" else image
    return through.convert(mode)


def open_picture(picture: Encoded, kind: str | None = None) -> Image.Image:
    """Pillow's image, not decoded yet; a format, where one is given, is the only one that is tried."""
    source = picture.source
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=(kind,) if kind else None)


def _size_and_format(picture: Encoded) -> tuple[tuple[int, int], str | None]:
    """Width and height, and the format if pictures can be asked for it."""
    try:
        with open_picture(picture) as image:
            return image.size, image.format if image.format in Image.OPEN else None
    except Exception as error:
        raise _unreadable(picture, error) from error


def _opened(picture: Encoded, kind: str | None) -> Image.Image:
    """The image, sooner if it has this format: asking format after format takes as long as decoding a small one."""
    try:
        return open_picture(picture, kind)
    except Image.UnidentifiedImageError:
        return open_picture(picture)


def _decode(picture: Encoded, size: tuple[int, int], kind: str | None, rgb: bool) -> np.ndarray:
    """One picture as uint8 [H, W] (grey) or [H, W, 3]."""
    try:
        with _opened(picture, kind) as image:
            if image.size != size:
                raise UserError(
                    f"{picture.where} is {image.size[0]}×{image.size[1]} pixels, "
                    f"the first image {size[0]}×{size[1]}; all must have one size"
                )
            mode = "L" if image.mode in _GREY and not rgb else "RGB"
            return np.asarray(image if image.mode == mode else as_mode(image, mode, picture.where))
    except UserError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error and more
        raise _unreadable(picture, error) from error
