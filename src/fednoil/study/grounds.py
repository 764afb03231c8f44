"""The rows that claims and figures compare: by setting, and by the paper's methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fednoil.report.results import Results, Row, grouped
from fednoil.study.places import key_of


class Grounds:
    """Results by what may be compared: setting, changes to methods, and how runs were carried out."""

    def __init__(self, results: Results) -> None:
        self._rows = [row for row in results.rows if row.place.family]
        self._by_key = {row.runs[0].key: row for row in self._rows}
        self._by_name = {(*_ground(row), row.place.method): row for row in self._rows}

    def __iter__(self) -> Iterator[Row]:
        """One row of each setting, to find the others with."""
        return iter([rows[0] for _, rows in grouped(self._rows, _ground)])

    def find(self, beside: Row, method: str) -> Row | None:
        """The row of one of the paper's methods in the setting of another row, with the same conduct and changes."""
        place = beside.place
        if place.method_changes:
            return self._by_name.get((*_ground(beside), method))
        rounds = beside.runs[0].values["train"]["rounds"]
        return self._by_key.get((place.where, key_of(place, method, rounds), beside.conduct))


def _ground(row: Row) -> tuple[Any, ...]:
    return row.place.where, row.place.method_changes, row.conduct
