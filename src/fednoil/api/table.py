"""Rows with named columns: a small table that prints well and converts to pandas or Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from fednoil.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 10  # rows of a long table
_WIDTH = 110  # characters of a line
_CELL = 24


class Table:
    """A table of numbers and strings, with one row per round, label or run.

    `len(table)` counts rows, iterating gives each as a dict, `table["name"]` is a column as a list and `table[0]` a
    row. Unknown values are None.
    """

    def __init__(self, arrow: pa.Table) -> None:
        self._arrow = arrow

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Table:
        """A table of these rows; a missing key is None."""
        names = dict.fromkeys(name for row in rows for name in row)
        return cls(pa.table({name: _column([row.get(name) for row in rows]) for name in names}))

    @property
    def columns(self) -> list[str]:
        """The columns' names."""
        return list(self._arrow.column_names)

    def to_arrow(self) -> pa.Table:
        """As a pyarrow Table."""
        return self._arrow

    def to_pandas(self) -> pd.DataFrame:
        """As a pandas DataFrame."""
        try:
            import pandas as pd  # noqa: F401
        except ImportError:
            raise UserError("to_pandas() needs pandas, which is not installed: pip install pandas") from None
        return self._arrow.to_pandas()

    def to_markdown(self) -> str:
        """As a table in Markdown."""
        rows = [[_cell(value).replace("|", "\\|") for value in row.values()] for row in self]
        return "\n".join(f"| {' | '.join(line)} |" for line in (self.columns, ["---"] * len(self.columns), *rows))

    def __len__(self) -> int:
        return self._arrow.num_rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._arrow.to_pylist()

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: slice) -> Table: ...

    def __getitem__(self, key: str | int | slice) -> list[Any] | dict[str, Any] | Table:
        if isinstance(key, str):
            if key not in self.columns:
                raise KeyError(f"{key}; the columns are {', '.join(self.columns)}")
            return self._arrow.column(key).to_pylist()
        if isinstance(key, slice):
            return Table(self._arrow.take(pa.array(range(len(self))[key], pa.int64())))
        return self._arrow.slice(range(len(self))[key], 1).to_pylist()[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._arrow.equals(other._arrow)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        rows, columns = self._shown(), self.columns
        cells = {name: [name, *("…" if row is None else _cell(row[name], _CELL) for row in rows)] for name in columns}
        widths = {name: max(map(len, texts)) for name, texts in cells.items()}
        shown: list[str] = []
        for name in columns:
            if shown and sum(widths[n] + 2 for n in (*shown, name)) > _WIDTH:
                break
            shown.append(name)
        numeric = {n for n in shown if pa.types.is_integer(k := self._arrow.schema.field(n).type) or _real(k)}
        lines = [
            "  ".join(
                cells[n][place].rjust(widths[n]) if n in numeric else cells[n][place].ljust(widths[n]) for n in shown
            )
            for place in range(len(rows) + 1)
        ]
        count = f"{len(self)} row{'s' * (len(self) != 1)}"
        rest = columns[len(shown) :]
        more = f", {len(rest)} more column{'s' * (len(rest) != 1)}: {', '.join(rest)}" if rest else ""
        return "\n".join([*(line.rstrip() for line in lines), count + more])

    def _repr_html_(self) -> str:
        """For notebooks."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{'…' if row is None else escape(_cell(row[name], _CELL))}</td>" for name in self.columns)
            + "</tr>"
            for row in self._shown()
        )
        count = f"{len(self)} row{'s' * (len(self) != 1)}"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{count}</p>"

    def _shown(self) -> list[dict[str, Any] | None]:
        """The rows to print, with None where some are left out."""
        if len(self) <= _SHOWN:
            return list(self)
        half = _SHOWN // 2
        return [*self[:half], None, *self[len(self) - half :]]


def _column(values: list[Any]) -> pa.Array:
    """A column of values of one type, or of JSON if they have different types."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else json.dumps(value) for value in values])


def _real(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind)


def _cell(value: Any, most: int | None = None) -> str:
    """A value as text of at most `most` characters."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = (f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}") if isinstance(value, float) else str(value)
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"
