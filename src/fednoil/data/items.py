"""A user's labelled images one by one, for an audit: what can't be used is listed and doesn't stop it.

Training refuses data with a broken picture, because an image that silently vanishes spoils an experiment. An audit
should find such pictures, so here they are skipped, each with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import ImageOps

from fednoil.data.images import Picture, as_mode, fitted, is_grey, open_picture, why_unreadable
from fednoil.data.raw import Raw
from fednoil.data.sources import open_own
from fednoil.data.vector_sources import VectorSource
from fednoil.data.vectors import aligned
from fednoil.errors import UserError

Shape = tuple[int, int, int]
_BATCH = 256
_LONGEST = 96  # pixels of a picture for people


@dataclass(frozen=True)
class Items:
    """Labelled images in a model's size: uint8 [n, C, H, W], with `index` [n], their rows in the source.

    `labels` [n] number `class_names`, which is None where the source has no names. `pictures` are the images as stored;
    `box` is the width and height to show them in, None if they are shown as the model sees them.
    """

    items: tuple[str, ...]
    index: np.ndarray
    labels: np.ndarray
    images: np.ndarray
    class_names: tuple[str, ...] | None
    skipped: tuple[tuple[str, str], ...]
    notices: tuple[str, ...]
    pictures: Sequence[Picture]
    box: tuple[int, int] | None

    def shown(self, row: int) -> np.ndarray:
        """An image for people to look at, uint8 [H, W, C], in its own colours and proportions."""
        if self.box is None:
            return self.images[row].transpose(1, 2, 0)
        with open_picture(self.pictures[row]) as image:
            image.draft(None, self.box)  # of a large JPEG, no more than is needed
            return np.asarray(ImageOps.pad(as_mode(image, "RGB"), self.box))


@dataclass(frozen=True)
class _Seen:
    """A picture that can be read: width and height, whether it is stored in colour, and its pixels [C, H, W] as the
    model sees it; None if it would have to be scaled for that."""

    size: tuple[int, int]
    colour: bool
    pixels: np.ndarray | None


def read_vectors(name: str, columns: Sequence[str], count: int) -> Items:
    """Read a user's own vectors, for example `table:FILE`, with the `count` columns that a model wants."""
    raw = _labelled(name, columns)
    if not raw.columns:
        raise UserError(f"{name} has pictures, and the model takes rows of {count} columns; give table:FILE")
    values = np.stack([np.asarray(row) for row in raw.pictures])
    if columns:
        values = aligned(values, raw.columns, columns, name)
    if values.shape[1] != count:
        raise UserError(f"{name} has {values.shape[1]} columns, the model takes {count}")
    rows = np.arange(len(values))
    return Items(tuple(raw.items), rows, raw.labels, values, raw.class_names, (), tuple(raw.notices), (), None)


def _labelled(name: str, columns: Sequence[str] = ()) -> Raw:
    source = open_own(name)
    if isinstance(source, VectorSource):
        source.wanted = columns
    try:
        return source.labelled()
    except (OSError, RuntimeError) as error:  # no permission, too long a name, no such ~user
        raise UserError(f"--data {name} can't be read ({error})") from error


def read_items(name: str, shape: Shape, *, resize: bool) -> Items:
    """Read a user's own data, for example `folder:PATH`, in the size that a model wants."""
    raw = _labelled(name)
    if raw.columns:
        raise UserError(f"{name} has rows of {len(raw.columns)} columns, and the model takes pictures")
    if not raw.items:
        lost = f"; skipped: {' '.join(raw.skipped[0])}" if raw.skipped else ""
        lost += f", and {len(raw.skipped) - 1} more" if len(raw.skipped) > 1 else ""
        what = "put images into <class>/ folders, or rows into the file"
        raise UserError(f"{name} holds no labelled image; {what}{lost}")
    found = _decode(raw, shape, resize)
    wrong = [(n, one.size) for n, one in enumerate(found) if isinstance(one, _Seen) and one.pixels is None]
    if wrong:
        (first, (width, height)), count = wrong[0], len(wrong)
        others = f" and {count - 1} more are not" if count > 1 else " is not"
        raise UserError(
            f"{name}: {raw.items[first]} ({width}×{height} pixels){others} of the model's size, {shape[2]}×{shape[1]}; "
            "add --resize to scale them"
        )
    seen = {row: one for row, one in enumerate(found) if isinstance(one, _Seen)}
    lost = [(raw.items[row], why) for row, why in enumerate(found) if isinstance(why, str)]
    if not seen:
        raise UserError(f"{name}: none of its {len(found)} images can be read; the first: {lost[0][0]}: {lost[0][1]}")
    altered = _altered(list(seen.values()), shape)
    kept = list(seen)
    return Items(
        tuple(raw.items[row] for row in kept),
        np.array(kept, np.int64),
        raw.labels[kept],
        np.stack([np.asarray(one.pixels) for one in seen.values()]),
        raw.class_names,
        (*raw.skipped, *lost),
        (*raw.notices, *altered),
        [raw.pictures[row] for row in kept],
        _box({one.size for one in seen.values()}) if altered else None,
    )


def _altered(seen: Sequence[_Seen], shape: Shape) -> list[str]:
    """What was done to pictures before the model saw them."""
    channels, height, width = shape
    scaled = sum(one.size != (width, height) for one in seen)
    greyed = sum(one.colour for one in seen) if channels == 1 else 0
    done = ((scaled, f"scaled and cropped to {width}×{height} pixels"), (greyed, "made grey for the model"))
    return [f"{count} image{'s were' if count > 1 else ' was'} {what}" for count, what in done if count]


def _box(sizes: set[tuple[int, int]]) -> tuple[int, int]:
    """Width and height that pictures are shown in: their own if they share them, else a square, small either way."""
    longest = max(max(size) for size in sizes)
    width, height = next(iter(sizes)) if len(sizes) == 1 else (longest, longest)
    scale = min(1.0, _LONGEST / longest)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _decode(raw: Raw, shape: Shape, resize: bool) -> list[_Seen | str]:
    """Each picture as the model sees it, or why it can't be read."""
    batches = [raw.pictures[i : i + _BATCH] for i in range(0, len(raw.pictures), _BATCH)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return [one for many in pool.map(lambda b: [_seen(p, shape, resize) for p in b], batches) for one in many]


def _seen(picture: Picture, shape: Shape, resize: bool) -> _Seen | str:
    channels, height, width = shape
    try:
        with open_picture(picture) as file:
            colour = not is_grey(file)
            image = as_mode(file, "L" if channels == 1 else "RGB")
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error and more
        return why_unreadable(error)
    size = image.size
    if size != (width, height):
        if not resize:
            return _Seen(size, colour, None)
        image = fitted(image, (width, height))
    pixels = np.asarray(image, np.uint8)
    return _Seen(size, colour, pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))
