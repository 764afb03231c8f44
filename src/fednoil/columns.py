"""Columns of whole numbers between Arrow and numpy, by their memory.

pyarrow's own ways, `pa.array` and `to_numpy`, import pandas to see whether that is what they were given: a third of a
second at the start of a run where it is installed, and over a second where Python keeps no compiled modules.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_MOST = np.iinfo(np.int64).max


def to_column(numbers: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Integers [N] as a column of that type, which must have room for them."""
    whole = np.ascontiguousarray(numbers, np.dtype(str(kind)))
    return pa.Array.from_buffers(kind, len(whole), [None, pa.py_buffer(whole)])


def to_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """A column of integers without nulls as int64 [N]; an OverflowError if one is too large for that."""
    whole = np.from_dlpack(column.combine_chunks())
    if whole.dtype == np.uint64 and (whole > _MOST).any():
        raise OverflowError(f"{whole.max()} is too large for int64")
    return whole.astype(np.int64)
