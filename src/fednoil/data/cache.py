"""Decoded datasets on disk, so that a second run starts at once.

One .npz an entry, uncompressed: CIFAR-10 loads in 0.1 s instead of 5 s, and a checksum guards each array. A
damaged entry counts as absent, and a folder that can't be written only costs the time to decode again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np

from fednoil.data.arrays import KEYS, load_arrays
from fednoil.data.dataset import Dataset, Split
from fednoil.data.decoded import Files
from fednoil.errors import UserError

_VERSION = 1


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
    return folder / f"{place.hexdigest()[:12]}-{content.hexdigest()[:24]}.npz"


def load(path: Path, name: str) -> Dataset | None:
    """The cached dataset with its hash; None when there is none or it is damaged."""
    try:
        values = load_arrays(path, str(path))
        train_x, train_y, test_x, test_y = (values[key] for key in KEYS)
        names = tuple(values["class_names"].tolist())
        mean, std = tuple(values["mean"].tolist()), tuple(values["std"].tolist())
        dataset = Dataset(name, Split(train_x, train_y), Split(test_x, test_y), names, mean, std)
        return remember_hash(dataset, str(values["hash"]))
    except (UserError, KeyError):
        return None


def store(path: Path, dataset: Dataset) -> None:
    """Write one entry whole or not at all, and drop older ones of the same place."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            np.savez(
                file,
                x_train=dataset.train.images,
                y_train=dataset.train.labels,
                x_test=dataset.test.images,
                y_test=dataset.test.labels,
                class_names=np.array(dataset.class_names),
                mean=np.array(dataset.mean),
                std=np.array(dataset.std),
                hash=np.array(dataset.hash),
            )
        temporary.replace(path)
        for old in path.parent.glob(f"{path.name.partition('-')[0]}-*.npz"):
            if old != path:
                old.unlink()
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def remember_hash(dataset: Dataset, value: str) -> Dataset:
    """Put a known hash where the cached property looks for it: hashing CIFAR-10 takes 0.2 s."""
    dataset.__dict__["hash"] = value
    return dataset
