"""A report that follows runs in progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fednoil.errors import UserError
from fednoil.records.files import write_text
from fednoil.records.folder import RunFolder
from fednoil.report.hook import Study
from fednoil.report.html import render
from fednoil.report.results import load_results
from fednoil.report.runs import find

_SECONDS = 2.0  # between two looks


def follow(
    paths: Sequence[Path],
    page: Path,
    title: str,
    study: Study | None = None,
    wait: Callable[[], None] = lambda: time.sleep(_SECONDS),
) -> None:
    """Write the page whenever a run has progressed, until all have ended or failed; waits for runs without a round."""
    before: object = None
    records = all(path.is_file() for path in paths)  # which don't grow
    while True:
        now = _reached(paths)
        over = bool(now or records) and all(ended for *_, ended in now)
        if now != before:
            before = now
            try:
                write_text(page, render(load_results(paths, study), title, watched=not over))
            except UserError:  # no run has a round yet
                if over:
                    raise
        if over:
            return
        wait()


def _reached(paths: Sequence[Path]) -> list[tuple[str, int, bool]]:
    """How far each run has got: its folder, the size of its records, and whether it has ended; () without a run."""
    try:
        folders = list(find([path for path in paths if not path.is_file()]))
    except UserError:  # nothing yet
        return []
    found = []
    for folder in folders:
        file = folder / "rounds.jsonl"
        found.append((str(folder), file.stat().st_size if file.is_file() else 0, _ended(folder)))
    return found


def _ended(folder: Path) -> bool:
    try:
        return (folder / "summary.json").is_file() or RunFolder(folder).diverged()
    except UserError:  # it can't be read, and the report says so
        return True
