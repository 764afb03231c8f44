"""Would the tests notice? Puts one mistake at a time into a copy of the package and runs the tests that should fail.

    python tools/mutants.py                       # all mutants; the table of areas goes to tools/mutants.csv
    python tools/mutants.py --only krum --jobs 2  # those whose area, text or tests contain a word; no table
    python tools/mutants.py --done runs/mutants   # verdicts are kept there; what it lists as killed isn't tried again

The mutants are in `tools/mutants.toml`: `old` text that occurs once in the package, the `new` text in its place, and
the `tests` (files or single tests) of which one must fail; tests stop at the first that does. A mutant that changes
nothing anybody could see has the reason as its third text: it is equivalent, and not tried. A line says for each other
whether it was killed or survived, or that it is stale: its text is not there, occurs more than once, its tests don't
run, or the one that fails does so without the mistake, too. The exit status is 1 unless all were killed.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
TABLE = ROOT / "tools" / "mutants.csv"
SECONDS = 300  # a mutant that makes its tests hang is killed, too
FAILED = ".failed"  # file of a copy that names the test that has failed there
# Imported once, before the processes that run the tests are forked: that takes longer than most of the tests.
SHARED = (
    "torch",
    "pytest",
    "hypothesis",
    "pydantic",
    "pyarrow.parquet",
    "safetensors.torch",
    "scipy.optimize",
    "flwr.app",
)
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Mutant:
    """One mistake. `area` is a folder or module of the package, in which `old` occurs once."""

    area: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""  # why no test could notice it

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.area}: {old}  =>  {new}"


def read(path: Path) -> list[Mutant]:
    """The mutants of a file: groups with an area and tests, and old and new texts."""
    groups = tomllib.loads(path.read_text())["group"]
    return [Mutant(g["area"], m[0], m[1], tuple(g["tests"]), "".join(m[2:])) for g in groups for m in g["mutants"]]


def place(mutant: Mutant, package: Path) -> Path | None:
    """The one file of the mutant's area that holds its text, once."""
    start = package / mutant.area
    files = start.rglob("*.py") if start.is_dir() else package.glob(f"{mutant.area}*")
    holding = [file for file in files if file.suffix == ".py" and mutant.old in file.read_text()]
    return holding[0] if len(holding) == 1 and holding[0].read_text().count(mutant.old) == 1 else None


class _FirstFailure:
    """A plugin of pytest that writes down which test fails."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.file.write_text(report.nodeid)


def run(copy: Path, tests: Sequence[str]) -> None:
    """Run tests in a copy of the tree and end this process with pytest's status: 0 all pass, 1 some fail."""
    os.chdir(copy)
    sys.path.insert(0, str(copy / "src"))
    os.environ["PYTHONPATH"] = str(copy / "src")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=no"]
    os._exit(int(pytest.main([*options, *tests], plugins=[_FirstFailure(copy / FAILED)])))


class Trial:
    """A mutant in a copy of the tree, while its tests run; then the one that failed runs without the mistake, unless it
    is among those that are known to pass: `sound`."""

    def __init__(self, mutant: Mutant, copy: Path, sound: set[str]) -> None:
        self.mutant, self.copy, self.sound, self.began = mutant, copy, sound, time.monotonic()
        self.file, self.process, self.failed = place(mutant, copy / "src" / "fednoil"), None, ""
        if self.file is not None:
            self.text = self.file.read_text()
            self.file.write_text(self.text.replace(mutant.old, mutant.new))
            self._start(mutant.tests)

    def _start(self, tests: Sequence[str]) -> None:
        self.process = FORK.Process(target=run, args=(self.copy, tests))
        self.process.start()

    def verdict(self) -> str | None:
        """Killed, survived or stale; None: not known yet."""
        if self.file is None or self.process is None:
            return "stale: its text is not there exactly once"
        if self.process.is_alive():
            if time.monotonic() - self.began < SECONDS:
                return None
            self.process.kill()
            self.process.join()
        status = self.process.exitcode
        if self.failed:
            if status == 0:
                self.sound.add(self.failed)
            return "killed" if status == 0 else f"stale: {self.failed} fails without it"
        self.file.write_text(self.text)
        if status == 1:
            self.failed = (self.copy / FAILED).read_text()
            if self.failed in self.sound:
                return "killed"
            self._start([self.failed])
            return None
        return {0: "SURVIVED", -9: "killed"}.get(status or 0, f"stale: pytest ends with {status}")


def copied(folder: Path) -> Path:
    """A copy of what the tests need."""
    for name in ("src", "tests", "docs", "experiments", "benchmarks", "tools"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy2(file, folder)
    return folder


def tried(mutants: Sequence[Mutant], copies: Sequence[Path]) -> Iterator[tuple[Mutant, str, float]]:
    """Try mutants, as many at a time as there are copies; each with its verdict and seconds when those are known."""
    waiting, free, running, sound = list(reversed(mutants)), list(copies), [], set[str]()
    while waiting or running:
        while waiting and free:
            running.append(Trial(waiting.pop(), free.pop(), sound))
        time.sleep(0.05)
        for trial in list(running):
            if verdict := trial.verdict():
                running.remove(trial)
                free.append(trial.copy)
                yield trial.mutant, verdict, time.monotonic() - trial.began


class Verdict(NamedTuple):
    """What became of a mutant, and at which commit."""

    mutant: Mutant
    word: str
    commit: str


def killed_before(path: Path | None) -> dict[str, str]:
    """The mutants that a file of verdicts lists as killed, each with the commit at which it was."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    return {line.split("\t")[3]: line.split("\t")[2] for line in lines if line.startswith("killed")}


def table(verdicts: Sequence[Verdict]) -> list[list[str | int]]:
    """Area, tried, killed, survived, equivalent, and commits; a stale mutant counts as tried. The last row is the
    sum."""
    areas: dict[str, list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda v: v.mutant.area.split("/")[0]):
        areas.setdefault(verdict.mutant.area.split("/")[0], []).append(verdict)
    rows: list[list[str | int]] = []
    for name, found in (areas | {"all": list(verdicts)}).items():
        words = [verdict.word for verdict in found]
        same, killed, survived = (words.count(word) for word in ("equivalent", "killed", "SURVIVED"))
        commits = " ".join(sorted({verdict.commit for verdict in found} - {""}))
        rows.append([name, len(found) - same, killed, survived, same, commits])
    return rows


def commit() -> str:
    """The last commit of the package or its tests, with + if they were changed since; empty without git."""

    def ask(*words: str) -> str:
        git = ["git", "-C", str(ROOT), *words, "--", "src", "tests"]
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()

    return ask("log", "-1", "--abbrev=12", "--format=%h") + ("+" if ask("status", "--porcelain") else "")


def trials(mutants: Sequence[Mutant], jobs: int, done: Path | None) -> Iterator[Verdict]:
    """Each mutant's verdict; a line is printed, and added to `done`, as soon as it is known."""
    before, now = killed_before(done), commit()
    yield from (Verdict(m, "killed", before[str(m)]) for m in mutants if str(m) in before)
    mutants = [m for m in mutants if str(m) not in before]
    with tempfile.TemporaryDirectory() as folder:
        copies = [copied(Path(folder) / str(number)) for number in range(jobs)]
        for mutant, verdict, seconds in tried(mutants, copies):
            print(f"{verdict:8}  {seconds:5.1f}  {mutant}", flush=True)
            if done is not None:
                with done.open("a") as file:
                    file.write(f"{verdict}\t{seconds:.1f}\t{now}\t{mutant}\n")
            yield Verdict(mutant, verdict, now)


def main() -> int:
    """Try the mutants, print a line for each and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="words, one of which is in the area, text or tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants side by side")
    parser.add_argument("--done", type=Path, help="file of verdicts, to stop and go on")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in SHARED:
        importlib.import_module(name)
    sys.dont_write_bytecode = True
    mutants = [m for m in read(LIST) if any(word in f"{m} {m.tests}" for word in options.only or [""])]
    verdicts = [Verdict(m, "equivalent", "") for m in mutants if m.equivalent]
    verdicts += trials([m for m in mutants if not m.equivalent], options.jobs, options.done)
    rows = [["area", "tried", "killed", "survived", "equivalent", "commit"], *table(verdicts)]
    for row in rows:
        print("{:12} {:>6} {:>7} {:>9} {:>11}  {}".format(*row))
    if not options.only:
        with TABLE.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    return int(any(verdict.word not in ("killed", "equivalent") for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
