"""The tool that puts mistakes into the package, on a package of three lines, and the record of its last run."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from studies import script

TOOLS = Path(__file__).parents[1] / "tools"
AREAS = {"learners", "servers", "partition", "noise", "metrics", "rounds", "executors", "audit", "flower", "augment"}
SMALL = {
    "src/fednoil/__init__.py": "",
    "src/fednoil/sums.py": "def double(x):\n    return x + x\n\ndef three():\n    return 3\n",
    "tests/test_sums.py": "from fednoil.sums import double\n\ndef test_double():\n    assert double(3) == 6\n",
    "tests/test_broken.py": "def test_broken():\n    assert False\n",
    "tools/mutants.toml": """
[[group]]
area = "sums"
tests = ["tests/test_sums.py"]
mutants = [["x + x", "x * x"], ["return 3", "return 4"], ["x + x", "2 * x", "the same sum"], ["gone", ""]]
[[group]]
area = "sums"
tests = ["tests/test_broken.py"]
mutants = [["return x", "return 2 - x"]]
""",
}
RUN = "import sys, mutants; mutants.SHARED = ('pytest',); sys.exit(mutants.main())"


def small_package(root: Path) -> None:
    for name, text in SMALL.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copy(TOOLS / "mutants.py", root / "tools")


def call(root: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], cwd=root / "tools", capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_each_verdict_is_found_and_counted(tmp_path: Path) -> None:
    small_package(tmp_path)
    status, said = call(tmp_path, "--done", "verdicts")
    assert status == 1
    for line in (
        r"^stale: tests/test_broken.py::test_broken fails without it +\d+\.\d  sums: return x  =>  return 2 - x$",
        r"^killed +\d+\.\d  sums: x \+ x  =>  x \* x$",
        r"^SURVIVED +\d+\.\d  sums: return 3  =>  return 4$",
        r"^stale: its text is not there exactly once +\d+\.\d  sums: gone  =>  $",
    ):
        assert re.search(line, said, re.M), (line, said)
    rows = list(csv.DictReader((tmp_path / "tools/mutants.csv").read_text().splitlines()))
    counts = {"tried": "4", "killed": "1", "survived": "1", "equivalent": "1"}
    assert [{**counts, "area": a} for a in ("sums", "all")] == [{k: r[k] for k in ("area", *counts)} for r in rows]
    assert (tmp_path / "src/fednoil/sums.py").read_text() == SMALL["src/fednoil/sums.py"]
    # What was killed is not tried again, and a part of the mutants writes no table.
    (tmp_path / "tools/mutants.csv").unlink()
    status, said = call(tmp_path, "--done", "verdicts", "--only", "x + x", "return 3")
    assert "x * x" not in said
    assert "SURVIVED" in said
    assert not (tmp_path / "tools/mutants.csv").exists()


def test_the_record_shows_what_was_aimed_at() -> None:
    """At least 150 mutants over these areas, of which at least 95 % are killed."""
    with (TOOLS / "mutants.csv").open() as file:
        rows = {row["area"]: row for row in csv.DictReader(file)}
    assert rows.keys() >= AREAS
    tried, killed = (sum(int(rows[area][name]) for area in AREAS) for name in ("tried", "killed"))
    assert tried >= 150
    assert killed >= 0.95 * tried
    assert {row["commit"] for row in rows.values()} != {""}


def test_the_record_is_that_of_the_list() -> None:
    """All but a few that were added since the last run."""
    groups = tomllib.loads((TOOLS / "mutants.toml").read_text())["group"]
    with (TOOLS / "mutants.csv").open() as file:
        (whole,) = [row for row in csv.DictReader(file) if row["area"] == "all"]
    count = sum(len(group["mutants"]) for group in groups)
    assert int(whole["tried"]) + int(whole["equivalent"]) >= 0.95 * count


def test_each_mistake_has_its_place() -> None:
    mutants = script(TOOLS / "mutants.py", "mutants_tool")
    listed, package = mutants.read(mutants.LIST), TOOLS.parent / "src/fednoil"
    assert [str(mutant) for mutant in listed if mutants.place(mutant, package) is None] == []


def test_the_tests_that_should_notice_exist() -> None:
    for group in tomllib.loads((TOOLS / "mutants.toml").read_text())["group"]:
        for test in group["tests"]:
            file, _, function = test.partition("::")
            assert f"def {function}" in (TOOLS.parent / file).read_text(encoding="utf-8"), test
