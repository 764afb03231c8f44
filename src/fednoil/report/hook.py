"""What a study adds to a report: where its runs belong, tables with printed values beside ours, sections of its own.

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
    """A value printed elsewhere, in percent, and the name it has beside ours."""

    text: str
    mean: float
    std: float | None
    same: bool  # the same experiment, so that a difference means something
    count: int = 1  # trials that mean and deviation are of


@dataclass(frozen=True)
class Section:
    """A section of its own, in each form that a report has."""

    anchor: str
    title: str
    html: str
    markdown: str
    lines: tuple[str, ...]  # on a terminal


class Table(Protocol):
    """Rows that stand in one table: what its title says, what it shows of them, and in which order."""

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def caption(self) -> str:
        """The title where a table has a number of its own, as in LaTeX."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> Sequence[Row]: ...

    def printed(self, row: Row, metric: str) -> Beside | None:
        """What stands beside a row's value."""
        ...

    def rank_spot(self, setting: str, noise: str) -> tuple[Any, ...]:
        """Where a column stands."""
        ...

    def rank_method(self, method: str) -> int:
        """Where a line stands."""
        ...

    def notes(self) -> Sequence[str]:
        """Sentences below the table."""
        ...


class Study(Protocol):
    """What a report asks of a study."""

    @property
    def cites(self) -> str:
        """Whose values stand beside ours."""
        ...

    def place(self, values: dict[str, Any], origin: dict[str, Any] | None, roster: Roster | None) -> Place | None:
        """The place of a run with this configuration, which came from `origin`; None: it is none of the study's."""
        ...

    def command(self, values: dict[str, Any], conduct: Sequence[str]) -> list[str] | None:
        """The arguments of `fednoil` that make such a run from a preset; None: no preset is near.

        `conduct` lists changes that no preset has and a configuration's hash leaves out, as `run.precision=float32`.
        """
        ...

    def tables(self, results: Results) -> Sequence[Table]:
        """The tables of its rows, which are all rows that have a family."""
        ...

    def sections(self, results: Results) -> Sequence[Section]:
        """What it says of its rows; nothing where there are none."""
        ...
