"""Sources of samples that are vectors, and the one of tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from fednoil.data.base import PathSource
from fednoil.data.choice import chosen
from fednoil.data.decoded import Decoded, Files
from fednoil.data.raw import Listing, Raw
from fednoil.data.tabular import TableCopy, doubtful_columns, encoded, read_grid, rows_of
from fednoil.data.vectors import decode_rows
from fednoil.errors import UserError


class VectorSource(PathSource):
    """Samples that are vectors, in one file."""

    takes = "FILE"
    wanted: Sequence[str] = ()  # the columns of the model that is to judge the rows; none: all
    cached = False  # reading a table again takes about as long as reading a copy

    @abstractmethod
    def listing(self) -> Listing:
        """All rows; `Raw.columns` names their columns."""

    def find(self, path: Path) -> Files:
        file = chosen(path)[0]
        if not file.is_file():
            raise UserError(f"{self.config.name} is not a file; it needs {self.how}")
        return Files(path, (file,), self.decode)

    def decode(self) -> Decoded:
        return decode_rows(self.listing())

    def labelled(self) -> Raw:
        return self.listing().train

    def clients(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.listing().train.sites or ()))


class TableSource(VectorSource):
    how = "a CSV or parquet file with the column label, columns of numbers and categories, and maybe site and split"
    description = "your own table"
    rewrites = TableCopy

    def listing(self) -> Listing:
        grid = read_grid(self.path, self.config.name)
        values, names = encoded(grid, self.wanted)
        return rows_of(grid, values, names, [] if self.wanted else doubtful_columns(grid, values, names))
