"""New rows of a table for a model that was trained on one."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import fednoil
from fednoil.data.tabular import grid_of
from fednoil.data.vectors import stem_of
from fednoil.errors import UserError
from fednoil.predict import Known, read_vectors


def rows_by_name(given: Any, known: Known) -> np.ndarray | None:
    """The rows of a file, a DataFrame or an Arrow table, by the names of their columns: float32 [N, D]; None for
    arrays, and if the model's columns have no names. Warnings say what is unlike all that the model has seen."""
    if isinstance(given, str | Path):
        return read_vectors(Path(given).expanduser(), known, _doubt)[0]
    named = known.columns and [*known.columns] != [str(k) for k in range(known.count)]
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if not named or not hasattr(given, "columns"):
        return None
    table = _table(given, {stem_of(name) for name in known.columns})
    if not table.num_rows:
        raise UserError("the table has no row; give at least one")
    return known.rows(grid_of(table, "the table"), _doubt)


def _table(given: Any, wanted: set[str]) -> pa.Table:
    """The columns that are wanted, as an Arrow table."""
    arrow = given.to_arrow() if hasattr(given, "to_arrow") else given
    names = list(arrow.column_names if isinstance(arrow, pa.Table) else arrow.columns)
    if twice := next((name for name in names if name in wanted and names.count(name) > 1), None):
        raise UserError(f"the table has two columns '{twice}'; their names must differ")
    found = [name for name in names if name in wanted]
    if isinstance(arrow, pa.Table):
        return arrow.select(found)
    try:
        return pa.Table.from_pandas(arrow[found], preserve_index=False)
    except (pa.ArrowException, ValueError) as error:
        raise UserError(f"the table can't be read: {error}; each column needs values of one kind") from None


def _doubt(line: str) -> None:
    """Warn where the program has called the package."""
    inside = str(Path(fednoil.__file__).parent)
    level = next((k for k, frame in enumerate(inspect.stack()) if not frame.filename.startswith(inside)), 0)
    warnings.warn(line, stacklevel=level + 1)
