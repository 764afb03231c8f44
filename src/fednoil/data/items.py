"""A user's labelled images one by one, for an audit: what can't be used is listed and doesn't end it.

Training refuses data with a broken picture, because an image that silently vanishes spoils an experiment. An audit is
how one finds such pictures, so here they are skipped, each with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from fednoil.data import parquet
from fednoil.data.arrays import load_arrays, names_of
from fednoil.data.decoded import channels_first
from fednoil.data.folder import SUFFIXES, classes_in, is_picture, name_of, visible
from fednoil.data.images import Encoded, as_mode, open_picture, why_unreadable
from fednoil.errors import UserError

Shape = tuple[int, int, int]
Picture = Encoded | np.ndarray
_BATCH = 256
_LONGEST = 96  # pixels of a picture for people
_GREY = ("1", "L", "LA")


@dataclass(frozen=True)
class Raw:
    """Labelled images as they lie: what to call each, its row, its label, and its picture or its pixels [C, H, W]."""

    items: list[str]
    labels: np.ndarray
    pictures: Sequence[Picture]
    class_names: tuple[str, ...] | None
    skipped: list[tuple[str, str]]  # item, reason
    notices: list[str]


@dataclass(frozen=True)
class Items:
    """Labelled images in a model's size: uint8 [n, C, H, W], with `index` [n], their rows in the source.

    `labels` [n] number `class_names`, which is None where the source has no names. `pictures` are the images as they
    lie; `box` is the width and height to show them in, None where they are as the model sees them.
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
        with _opened(self.pictures[row]) as image:
            image.draft(None, self.box)  # of a large JPEG, no more than is needed
            return np.asarray(ImageOps.pad(as_mode(image, "RGB", "it"), self.box))


@dataclass(frozen=True)
class _Seen:
    """A picture that can be read: width and height, whether it is stored in colour, and its pixels [C, H, W] as the
    model sees it; None if it would have to be scaled for that."""

    size: tuple[int, int]
    colour: bool
    pixels: np.ndarray | None


def read_items(name: str, shape: Shape, *, resize: bool) -> Items:
    """Read `folder:PATH`, `npz:FILE` or `parquet:PATH` in the size that a model wants."""
    prefix, _, path = name.partition(":")
    readers = {"folder": _folder, "npz": lambda path, _: read_arrays(path), "parquet": _parquet}
    if prefix not in readers or not path.strip():
        raise UserError(f"--data '{name}' must be folder:PATH, npz:FILE or parquet:PATH")
    try:
        raw = readers[prefix](Path(path).expanduser(), shape)
    except (OSError, RuntimeError) as error:  # no permission, too long a name, no such ~user
        raise UserError(f"--data {name} can't be read ({error})") from error
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
    """What was done to pictures before the model looked at them."""
    channels, height, width = shape
    scaled = sum(one.size != (width, height) for one in seen)
    greyed = sum(one.colour for one in seen) if channels == 1 else 0
    done = ((scaled, f"scaled to {width}×{height} pixels"), (greyed, "made grey for the model"))
    return [f"{count} image{'s were' if count > 1 else ' was'} {what}" for count, what in done if count]


def _box(sizes: set[tuple[int, int]]) -> tuple[int, int]:
    """Width and height that pictures are shown in: their own if they share them, else a square, small either way."""
    longest = max(max(size) for size in sizes)
    width, height = next(iter(sizes)) if len(sizes) == 1 else (longest, longest)
    scale = min(1.0, _LONGEST / longest)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _folder(root: Path, shape: Shape) -> Raw:
    """<class>/<image files> in `root`, or in its folder `train`."""
    if not root.is_dir():
        raise UserError(f"folder:{root} is not a folder; expected <class>/<image files> in it")
    top = classes_in(root)
    items, labels, pictures, skipped, notices = [], [], [], [], []
    names: list[str] = []
    for folder in visible(top):
        if not folder.is_dir():
            skipped.append((_item(folder, root), "is not in a class folder"))
            continue
        if name_of(folder) in names:
            raise UserError(f"{folder}: two folders are called '{name_of(folder)}'; merge them")
        files = visible(folder)
        if not files:
            notices.append(f"the class folder '{readable(name_of(folder))}' is empty")
            continue
        names.append(name_of(folder))
        for path in files:
            item = _item(path, root)
            if not is_picture(path):
                skipped.append((item, _no_picture(path)))
            elif not _is_text(path.relative_to(root).as_posix()):
                skipped.append((item, "has a name that is not UTF-8; rename it"))
            else:
                items.append(item)
                labels.append(len(names) - 1)
                pictures.append(Encoded(item, path))
    return Raw(items, np.array(labels, np.int64), pictures, tuple(names), skipped, notices)


def read_arrays(path: Path) -> Raw:
    """The training images and labels of an .npz file."""
    where = f"npz:{path}"
    if not path.is_file():
        raise UserError(f"{where} is not a file; give an .npz with x_train and y_train")
    values = load_arrays(path, where)
    if missing := [key for key in ("x_train", "y_train") if key not in values]:
        raise UserError(f"{where} lacks {', '.join(missing)}; an audit needs x_train and y_train")
    images = channels_first(values["x_train"], f"{where}: x_train")
    labels = values["y_train"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(images):
        raise UserError(f"{where}: y_train is {labels.dtype} of shape {labels.shape}; expected {len(images)} integers")
    names = names_of(values, where)
    return Raw(
        [str(row) for row in range(len(images))],
        labels.astype(np.int64),
        list(images),
        None if names is None else tuple(names),
        [],
        [],
    )


def _parquet(path: Path, shape: Shape) -> Raw:
    """One file, or the files train*.parquet of a folder."""
    files = parquet.training_files(path)
    tables = {file: parquet.read_table(file, parquet.LABEL_COLUMNS) for file in files}
    stored = {names for table in tables.values() if (names := parquet.names_in(table.schema)) is not None}
    if len(stored) > 1:
        raise UserError(f"parquet:{path}: the shards' class names differ; all shards must be of one dataset")
    pictures = [picture for file, table in tables.items() for picture in parquet.encoded(file, table, whole=False)]
    labels = np.concatenate([parquet.integer_labels(file, table) for file, table in tables.items()])
    items = [str(row) for row in range(len(pictures))]
    return Raw(items, labels.astype(np.int64), pictures, next(iter(stored), None), [], [])


def _decode(raw: Raw, shape: Shape, resize: bool) -> list[_Seen | str]:
    """Each picture as the model sees it, or why it can't be read."""
    batches = [raw.pictures[i : i + _BATCH] for i in range(0, len(raw.pictures), _BATCH)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return [one for many in pool.map(lambda b: [_seen(p, shape, resize) for p in b], batches) for one in many]


def _seen(picture: Picture, shape: Shape, resize: bool) -> _Seen | str:
    channels, height, width = shape
    try:
        with _opened(picture) as file:
            colour = file.mode not in _GREY
            image = as_mode(file, "L" if channels == 1 else "RGB", "it")
    except UserError as error:
        return str(error)
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error and more
        return why_unreadable(error)
    size = image.size
    if size != (width, height):
        if not resize:
            return _Seen(size, colour, None)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, np.uint8)
    return _Seen(size, colour, pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def _opened(picture: Picture) -> Image.Image:
    """Pillow's image, not decoded yet where it is a file."""
    if isinstance(picture, np.ndarray):
        return Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0))
    return open_picture(picture)


def _no_picture(path: Path) -> str:
    """Why something in a class folder is not a picture."""
    if path.is_dir():
        return "is a folder in a class folder"
    if path.suffix.lower() in SUFFIXES:
        return "is a link to nothing, or no file"
    return f"is not an image file ({', '.join(SUFFIXES)})"


def _item(path: Path, root: Path) -> str:
    """The path below the data's root."""
    return readable(path.relative_to(root).as_posix())


def readable(name: str) -> str:
    """The name of a file; bytes in it that aren't text are shown as bytes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
