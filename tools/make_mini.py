"""Make the small Fashion-MNIST inside the package from the original IDX files.

The first 300 training and the first 100 test images of every class are kept, in the files' own order, so
running it again gives the same arrays.
"""

from __future__ import annotations

import argparse
import lzma
import struct
import zipfile
from pathlib import Path
from unittest import mock
from zipfile import LZMACompressor  # pyright: ignore[reportAttributeAccessIssue]

import numpy as np

from fednoil.data.arrays import packed
from fednoil.data.idx import CLASS_NAMES, IDX_FILES, find, read_idx
from fednoil.errors import UserError

TRAIN_PER_CLASS = 300
TEST_PER_CLASS = 100
TARGET = Path(__file__).resolve().parents[1] / "src/fednoil/data/mini.npz"


def first_of_each(labels: np.ndarray, per_class: int) -> np.ndarray:
    """Indices of the first `per_class` samples of every class, ascending: int64 [classes * per_class]."""
    chosen = [np.flatnonzero(labels == label)[:per_class] for label in range(len(CLASS_NAMES))]
    return np.sort(np.concatenate(chosen))


def make(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of the small set from the IDX files in `folder`."""
    files = find(folder)
    if files is None:
        raise UserError(f"{folder} has none of {', '.join(IDX_FILES)} (with or without .gz)")
    train_x, train_y, test_x, test_y = map(read_idx, files.paths, (3, 1, 3, 1))
    train, test = first_of_each(train_y, TRAIN_PER_CLASS), first_of_each(test_y, TEST_PER_CLASS)
    return {
        "x_train": train_x[train],
        "y_train": train_y[train],
        "x_test": test_x[test],
        "y_test": test_y[test],
        "class_names": np.array(CLASS_NAMES),
    }


class Smaller(LZMACompressor):
    """zipfile's LZMA with settings that suit bytes of images."""

    def _init(self) -> bytes:
        settings = {"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}
        properties = lzma._encode_filter_properties(settings)  # pyright: ignore[reportAttributeAccessIssue]
        self._comp = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[settings])
        return struct.pack("<BBH", 9, 4, len(properties)) + properties


def save(arrays: dict[str, np.ndarray], path: Path) -> None:
    """An .npz of packed images in LZMA, a fifth smaller than what NumPy writes; the same arrays give the same bytes."""
    arrays = arrays | {f"x_{split}": packed(arrays[f"x_{split}"], arrays[f"y_{split}"]) for split in ("train", "test")}
    with mock.patch("zipfile.LZMACompressor", Smaller), zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date
            entry.compress_type = zipfile.ZIP_LZMA
            with file.open(entry, "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the four original IDX files")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    save(make(options.folder), options.out)
    print(f"{options.out}: {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
