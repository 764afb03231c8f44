"""Fashion-MNIST from its original IDX files, gzipped or not.

An IDX file is a big-endian header (two zero bytes, the element type, the number of dimensions, the size of
each dimension) followed by the elements.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from fednoil.data.base import Known, Normalisation
from fednoil.data.decoded import Decoded, Files, assemble, channels_first
from fednoil.errors import UserError

CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FASHION_NORMALISATION: Normalisation = ((0.2860,), (0.3530,))
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_UBYTE = 8
_GZIP_MAGIC = b"\x1f\x8b"


class FashionMnist(Known):
    normalisation = FASHION_NORMALISATION
    description = "Fashion-MNIST, 60,000 + 10,000 grey images 28×28, 10 classes"
    how = "install Debian's dataset-fashion-mnist or put the four *-ubyte.gz files into the data folder"
    usual = (DEBIAN,)

    def find(self, place: Path) -> Files | None:
        return find(place)


def find(folder: Path) -> Files | None:
    """The four files in `folder`, each plain or with .gz; None when none is there."""
    found = {name: _either(folder, name) for name in IDX_FILES}
    paths = tuple(path for path in found.values() if path is not None)
    if not paths:
        return None
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise UserError(f"fashion-mnist: {folder} lacks {', '.join(missing)} (with or without .gz)")
    return Files(folder, paths, lambda: _read(folder, paths))


def _either(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _read(folder: Path, paths: tuple[Path, ...]) -> Decoded:
    train_x, train_y, test_x, test_y = (read_idx(p, n) for p, n in zip(paths, (3, 1, 3, 1), strict=True))
    for path, images in ((paths[0], train_x), (paths[2], test_x)):
        if images.shape[1:] != (28, 28):
            raise UserError(f"{path}: images have shape {images.shape[1:]}; Fashion-MNIST's are (28, 28)")
    train = channels_first(train_x, str(paths[0])), train_y
    test = channels_first(test_x, str(paths[2])), test_y
    return assemble(f"fashion-mnist in {folder}", train, test, CLASS_NAMES)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read one IDX file of unsigned bytes: uint8 with that many dimensions."""
    data = _unpacked(path)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, _UBYTE, dimensions)):
        raise UserError(
            f"{path}: the header {data[:4].hex() or 'is empty'} is not IDX; "
            f"expected 0000{_UBYTE:02x}{dimensions:02x} (unsigned bytes, {dimensions} dimensions)"
        )
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    expected = 1
    for size in shape:
        expected *= size
    if len(data) - header != expected:
        raise UserError(
            f"{path}: the header promises {expected} bytes for shape {shape}, "
            f"the file has {len(data) - header}; get the file again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _unpacked(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        # By content, not by name: some tools unpack a download and leave the .gz on.
        return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} can't be read ({error}); it may be cut short: get the file again") from error
