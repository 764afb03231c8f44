"""New rows of a table for a model that was trained on one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fednoil.data.tabular import grid_of
from fednoil.predict import Known, read_vectors


def rows_by_name(given: Any, known: Known) -> np.ndarray | None:
    """The rows of a file, a DataFrame or an Arrow table, by the names of their columns: float32 [N, D]; None for
    arrays, and if the model's columns have no names. Warnings say what is unlike all that the model has seen."""
    if isinstance(given, str | Path):
        return read_vectors(Path(given).expanduser(), known, _doubt)[0]
    named = known.columns and [*known.columns] != [str(k) for k in range(known.count)]
    if not named or not hasattr(given, "columns"):
        return None
    arrow = given.to_arrow() if hasattr(given, "to_arrow") else given
    table = arrow if isinstance(arrow, pa.Table) else pa.Table.from_pandas(arrow, preserve_index=False)
    return known.rows(grid_of(table, "the table"), _doubt)


def _doubt(line: str) -> None:
    warnings.warn(line, stacklevel=6)  # where `predict` was called
