"""The progress of many runs: bars on a terminal, one line per finished run elsewhere, or nothing."""

from __future__ import annotations

import threading
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fednoil.batch.cell import Cell
from fednoil.batch.workers import Outcome
from fednoil.findings import lost_classes
from fednoil.history import ACCURACY, RoundRecord
from fednoil.records.folder import RunFolder
from fednoil.reporters import alarms


class PlanLines:
    """One line for each run that ends (`quiet`: none)."""

    def __init__(self, console: Console, out: Path, total: int, quiet: bool = False) -> None:
        self.console, self.out, self.total, self.quiet = console, out, total, quiet
        self.ended_so_far = 0
        self._lock = threading.Lock()

    def __enter__(self) -> PlanLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def started(self, cell: Cell) -> None:
        pass

    def round(self, cell: Cell, record: RoundRecord) -> None:
        with self._lock:
            for line in () if self.quiet else alarms(record):
                self._print(f"{cell.title}: {line}")

    def ended(self, outcome: Outcome) -> None:
        with self._lock:
            self.ended_so_far += 1
            if not self.quiet:
                self._print(f"[{self.ended_so_far}/{self.total}] {outcome.cell.title}: {self._result(outcome)}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _result(self, outcome: Outcome) -> str:
        if outcome.reason:
            return f"failed: {outcome.reason}"
        folder = self.out / outcome.cell.folder
        summary = RunFolder(folder).summary()
        lost = lost_classes(summary, outcome.cell.config.learner.lost_class_advice())
        final = summary["final_accuracy"]
        said = f"{summary.get('measure', ACCURACY)} not known" if final is None else f"{final:.2f} %"
        return "; ".join(filter(None, [f"{said} in {outcome.seconds:.0f} s", lost]))


class PlanBars(PlanLines):
    """A bar for the plan and one for each run in progress; finished runs are printed above."""

    def __init__(self, console: Console, out: Path, total: int) -> None:
        super().__init__(console, out, total)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        self.progress = Progress(*columns, *times, console=console)
        self._all = self.progress.add_task("runs", total=total, note="")
        self._tasks: dict[Cell, TaskID] = {}

    def __enter__(self) -> PlanBars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def started(self, cell: Cell) -> None:
        if cell not in self._tasks:  # a run that couldn't stay with others starts twice
            self._tasks[cell] = self.progress.add_task(cell.short, total=cell.config.train.rounds, note="")

    def round(self, cell: Cell, record: RoundRecord) -> None:
        super().round(cell, record)
        note = "" if record.test_accuracy is None else f"{record.test_accuracy:.1f} %"
        self.progress.update(self._tasks[cell], completed=record.round, note=note)

    def ended(self, outcome: Outcome) -> None:
        super().ended(outcome)
        if outcome.cell in self._tasks:  # a cluster doesn't say when a run starts
            self.progress.remove_task(self._tasks.pop(outcome.cell))
        self.progress.advance(self._all)

    def _print(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False)
