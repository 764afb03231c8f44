"""Pictures of an audit's page to look at closely: large enough for people, and trusted examples."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from PIL import Image

LONGEST_SIDE = 512  # longest side of a picture that is opened, in pixels
_BYTES = 40_000_000  # in all such pictures together; the most suspicious come first
_EXAMPLES = 2  # trusted pictures of a class
_CLASSES = 200  # with trusted pictures
_BATCH = 64

Images = Callable[[int], np.ndarray]


def enlarged(
    table: pa.Table, chosen: pa.Table, classes: Sequence[str], originals: Images, least: int
) -> tuple[list[str], dict[int, int], list[list[tuple[int, str]]]]:
    """The pictures as base64 of WebP, which of them belongs to each shown row if it is larger than `least` pixels, and
    the trusted ones of each class with their names."""
    examples = _trusted(table, classes)
    pictures = [picture for picture, _ in _encoded([row for rows in examples for row, _ in rows], originals)]
    numbers = iter(range(len(pictures)))
    trusted = [[(next(numbers), name) for _, name in rows] for rows in examples]
    room, kept = _BYTES - sum(map(len, pictures)), {}
    flagged = np.asarray(chosen.column("flagged").to_pylist(), dtype=bool)
    indices = [int(i) for i in chosen.column("index").to_pylist()]
    order = np.argsort(~flagged, kind="stable").tolist()
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        found = _encoded([indices[place] for place in batch], originals)
        if start == 0 and max(side for _, side in found) <= least:
            break  # the page already has all pictures in full size
        for place, (picture, _) in zip(batch, found, strict=True):
            room -= len(picture)
            if room < 0:
                return pictures, kept, trusted
            kept[place] = len(pictures)
            pictures.append(picture)
    return pictures, kept, trusted


def _trusted(table: pa.Table, classes: Sequence[str]) -> list[list[tuple[int, str]]]:
    """The samples of each class whose labels are least in doubt: their rows in the data, and their names."""
    columns = (table.column(name).to_pylist() for name in ("given", "suggested", "flagged", "index", "item"))
    wrong = table.column("p_wrong").to_numpy()
    rows = list(zip(*columns, strict=True))
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in classes[:_CLASSES]}
    for place in np.argsort(wrong, kind="stable"):
        given, suggested, flagged, index, item = rows[place]
        if given == suggested and not flagged and given in found and len(found[given]) < _EXAMPLES:
            found[given].append((int(index), str(item)))
    return [found.get(name, []) for name in classes]


def _encoded(indices: Sequence[int], originals: Images) -> list[tuple[str, int]]:
    """Pictures as base64 of WebP, and their longest sides."""

    def encode(index: int) -> tuple[str, int]:
        pixels = originals(index)
        pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
        image = Image.fromarray(pixels)
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "WEBP", quality=85, method=2)
        return base64.b64encode(buffer.getvalue()).decode(), max(image.size)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # Pillow encodes outside the interpreter's lock
        return list(pool.map(encode, indices))
