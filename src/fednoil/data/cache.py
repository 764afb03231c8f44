"""Decoded datasets on disk, so that a second run starts at once and pixels needn't fit in memory.

An entry is a folder with the pixels of both splits as they are and one .npz with everything else. Many pixels are
mapped into memory instead of being read; fewer are read and guarded by a checksum: CIFAR-10 is there in 0.1 s instead
of 5 s. A damaged entry counts as absent, and a folder that can't be written only costs the time to decode again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fednoil.data.arrays import load_arrays
from fednoil.data.dataset import Dataset, DatasetInfo, Owners, Split
from fednoil.data.decoded import Files
from fednoil.errors import UserError

_VERSION = 3
_SPLITS = ("train", "test")
_TABLE = "table.npz"
MAPPED = 1 << 30
"""Bytes of pixels from which on a file is mapped; of these only the length is checked."""
_CHUNK = 1 << 24


def cache_dir() -> Path | None:
    """$FEDNOIL_CACHE, else $XDG_CACHE_HOME/fednoil, else ~/.cache/fednoil; None without a home."""
    if own := os.environ.get("FEDNOIL_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "fednoil"
    try:
        return Path.home() / ".cache" / "fednoil"
    except RuntimeError:
        return None


def entry(key: str, files: Files) -> Path | None:
    """Where the decoded form of these files is kept: by the source's `key` and the files' paths, sizes and times."""
    folder = cache_dir()
    if folder is None:
        return None
    content = hashlib.sha256(f"{_VERSION}\0{key}".encode("utf-8", "surrogateescape"))
    try:
        for path in files.paths:
            stat = path.stat()
            line = f"\0{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
            content.update(line.encode("utf-8", "surrogateescape"))
    except OSError:
        return None
    place = hashlib.sha256(f"{key}\0{files.where.resolve()}".encode("utf-8", "surrogateescape"))
    return folder / f"{place.hexdigest()[:12]}-{content.hexdigest()[:24]}"


class Draft:
    """An entry that is being written, next to its final place until it is complete; without a place, arrays are in
    memory."""

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._folder: Path | None = None
        self._made: dict[Path, np.ndarray] = {}

    def __enter__(self) -> Draft:
        if self._place is not None:
            with contextlib.suppress(OSError):
                self._place.parent.mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(dir=self._place.parent, suffix=".tmp"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def room(self, split: str, shape: tuple[int, ...]) -> np.ndarray:
        """An array uint8 to decode into: a file where there is room for one, else memory."""
        size = int(np.prod(shape))
        if self._folder is None or size < MAPPED:
            return np.empty(shape, np.uint8)
        try:
            path = self._folder / f"{split}.draft"
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
            self._made[path] = np.memmap(path, np.uint8, "r+", shape=shape)
            return self._made[path]
        except OSError:
            return np.empty(shape, np.uint8)

    def finish(self, dataset: Dataset) -> Dataset:
        """Keep the dataset at its place, and return it as it is read from there."""
        if self._folder is None or self._place is None:
            return dataset
        try:
            self._write(self._folder, dataset)
            if self._place.exists():  # damaged, or made by another process meanwhile
                shutil.rmtree(self._place, ignore_errors=True)
            self._folder.rename(self._place)
        except OSError:
            return dataset
        self._folder = None
        for old in self._place.parent.glob(f"{self._place.name.partition('-')[0]}-*"):
            if old != self._place:
                shutil.rmtree(old, ignore_errors=True)
        return load(self._place, dataset.name) or dataset

    def _keep(self, images: np.ndarray, path: Path) -> None:
        """Put pixels into their own file: the one they were decoded into, or a copy."""
        for draft, array in self._made.items():
            if images.size and array.ctypes.data == images.ctypes.data:
                array.flush()  # pyright: ignore[reportAttributeAccessIssue]
                os.truncate(draft, images.size)
                draft.rename(path)
                return
        with path.open("wb") as file:
            for piece in _pieces(images):
                file.write(piece)

    def _write(self, folder: Path, dataset: Dataset) -> None:
        sums = []
        about, digest = dataset.about, dataset.hash
        for name, split in zip(_SPLITS, (dataset.train, dataset.test), strict=True):
            sums.append(0)
            for piece in _pieces(split.images):
                sums[-1] = zlib.crc32(piece, sums[-1])
            self._keep(split.images, folder / name)
        for draft in folder.glob("*.draft"):
            draft.unlink()
        words = {"items": about.items, "notices": about.notices, "skipped": about.skipped, "held_out": about.held_out}
        owners = about.owners
        np.savez(
            folder / _TABLE,
            y_train=dataset.train.labels,
            y_test=dataset.test.labels,
            shape=np.array(dataset.image_shape),
            class_names=np.array(dataset.class_names),
            mean=np.array(dataset.mean),
            std=np.array(dataset.std),
            hash=np.array(digest),
            sums=np.array(sums),
            words=np.array(json.dumps(words)),
            owners=np.array([] if owners is None else owners.numbers, np.int64),
            owner_names=np.array([] if owners is None else owners.names, np.str_),
            tested=np.array([] if about.tested is None else about.tested.numbers, np.int64),
        )


def _pieces(images: np.ndarray) -> Iterator[memoryview]:
    """The pixels in order, a piece at a time."""
    flat = np.ascontiguousarray(images).reshape(-1)
    return (flat[start : start + _CHUNK].data for start in range(0, flat.size, _CHUNK))


def load(path: Path, name: str) -> Dataset | None:
    """The cached dataset with its hash; None when there is none or it is damaged."""
    try:
        values = load_arrays(path / _TABLE, str(path))
        shape = tuple(values["shape"].tolist())
        splits = []
        for split, total in zip(_SPLITS, values["sums"].tolist(), strict=True):
            labels = values[f"y_{split}"]
            splits.append(Split(_pixels(path / split, (len(labels), *shape), total), labels))
        words = json.loads(str(values["words"]))
        owners = Owners(values["owners"], tuple(values["owner_names"].tolist())) if len(values["owners"]) else None
        tested = Owners(values["tested"], owners.names) if owners is not None and len(values["tested"]) else None
        skipped = tuple((item, why) for item, why in words["skipped"])
        about = DatasetInfo(
            tuple(words["items"]), owners, tuple(words["notices"]), skipped, int(words["held_out"]), tested=tested
        )
        names = tuple(values["class_names"].tolist())
        mean, std = tuple(values["mean"].tolist()), tuple(values["std"].tolist())
        dataset = Dataset(name, splits[0], splits[1], names, mean, std, about)
        return remember_hash(dataset, str(values["hash"]))
    except (UserError, KeyError, OSError, ValueError):
        return None


def _pixels(path: Path, shape: tuple[int, ...], total: int) -> np.ndarray:
    """The pixels; changes to them don't reach the file. A ValueError if they aren't those that were written."""
    size = int(np.prod(shape))
    if path.stat().st_size != size:
        raise ValueError(f"{path} is damaged")
    if size >= MAPPED:
        return np.memmap(path, np.uint8, "c", shape=shape).view(np.ndarray)
    pixels = np.fromfile(path, np.uint8)
    if zlib.crc32(pixels.data) != total:
        raise ValueError(f"{path} is damaged")
    return pixels.reshape(shape)


def remember_hash(dataset: Dataset, value: str) -> Dataset:
    """Put a known hash where the cached property looks for it: hashing CIFAR-10 takes 0.2 s."""
    dataset.__dict__["hash"] = value
    return dataset
