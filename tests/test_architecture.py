"""Data flows one way: a module imports only from stages to its left, and true labels reach metrics only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fednoil
from fednoil.labels import Truth

ROOT = Path(fednoil.__file__).parent
STAGES = [
    [
        "errors",
        "files",
        "columns",
        "history",
        "section",
        "kernels",
        "seeds",
        "plugins",
        "tensors",
        "pages",
        "terminal",
        "scale",
    ],
    ["data", "labels"],
    ["partition"],
    ["manifest"],
    ["noise"],
    ["models", "augment"],
    ["learners"],
    ["schedules", "sampling"],
    ["servers"],
    ["executors", "evidence", "estimation", "privacy"],
    ["config"],
    ["setting", "devices"],
    ["experiment"],
    ["measures"],
    ["metrics"],
    ["evaluation"],
    ["rounds"],
    ["records", "findings"],
    ["predict", "features", "runner", "testing"],
    ["reporters"],
    ["audit", "batch"],
    ["flower"],
    ["report"],
    ["figures"],
    ["study", "api", "bench"],
    ["export"],
    ["cli"],
    ["__main__"],
]
PLACE = {name: place for place, names in enumerate(STAGES) for name in names}
FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def imported(path: Path) -> set[str]:
    """The stages of this package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fednoil":
            found |= {alias.name for alias in node.names if alias.name in PLACE}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fednoil."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("fednoil.")}
    return found


def stage_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_left(path: Path) -> None:
    stage = stage_of(path)
    assert stage in PLACE, f"put '{stage}' into the list of stages"
    for other in imported(path):
        assert other == stage or PLACE[other] < PLACE[stage] or PLACE[other] == PLACE[stage] == 0, (
            f"{stage} must not import {other}"
        )


# Everything between a client's samples and its update: it is given tensors and given labels, and nothing else.
TRAINS = ["kernels", "models", "augment", "learners", "schedules", "sampling", "servers", "executors", "evidence"]
# Where true labels are: in the datasets, in the noise that starts from them, in what measures by them.
HOLD_TRUTH = {"data", "labels", "partition", "noise", "manifest", "metrics", "setting", "experiment"}
# The file that keeps them, what measures by them, and the check that results don't depend on them.
OPEN_TRUTH = {"labels", "manifest", "metrics", "audit", "testing"}


@pytest.mark.parametrize("stage", TRAINS)
def test_what_trains_cannot_reach_true_labels(stage: str) -> None:
    paths = [p for p in FILES if stage_of(p) == stage]
    assert paths
    for path in paths:
        assert not imported(path) & HOLD_TRUTH, path
        assert "true_labels" not in path.read_text()
        assert "truth" not in path.read_text().lower()


def test_the_truth_is_opened_for_metrics_alone() -> None:
    users, inside = set(), set()
    for path in FILES:
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
        users |= {stage_of(path)} if "open_truth" in names else set()
        inside |= {stage_of(path)} if "_closed" in names else set()
    assert users <= OPEN_TRUTH
    assert inside == {"labels"}
    assert [name for name in dir(Truth(None)) if not name.startswith("_")] == ["kept", "known", "pooled"]


def test_flower_is_imported_in_its_own_package_alone() -> None:
    """It is an optional extra: everything else works without it."""
    users = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "flwr" for name in names):
                users.add(stage_of(path))
    assert users == {"flower"}


def test_the_command_does_not_load_flower() -> None:
    program = "import sys, fednoil.cli.main; sys.exit('flwr' in sys.modules or 'fednoil.flower' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_core_does_not_know_the_study() -> None:
    """The study of the paper uses the core; of the rest only the command may ask for it."""
    users = {stage_of(path) for path in FILES if "study" in imported(path)}
    assert users <= {"study", "cli"}
    assert "fednoil.study" not in (ROOT / "__init__.py").read_text()


def test_a_run_of_ones_own_does_not_load_the_study(tmp_path: Path) -> None:
    run = ["run", "demo", "--set=train.rounds=1", "--set=partition.samples_per_client=20", "--set=schedule.epochs=1"]
    run += ["--set=model.width=2", "--set=run.device=cpu", "--quiet", f"--out={tmp_path}/run"]
    program = f"""import sys, fednoil
from fednoil.cli.main import app
app({run}, standalone_mode=False)
sys.exit(any(name.startswith('fednoil.study') for name in sys.modules))"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert (tmp_path / "run/summary.json").is_file()


MOST_LINES_OF_A_FILE = 320  # the aim is 300
MOST_LINES_OF_A_FUNCTION = 50


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Its lines without its docstring."""
    first = function.body[0]
    text = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) and first.end_lineno else 0
    return (function.end_lineno or 0) - function.lineno + 1 - text


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    """But for kernels: Triton's have no functions to be split into that cost nothing."""
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES_OF_A_FILE
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {n.name: length(n) for n in functions if length(n) > MOST_LINES_OF_A_FUNCTION}
    assert not long or stage_of(path) == "kernels"
