"""Images and labels from one .npz file, and the small Fashion-MNIST that comes with the package."""

from __future__ import annotations

import zipfile
import zlib
from contextlib import nullcontext
from importlib import resources
from pathlib import Path
from typing import IO

import numpy as np

from fednoil.data.base import PathSource, Source
from fednoil.data.decoded import Decoded, Files, assemble, channels_first
from fednoil.data.idx import FASHION_NORMALISATION
from fednoil.data.raw import Raw, numbered
from fednoil.errors import UserError

_STARTS = (b"PK", b"\x93NUMPY")  # of a zip, as an .npz is one, and of a single array
KEYS = ("x_train", "y_train", "x_test", "y_test")
_UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error),
    RuntimeError,  # an entry that is encrypted, or packed in a way that zipfile doesn't know
    MemoryError,  # a damaged header claims more than any machine holds
)


class Npz(PathSource):
    takes = "FILE"
    cached = False  # it is decoded already: a second copy on disk would save little
    how = "arrays x_train, y_train, x_test, y_test"
    description = "your own arrays"

    def find(self, path: Path) -> Files:
        return find(path)

    def labelled(self) -> Raw:
        return read_labelled(self.path)


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
    with resources.files("fednoil.data").joinpath("mini.npz").open("rb") as file:
        return read(file, "fashion-mnist-mini")


def read(source: Path | IO[bytes], where: str) -> Decoded:
    """Read and check the arrays of one .npz; nothing in it is unpickled."""
    values = load_arrays(source, where)
    missing = [key for key in KEYS if key not in values]
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}; it needs {', '.join(KEYS)}")
    train_x, train_y, test_x, test_y = (values[key] for key in KEYS)
    train = channels_first(train_x, f"{where}: x_train"), train_y
    test = channels_first(test_x, f"{where}: x_test"), test_y
    return assemble(where, train, test, names_of(values, where))


def load_arrays(source: Path | IO[bytes], where: str) -> dict[str, np.ndarray]:
    """Every array of an .npz file, read into memory; what else lies in it is left aside."""
    try:
        # Opened here, because numpy leaves the file open when it is not a whole zip.
        with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
            if not file.read(6).startswith(_STARTS):
                raise UserError(f"{where} is no .npz file; save one with numpy.savez")
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
    classes = None if names is None else tuple(names)
    return Raw(numbered(len(images)), labels.astype(np.int64), list(images), classes)
