"""Images and labels from one .npz file, and the small Fashion-MNIST that comes with the package."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import IO

import numpy as np

from fednoil.data.base import PathSource, Source
from fednoil.data.copy import Copy
from fednoil.data.dataset import DatasetInfo, Split
from fednoil.data.decoded import Decoded, Files, assemble, channels_first, name_classes
from fednoil.data.decoding import hold_out
from fednoil.data.idx import FASHION_NORMALISATION
from fednoil.data.raw import Listing, Raw, named, numbered, renumbered
from fednoil.errors import UserError
from fednoil.files import naming

_STARTS = (b"PK", b"\x93NUMPY")  # of a zip, as an .npz is one, and of a single array
KEYS = ("x_train", "y_train", "x_test", "y_test")
_UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error),
    RuntimeError,  # an entry that is encrypted, or packed in a way that zipfile doesn't know
    MemoryError,  # a damaged header claims more than any machine holds
)


class NpzCopy(Copy):
    """Arrays: `y_train` changes, everything else stays; a dropped sample leaves every array named `…_train`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise UserError(f"npz:{path} is not a file; give an .npz with x_train and y_train")
        values = load_arrays(path, f"npz:{path}")
        self.alone = bool({"x_test", "y_test"} & values.keys())
        if self.alone:
            find(path).read()  # checks the test images, too
        raw = read_labelled(path)
        self.labels, self.classes = raw.labels, name_classes(f"npz:{path}", raw.labels, raw.class_names)
        self.named = raw.class_names is not None

    def write(self, out: Path, labels: np.ndarray) -> None:
        changed = self._changed(labels)
        with naming(out), zipfile.ZipFile(self.path) as old, zipfile.ZipFile(out, "w") as new:
            for name in dict.fromkeys(old.namelist()):
                entry = zipfile.ZipInfo(name, old.getinfo(name).date_time)
                entry.compress_type = old.getinfo(name).compress_type
                value = changed.get(name.removesuffix(".npy"))
                with old.open(name) as source, new.open(entry, "w", force_zip64=True) as target:
                    if value is None:
                        shutil.copyfileobj(source, target)
                    else:
                        np.lib.format.write_array(target, value, allow_pickle=False)

    def _changed(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays that change."""
        values, kept = load_arrays(self.path, f"npz:{self.path}"), labels >= 0
        kind = values["y_train"].dtype
        if kind.kind in "US":
            texts = np.array(self.classes)[np.where(kept, labels, 0)]
            values["y_train"] = texts if kind.kind == "U" else np.char.encode(texts, "utf-8")
        elif labels.max() > np.iinfo(kind).max:
            raise UserError(
                f"npz:{self.path}: y_train is {kind}, which can't hold the label {labels.max()}; save it as int64"
            )
        else:
            values["y_train"] = np.where(kept, labels, 0).astype(kind)
        rows = [name for name, value in values.items() if name.endswith("_train") and value.shape[:1] == labels.shape]
        return {name: values[name][kept] for name in rows if name == "y_train" or not kept.all()}


class Npz(PathSource):
    takes = "FILE"
    cached = False  # it is decoded already: a second copy on disk would save little
    how = "arrays x_train, y_train and, if you like, x_test, y_test"
    description = "your own arrays"
    rewrites = NpzCopy

    def find(self, path: Path) -> Files:
        return find(path)

    def labelled(self) -> Raw:
        return read_labelled(self.path)

    def listing(self) -> Listing:
        where, values = self.config.name, load_arrays(self.path, self.config.name)
        if not values.keys() & set(KEYS[2:]):
            return Listing(where, self.labelled())
        read(self.path, where)  # checks both parts
        labels, names = split_labels(values, where, ("y_train", "y_test"))
        classes = None if names is None else tuple(names)
        images = [channels_first(values[key], f"{where}: {key}") for key in ("x_train", "x_test")]
        train, test = (
            Raw(numbered(len(own)), own.astype(np.int64), list(pictures), classes)
            for pictures, own in zip(images, labels, strict=True)
        )
        return Listing(where, train, test)


class Mini(Source):
    own = False
    normalisation = FASHION_NORMALISATION
    how = "comes with FedNoiL"
    description = "Fashion-MNIST, 3,000 + 1,000 of its images, 10 classes"

    def read(self) -> Decoded:
        return read_mini()


def find(path: Path) -> Files:
    """The .npz file at `path`."""
    if not path.is_file():
        raise UserError(f"npz:{path} is not a file; give an .npz with {', '.join(KEYS)}")
    return Files(path, (path,), lambda: read(path, f"npz:{path}"))


def read_mini() -> Decoded:
    """The 3,000 + 1,000 images of Fashion-MNIST inside the package."""
    name = "fashion-mnist-mini"
    with resources.files("fednoil.data").joinpath("mini.npz").open("rb") as file:
        values = load_arrays(file, name)
    for split in ("train", "test"):
        values[f"x_{split}"] = unpacked(values[f"x_{split}"], values[f"y_{split}"])
    return decoded(values, name)


def packed(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Images [N, H, W] by class and column by column, which compresses better by 5 %."""
    return images[np.argsort(labels, kind="stable")].swapaxes(1, 2)


def unpacked(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Packed images as they were, in the order of their labels."""
    found = np.empty_like(images.swapaxes(1, 2), order="C")
    found[np.argsort(labels, kind="stable")] = images.swapaxes(1, 2)
    return found


def read(source: Path | IO[bytes], where: str) -> Decoded:
    """Read and check the arrays of one .npz; nothing in it is unpickled."""
    return decoded(load_arrays(source, where), where)


def decoded(values: dict[str, np.ndarray], where: str) -> Decoded:
    """The checked arrays of one .npz."""
    wanted = KEYS if values.keys() & set(KEYS[2:]) else KEYS[:2]
    missing = [key for key in wanted if key not in values]
    if missing:
        raise UserError(
            f"{where} lacks {', '.join(missing)}; it needs x_train, y_train and, for testing, x_test, y_test"
        )
    labels, names = split_labels(values, where, [key for key in ("y_train", "y_test") if key in values])
    images = [channels_first(values[key], f"{where}: {key}") for key in ("x_train", "x_test") if key in values]
    about = DatasetInfo()
    if names is None and all(own.dtype.kind in "iu" for own in labels):
        labels, names, notices = renumbered(labels)
        about = DatasetInfo(notices=tuple(notices))
    train = images[0], labels[0]
    if len(images) == 2:
        return assemble(where, train, (images[1], labels[1]), names, about)
    about = replace(about, items=tuple(numbered(len(labels[0]))))
    checked = assemble(where, train, train, names, about)
    train, (held, own), about = hold_out((images[0], checked.train.labels), None, about)
    return Decoded(Split(*train), Split(held, own), checked.class_names, about)


def split_labels(
    values: dict[str, np.ndarray], where: str, keys: Sequence[str]
) -> tuple[list[np.ndarray], list[str] | None]:
    """The labels under `keys` as numbers of the same classes, and these classes' names; None where they have none."""
    labels, names = [values[key] for key in keys], names_of(values, where)
    return _texts(where, labels, names) if labels[0].dtype.kind in "US" else (labels, names)


def _texts(where: str, labels: list[np.ndarray], names: list[str] | None) -> tuple[list[np.ndarray], list[str]]:
    """Text labels as numbers, and the classes in the order of `class_names`, or sorted."""
    if any(own.ndim != 1 or own.dtype.kind not in "US" for own in labels):
        raise UserError(f"{where}: y_train holds text of shape {labels[0].shape}; y_train and y_test must be text [N]")
    try:
        texts = [own if own.dtype.kind == "U" else np.char.decode(own, "utf-8") for own in labels]
    except UnicodeDecodeError:
        raise UserError(f"{where}: its labels are not UTF-8 text") from None
    numbers, found = named(where, texts)
    if names is None:
        return numbers, list(found)
    if unknown := [name for name in found if name not in names]:
        raise UserError(f"{where}: the label '{unknown[0]}' is not one of class_names ({', '.join(names[:8])})")
    order = np.array([names.index(name) for name in found], np.int64)
    return [order[own] for own in numbers], names


def load_arrays(source: Path | IO[bytes], where: str) -> dict[str, np.ndarray]:
    """Every array of an .npz file, read into memory; anything else in it is ignored."""
    try:
        # Opened here, because numpy leaves the file open when it is not a whole zip.
        with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
            if not file.read(6).startswith(_STARTS):
                raise UserError(f"{where} is not an .npz file; save one with numpy.savez")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise UserError(f"{where} is a single array; save it with numpy.savez({', '.join(KEYS)})")
            return {name: value for name, value in loaded.items() if isinstance(value, np.ndarray)}
    except _UNREADABLE as error:
        raise UserError(f"{where} can't be read as an .npz of plain arrays ({error})") from error


def names_of(values: dict[str, np.ndarray], where: str) -> list[str] | None:
    """The names of the classes, or None where the file has none."""
    names = values.get("class_names")
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise UserError(f"{where}: class_names is {names.dtype} of shape {names.shape}; expected strings [C]")
    try:
        return [n.decode() if isinstance(n, bytes) else n for n in names.tolist()]
    except UnicodeDecodeError:
        raise UserError(f"{where}: class_names is not UTF-8 text") from None


def read_labelled(path: Path) -> Raw:
    """The training images and labels of an .npz file, all of them."""
    where = f"npz:{path}"
    if not path.is_file():
        raise UserError(f"{where} is not a file; give an .npz with x_train and y_train")
    values = load_arrays(path, where)
    if missing := [key for key in ("x_train", "y_train") if key not in values]:
        raise UserError(f"{where} lacks {', '.join(missing)}; an audit needs x_train and y_train")
    images = channels_first(values["x_train"], f"{where}: x_train")
    (labels,), names = split_labels(values, where, ["y_train"])
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(images):
        raise UserError(f"{where}: y_train is {labels.dtype} of shape {labels.shape}; expected {len(images)} integers")
    classes = None if names is None else tuple(names)
    return Raw(numbered(len(images)), labels.astype(np.int64), list(images), classes)
