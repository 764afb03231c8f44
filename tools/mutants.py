"""Would the tests notice? Puts one mistake at a time into a copy of the package and runs the tests that should fail.

    python tools/mutants.py                       # all mutants
    python tools/mutants.py --only krum --jobs 2  # those whose area, text or tests contain a word

The mutants are in `tools/mutants.toml`: `old` text that occurs once in the package, the `new` text in its place, and
the `tests` (files or single tests) of which one must fail. A line says for each whether it was killed or survived, or
that it is stale: its text is not there, occurs more than once, or its tests don't run. The exit status is 1 unless all
were killed.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
SECONDS = 900  # a mutant that makes its tests hang is killed, too
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

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.area}: {old}  =>  {new}"


def read(path: Path) -> list[Mutant]:
    """The mutants of a file: groups with an area and tests, and pairs of texts."""
    groups = tomllib.loads(path.read_text())["group"]
    return [Mutant(g["area"], *pair, tuple(g["tests"])) for g in groups for pair in g["mutants"]]


def place(mutant: Mutant, package: Path) -> Path | None:
    """The one file of the mutant's area that holds its text, once."""
    if not mutant.old:
        return None
    start = package / mutant.area
    files = start.rglob("*.py") if start.is_dir() else package.glob(f"{mutant.area}*")
    holding = [file for file in files if file.suffix == ".py" and mutant.old in file.read_text()]
    return holding[0] if len(holding) == 1 and holding[0].read_text().count(mutant.old) == 1 else None


def run(copy: Path, tests: Sequence[str]) -> None:
    """Run tests in a copy of the tree and end this process with pytest's status: 0 all pass, 1 some fail."""
    os.chdir(copy)
    sys.path.insert(0, str(copy / "src"))
    os.environ["PYTHONPATH"] = str(copy / "src")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import pytest

    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=no", *tests])))


class Trial:
    """A mutant in a copy of the tree, while its tests run."""

    def __init__(self, mutant: Mutant, copy: Path) -> None:
        self.mutant, self.copy, self.began = mutant, copy, time.monotonic()
        self.file, self.process = place(mutant, copy / "src" / "fednoil"), None
        if self.file is not None:
            self.text = self.file.read_text()
            self.file.write_text(self.text.replace(mutant.old, mutant.new))
        if self.file is not None or not mutant.old:
            self.process = FORK.Process(target=run, args=(copy, mutant.tests))
            self.process.start()

    def verdict(self) -> str | None:
        """Killed, survived or stale; None: not known yet."""
        if self.process is None:
            return "stale: its text is not there exactly once"
        if self.process.is_alive():
            if time.monotonic() - self.began < SECONDS:
                return None
            self.process.kill()
            self.process.join()
        if self.file is not None:
            self.file.write_text(self.text)
        status = self.process.exitcode
        return {0: "SURVIVED", 1: "killed", -9: "killed"}.get(status or 0, f"stale: pytest ends with {status}")


def copied(folder: Path) -> Path:
    """A copy of what the tests need."""
    for name in ("src", "tests", "docs", "experiments", "benchmarks", "tools"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy2(file, folder)
    return folder


def tried(mutants: Sequence[Mutant], copies: Sequence[Path]) -> Iterator[tuple[Mutant, str]]:
    """Try mutants, as many at a time as there are copies; each with its verdict when that is known."""
    waiting, free, running = list(reversed(mutants)), list(copies), []
    while waiting or running:
        while waiting and free:
            running.append(Trial(waiting.pop(), free.pop()))
        time.sleep(0.05)
        for trial in list(running):
            if verdict := trial.verdict():
                running.remove(trial)
                free.append(trial.copy)
                yield trial.mutant, verdict


def main() -> int:
    """Try the mutants and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="words, one of which is in the area, text or tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants side by side")
    options = parser.parse_args()
    mutants = [m for m in read(LIST) if any(word in f"{m} {m.tests}" for word in options.only)]
    for name in SHARED:
        importlib.import_module(name)
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        copies = [copied(Path(folder) / str(number)) for number in range(options.jobs)]
        # Without any mistake all tests must pass, or nothing is shown by one that fails.
        sound = {m.tests: v for m, v in tried([Mutant("", "", "", t) for t in {m.tests for m in mutants}], copies)}
        broken = [tests for tests, verdict in sound.items() if verdict != "SURVIVED"]
        for tests in broken:
            print(f"fails without any mutant, and is left out: {' '.join(tests)}", flush=True)
        found = ["stale"] * sum(m.tests in broken for m in mutants)
        for mutant, verdict in tried([m for m in mutants if m.tests not in broken], copies):
            print(f"{verdict:8}  {mutant}", flush=True)
            found.append(verdict)
    killed, survived = found.count("killed"), found.count("SURVIVED")
    print(f"{len(found)} mutants: {killed} killed, {survived} survived, {len(found) - killed - survived} stale")
    return int(killed < len(found))


if __name__ == "__main__":
    sys.exit(main())
