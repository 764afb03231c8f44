"""What the paper's figures share: their runs, file names, and curves of rows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from fednoil.figures.drawing import Line, draw_lines
from fednoil.report.results import Results, Row
from fednoil.study.goals import Goal
from fednoil.study.grounds import Grounds
from fednoil.study.small import shrink_schedule

R_MIN = (10, 20, 40, 80)
ACCURACY = "test accuracy, %"


class Figure(ABC):
    """One figure: the cells it needs, its numbers and its picture."""

    name: ClassVar[str]
    goal: ClassVar[Goal]

    @abstractmethod
    def make(self, results: Results | None, folder: Path, rounds: int, small: bool) -> list[Path]:
        """Draw what the results allow, or a schedule over `rounds` rounds; returns the files."""


class RunFigure(Figure):
    """A figure of runs: one picture for each setting that has the runs it needs."""

    @abstractmethod
    def draw(self, grounds: Grounds, first: Row, title: str, out: Path) -> list[Path]:
        """Draw the setting of a row, with `title` as the second line; returns the files, none if runs are missing."""

    def make(self, results: Results | None, folder: Path, rounds: int = 0, small: bool = False) -> list[Path]:
        if results is None:
            return []
        files, grounds = [], Grounds(results)
        for first in grounds:
            words = (self.name, *first.place.where, *first.place.method_changes, *first.own_conduct)
            name = re.sub(r"[^\w-]+", "-", "-".join(words)).strip("-")
            where = ", ".join((first.place.title, *first.place.method_changes, *first.own_conduct))
            files += self.draw(grounds, first, where, folder / name)
        return files


class LineFigure(RunFigure):
    """A figure of at least two lines."""

    @abstractmethod
    def lines(self, grounds: Grounds, first: Row) -> list[Line]:
        """The lines for the setting of a row."""

    @abstractmethod
    def title(self, lines: Sequence[Line]) -> str:
        """The first line of the title."""

    @abstractmethod
    def axes(self, panel: str) -> tuple[str, str]:
        """The labels of a panel's x and y axes."""

    def draw(self, grounds: Grounds, first: Row, title: str, out: Path) -> list[Path]:
        lines = self.lines(grounds, first)
        if len({line.name for line in lines}) < 2:
            return []
        labels = {line.panel: self.axes(line.panel) for line in lines}
        return draw_lines(lines, f"{self.title(lines)}{shades(lines)}\n{title}", labels, out)


def shades(lines: Sequence[Line]) -> str:
    """What the shaded areas mean, if there are any."""
    fewest, most = min(line.seeds for line in lines), max(line.seeds for line in lines)
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f" (mean and range of {count} seeds)" if most > 1 else ""


def shown_r_min(r_min: int, small: bool) -> int:
    """The r_min of the runs: the small scale has smaller values in place of the paper's."""
    return int(shrink_schedule({"r_min": r_min})["r_min"]) if small else r_min


def stacked(row: Row, key: str) -> np.ndarray:
    """A curve of all seeds: [seeds, common rounds]."""
    return np.array([run.curves[key][: row.rounds] for run in row.runs])


def line_of(row: Row, key: str, over: str, panel: str, name: str, like: str = "", dashed: bool = False) -> Line:
    """The mean over seeds of a curve, and its range, by round or by another curve."""
    values = stacked(row, key)
    name += f", {row.progress}" if row.progress else ""
    x = np.arange(1.0, values.shape[1] + 1) if over == "round" else stacked(row, over).mean(0)
    return Line(panel, name, x, values.mean(0), values.min(0), values.max(0), len(row.runs), like, dashed)
