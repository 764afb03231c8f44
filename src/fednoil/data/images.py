"""Encoded pictures (PNG, JPEG, WebP, …) to arrays of one shape, whatever size and mode they have."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps

from fednoil.errors import UserError

Progress = Callable[[int, int], None]
"""Called with the number of pictures decoded so far and the total."""

Shape = tuple[int, int, int]
T = TypeVar("T")

_BATCH = 256
_LARGE = 128 * 128  # pixels
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
_SIXTEEN = ("PNG", "PPM")  # formats whose mode I holds 16 bits
_LYING = (5, 6, 7, 8)  # EXIF orientations in which width and height change places
_LATE_EXIF = ("PNG",)  # formats in which Pillow would decode the whole picture to look for EXIF data


@dataclass(frozen=True)
class Piece:
    """Some bytes in the middle of a file."""

    path: Path
    start: int
    size: int

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


@dataclass(frozen=True)
class Encoded:
    """One picture: its bytes, its file or its place in one, and what to call it in an error."""

    where: str
    source: bytes | memoryview | Path | Piece


Picture = Encoded | np.ndarray
"""An encoded picture, or pixels uint8 [C, H, W]."""


@dataclass(frozen=True)
class Measure:
    """A picture's width and height as it is looked at, and whether it has colours."""

    size: tuple[int, int]
    colour: bool


def measure(pictures: Sequence[Picture]) -> list[Measure | str]:
    """The measurements of each picture, or why it can't be read; reads little more than its first bytes."""
    kind = _format(pictures[0]) if pictures else None
    return [one for batch in _mapped(lambda _, p: _measured(p, kind), pictures, 8) for one in batch]


def decode(
    pictures: Sequence[Picture], into: np.ndarray, progress: Progress | None = None, *, exact: bool = False
) -> dict[int, str]:
    """Write pictures to the rows of `into`, uint8 [N, C, H, W], and return why the unreadable ones can't be read, by
    row.

    Pictures of another size are scaled and cropped, unless they must have that size exactly. Most have the first
    one's format, which is tried first.
    """
    shape: Shape = into.shape[1:]  # type: ignore[assignment]
    kind = _format(pictures[0]) if pictures else None
    failed: dict[int, str] = {}
    done = 0

    def write(row: int, picture: Picture) -> None:
        try:
            if exact:
                _check_size(picture, shape, kind)
            into[row] = pixels(picture, shape, kind)
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error and more
            failed[row] = why_unreadable(error)

    for batch in _mapped(write, pictures, _threads(pictures, shape)):
        done += len(batch)
        if progress is not None:
            progress(done, len(pictures))
    return failed


def pixels(picture: Picture, shape: Shape, kind: str | None = None) -> np.ndarray:
    """One picture as uint8 [C, H, W]; raises what Pillow raises where it can't be read."""
    channels, height, width = shape
    if isinstance(picture, np.ndarray) and picture.shape == shape:
        return picture
    with _opened(picture, kind) as file:
        file.draft(None, (2 * width, 2 * height))  # of a large JPEG, decode no more than is needed
        image = fitted(as_mode(file, "L" if channels == 1 else "RGB"), (width, height))
    array = np.asarray(image, np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def as_mode(image: Image.Image, mode: str) -> Image.Image:
    """The image as people see it, with 8 bits a channel in the mode L or RGB: upright, transparency on white."""
    if image.mode == "F" or (image.mode == "I" and image.format not in _SIXTEEN):
        raise UserError("has 32 bits a channel; save it with 8 or 16")
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) * 255 // 65535).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def fitted(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Scaled to cover `size`, its width and height, in its own proportions, and cropped around the centre."""
    return image if image.size == size else ImageOps.fit(image, size, Image.Resampling.BILINEAR)


def is_grey(image: Image.Image) -> bool:
    """Whether an image has no colours, by its mode alone."""
    return image.mode in _GREY


def why_unreadable(error: Exception) -> str:
    """Why a picture can't be decoded, by what was raised."""
    if isinstance(error, UserError):
        return str(error)
    known = "" if isinstance(error, Image.UnidentifiedImageError) else f" ({str(error) or type(error).__name__})"
    return f"can't be read as an image{known}"


def open_picture(picture: Picture, kind: str | None = None) -> Image.Image:
    """Pillow's image, not decoded yet; a format, where one is given, is the only one that is tried."""
    if isinstance(picture, np.ndarray):
        return Image.fromarray(picture[0] if len(picture) == 1 else np.ascontiguousarray(picture.transpose(1, 2, 0)))
    source = picture.source.read() if isinstance(picture.source, Piece) else picture.source
    return Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=(kind,) if kind else None)


def _opened(picture: Picture, kind: str | None) -> Image.Image:
    """The image, sooner if it has this format: asking format after format takes as long as decoding a small one."""
    try:
        return open_picture(picture, kind)
    except Image.UnidentifiedImageError:
        return open_picture(picture)


def _format(picture: Picture) -> str | None:
    """The format of a picture if others can be asked for it."""
    try:
        with open_picture(picture) as image:
            return image.format if image.format in Image.OPEN else None
    except Exception:  # it is reported with the others that can't be read
        return None


def _measured(picture: Picture, kind: str | None) -> Measure | str:
    if isinstance(picture, np.ndarray):
        return Measure((picture.shape[2], picture.shape[1]), len(picture) > 1)
    try:
        with _opened(picture, kind) as image:
            early = image.format not in _LATE_EXIF or "exif" in image.info
            lying = early and image.getexif().get(ExifTags.Base.Orientation) in _LYING
            width, height = image.size
            return Measure((height, width) if lying else (width, height), not is_grey(image))
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error and more
        return why_unreadable(error)


def _check_size(picture: Picture, shape: Shape, kind: str | None) -> None:
    with _opened(picture, kind) as image:
        if image.size != (shape[2], shape[1]):
            raise UserError(f"is {image.size[0]}×{image.size[1]} pixels, not {shape[2]}×{shape[1]}")


def _mapped(function: Callable[[int, Picture], T], pictures: Sequence[Picture], threads: int) -> Iterator[list[T]]:
    """What the function gives for each row and its picture, batch by batch in order."""

    def each(start: int) -> list[T]:
        return [function(start + k, picture) for k, picture in enumerate(pictures[start : start + _BATCH])]

    with ThreadPoolExecutor(min(threads, os.cpu_count() or 1)) as pool:
        yield from pool.map(each, range(0, len(pictures), _BATCH))


def _threads(pictures: Sequence[Picture], shape: Shape) -> int:
    """How many decode: Pillow does so outside the interpreter's lock, and from 128×128 pixels on two are 1.2 to 1.9
    times as fast as one.

    With smaller pictures that are in memory they wait for the lock instead: with 32×32 pixels up to twice as long.
    """
    first = pictures[0] if pictures else None
    waits = isinstance(first, Encoded) and isinstance(first.source, Path | Piece)
    return 8 if waits or shape[1] * shape[2] >= _LARGE else 1
