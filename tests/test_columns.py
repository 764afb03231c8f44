"""Whole numbers between Arrow and numpy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednoil.columns import to_column, to_numbers

KINDS = (pa.int8(), pa.int32(), pa.int64(), pa.uint16())
NUMBERS = st.lists(st.integers(0, 127), max_size=9)


@given(numbers=NUMBERS, kind=st.sampled_from(KINDS), apart=st.integers(1, 3))
def test_as_pyarrow_has_it(numbers: list[int], kind: pa.DataType, apart: int) -> None:
    """Also of an array with gaps in its memory, and of a column in pieces."""
    spread = np.zeros((len(numbers), apart), np.int64)
    spread[:, 0] = numbers
    column = to_column(spread[:, 0], kind)
    assert column.equals(pa.array(numbers, kind))
    back = to_numbers(pa.chunked_array([column[:2], column[2:]], kind))
    assert back.dtype == np.int64
    assert back.tolist() == numbers


def test_too_large() -> None:
    with pytest.raises(OverflowError, match="9223372036854775808 is too large"):
        to_numbers(pa.chunked_array([pa.array([1, 2**63], pa.uint64())]))
