"""Running cells: one after another in this process, or side by side in processes of their own.

Whatever happens to a cell, the others continue. A cell that was stopped resumes from its checkpoint the next time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fednoil.batch.cell import Cell
from fednoil.config import to_toml
from fednoil.errors import UserError
from fednoil.experiment import Experiment
from fednoil.files import write_bytes
from fednoil.history import RoundRecord
from fednoil.runner import Silent, run

_GRACE = 60.0  # seconds that a process has to write its checkpoint when it is stopped


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: done now, done before, or failed for a reason."""

    cell: Cell
    status: str  # "done", "done before" or "failed"
    reason: str = ""
    seconds: float = 0.0


class View(Protocol):
    """An observer of a plan's progress; called from several threads."""

    def started(self, cell: Cell) -> None: ...

    def round(self, cell: Cell, record: RoundRecord) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


def cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_here(cells: Sequence[Cell], out: Path, data_dir: Path | None, view: View) -> list[Outcome]:
    """Run the cells one after another in this process."""
    outcomes = []
    for cell in cells:
        view.started(cell)
        began = time.perf_counter()
        reason = ""
        try:
            watcher = Watcher(cell, view)
            run(cell.config, out / cell.folder, watcher, data_dir=data_dir, resume=True, origin=cell.origin)
        except UserError as error:
            reason = str(error)
        except Exception as error:  # a cell's own failure, out of memory for instance, must not end the others
            reason = f"{type(error).__name__}: {error}"
        outcomes.append(outcome_of(cell, reason, began))
        view.ended(outcomes[-1])
    return outcomes


class Watcher(Silent):
    """Passes a run's rounds on to the view of the plan."""

    def __init__(self, cell: Cell, view: View) -> None:
        self.cell, self.view = cell, view

    def start(self, experiment: Experiment, done: list[RoundRecord]) -> None:
        if done:
            self.view.round(self.cell, done[-1])

    def round(self, record: RoundRecord) -> None:
        self.view.round(self.cell, record)


def run_in_processes(cells: Sequence[Cell], out: Path, data_dir: Path | None, view: View, jobs: int) -> list[Outcome]:
    """Run up to `jobs` cells at a time, each in a process of its own; a process that is killed fails its cell only."""
    pool = _Processes(out, data_dir, view, max(1, cores() // jobs))
    with ThreadPoolExecutor(jobs) as threads:
        futures: set[Future[Outcome]] = {threads.submit(pool.run, cell) for cell in cells}
        order = {cell: place for place, cell in enumerate(cells)}
        try:
            waiting = futures
            while waiting:  # with a time limit, so that Ctrl-C is noticed
                _, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
        except BaseException:
            for future in futures:
                future.cancel()
            pool.stop()
            raise
        return sorted((f.result() for f in futures), key=lambda outcome: order[outcome.cell])


class _Processes:
    """The processes that are running now."""

    def __init__(self, out: Path, data_dir: Path | None, view: View, threads: int) -> None:
        self.out, self.data_dir, self.view = out, data_dir, view
        # More threads than cores make every process wait for the others.
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, cell: Cell) -> Outcome:
        began = time.perf_counter()
        with self._lock:
            if self._stopped:
                return outcome_of(cell, "stopped", began)
            try:
                process, failure = self._start(cell), ""
                self._running.add(process)
            except OSError as error:  # a full disk, for instance, which must not end the others
                process, failure = None, f"{type(error).__name__}: {error}"
        self.view.started(cell)
        if process is None:
            return self._ended(cell, failure, began)
        errors: list[str] = []
        with process:
            reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
            reader.start()
            for line in process.stdout or ():
                if record := _round(line):
                    self.view.round(cell, record)
            status = process.wait()
            reader.join()
        with self._lock:
            self._running.discard(process)
        self._plan(cell).unlink(missing_ok=True)
        return self._ended(cell, _reason(status, errors), began)

    def _ended(self, cell: Cell, reason: str, began: float) -> Outcome:
        outcome = outcome_of(cell, reason, began)
        if not self._stopped:  # what was asked to stop has not failed
            self.view.ended(outcome)
        return outcome

    def _plan(self, cell: Cell) -> Path:
        return self.out / f"{cell.folder}.toml"

    def _start(self, cell: Cell) -> subprocess.Popen[str]:
        folder, plan = self.out / cell.folder, self._plan(cell)
        plan.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(plan, to_toml(cell.config).encode())
        command = [sys.executable, "-m", "fednoil", "run", str(plan), "--out", str(folder), "--resume", "--json"]
        if cell.origin is not None:
            command += ["--origin", json.dumps(cell.origin)]
        if self.data_dir is not None:
            command += ["--data-dir", str(self.data_dir)]
        # Nothing is written to its standard input, which ends when this process does, even by kill -9: then it stops.
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([*command, "--tied"], env=self.environment, text=True, bufsize=1, **pipes)

    def stop(self) -> None:
        """Ask every process to write its checkpoint and end."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.terminate()
        until = time.monotonic() + _GRACE
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def _round(line: str) -> RoundRecord | None:
    """The record of a round; None where a user's own learner or server has printed something."""
    try:
        return RoundRecord.from_json(json.loads(line))
    except ValueError:
        return None


def _reason(status: int, errors: Sequence[str]) -> str:
    """Why a process failed, in one line: our own message, or a traceback's last line without CUDA's usual advice."""
    if status == 0:
        return ""
    last = next((line.strip() for line in reversed(errors) if line.strip()), "")
    traceback = next((n for n in range(len(errors), 0, -1) if errors[n - 1].startswith("Traceback ")), 0)
    if traceback and not last.startswith("fednoil: "):
        last = next((line.strip() for line in errors[traceback:] if line.strip() and not line[0].isspace()), "")
    if status < 0:
        memory = " (out of memory?)" if status == -9 else ""
        return f"killed by signal {-status}{memory}" + (f"; its last line: {last}" if last else "")
    return last.removeprefix("fednoil: ") or f"ended with status {status}"


def outcome_of(cell: Cell, reason: str, began: float) -> Outcome:
    return Outcome(cell, "failed" if reason else "done", reason, time.perf_counter() - began)
