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
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
SECONDS = 600  # a mutant that makes its tests hang is killed, too


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
    start = package / mutant.area
    files = start.rglob("*.py") if start.is_dir() else package.glob(f"{mutant.area}*")
    holding = [file for file in files if file.suffix == ".py" and mutant.old in file.read_text()]
    return holding[0] if len(holding) == 1 and holding[0].read_text().count(mutant.old) == 1 else None


def run(copy: Path, tests: Sequence[str]) -> int:
    """The exit status of pytest in a copy of the tree: 0 all pass, 1 some fail, others: they didn't run."""
    env = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", *tests]
    try:
        return subprocess.run(words, cwd=copy, env=env, capture_output=True, timeout=SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        return 1


def verdict(mutant: Mutant, copy: Path) -> str:
    """Killed, survived or stale."""
    file = place(mutant, copy / "src" / "fednoil")
    if file is None:
        return "stale: text not found once"
    text = file.read_text()
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        status = run(copy, mutant.tests)
    finally:
        file.write_text(text)
    return {0: "SURVIVED", 1: "killed"}.get(status, f"stale: pytest ends with {status}")


def copied(folder: Path) -> Path:
    """A copy of what the tests need."""
    for name in ("src", "tests", "docs", "experiments", "benchmarks", "tools"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy2(file, folder)
    return folder


def main() -> int:
    """Try the mutants and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a word of the area, the text or the tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants side by side")
    options = parser.parse_args()
    mutants = [m for m in read(LIST) if options.only in f"{m} {m.tests}"]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: Queue[Path] = Queue()
        for number in range(options.jobs):
            copies.put(copied(Path(folder) / str(number)))
        named = sorted({test for mutant in mutants for test in mutant.tests})
        if run(copy := copies.get(), named):
            print("the tests fail without any mutant: run them first")
            return 1
        copies.put(copy)

        def attempt(mutant: Mutant) -> str:
            copy = copies.get()
            try:
                found = verdict(mutant, copy)
            finally:
                copies.put(copy)
            print(f"{found:8}  {mutant}", flush=True)
            return found

        found = list(pool.map(attempt, mutants))
    killed, survived = found.count("killed"), found.count("SURVIVED")
    print(f"{len(found)} mutants: {killed} killed, {survived} survived, {len(found) - killed - survived} stale")
    return int(killed < len(found))


if __name__ == "__main__":
    sys.exit(main())
