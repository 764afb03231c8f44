"""What a study adds to a report: the place of its runs, tables with printed values beside ours, and sections.

A report works without one. The caller passes the study in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fednoil.records.folder import Roster
from fednoil.report.places import Place

if TYPE_CHECKING:
    from fednoil.report.results import Results, Row


@dataclass(frozen=True)
class Beside:
    """A value printed elsewhere, in percent, and its name in our tables."""

    text: str
    mean: float
    std: float | None
    same: bool  # the same experiment, so that a difference is meaningful
    count: int = 1  # trials behind mean and deviation


@dataclass(frozen=True)
class ReportSection:
    """A section of the report, in each of its formats."""

    anchor: str
    title: str
    html: str
    markdown: str
    lines: tuple[str, ...]  # on a terminal


class ReportTable(Protocol):
    """The rows of one table, its title, the metrics it shows, and the order of rows and columns."""

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def caption(self) -> str:
        """The title for formats that number tables themselves, such as LaTeX."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> Sequence[Row]: ...

    def printed(self, row: Row, metric: str) -> Beside | None:
        """The printed value beside a row's value."""
        ...

    def rank_spot(self, setting: str, noise: str) -> tuple[Any, ...]:
        """The order of columns."""
        ...

    def rank_method(self, method: str) -> int:
        """The order of rows."""
        ...

    def notes(self) -> Sequence[str]:
        """Sentences below the table."""
        ...


class Study(Protocol):
    """What a report needs from a study."""

    @property
    def cites(self) -> str:
        """The source of the printed values."""
        ...

    def place(self, values: dict[str, Any], origin: dict[str, Any] | None, roster: Roster | None) -> Place | None:
        """The place of a run with this configuration, made from `origin`; None if it isn't part of the study."""
        ...

    def command(self, values: dict[str, Any], conduct: Sequence[str]) -> list[str] | None:
        """The arguments of `fednoil` that make such a run from a preset; None if no preset is close.

        `conduct` lists changes that are neither in a preset nor in a configuration's hash, such as
        `run.precision=float32`.
        """
        ...

    def tables(self, results: Results) -> Sequence[ReportTable]:
        """The tables of its rows, which are all rows that have a family."""
        ...

    def sections(self, results: Results) -> Sequence[ReportSection]:
        """The study's sections about its rows; none without rows."""
        ...
