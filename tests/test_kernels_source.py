"""What can be checked in the kernels' sources without running them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import fednoil.kernels

FILES = sorted(Path(fednoil.kernels.__file__).parent.glob("*.py"))
RECORD = Path(__file__).parents[1] / "benchmarks/results/kernels-h200.json"


def kernels_of(path: Path) -> list[ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [f for f in functions if any("jit" in ast.unparse(d) for d in f.decorator_list)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_argument_has_a_name_that_tritons_launcher_uses_itself(path: Path) -> None:
    """A launch would fail with 'failed to specialize argument of type: dict', on a GPU only."""
    for kernel in kernels_of(path):
        names = {a.arg for a in (*kernel.args.args, *kernel.args.kwonlyargs)}
        assert not names & {"params", "specialization", "options"}, kernel.name


def test_there_are_kernels_to_look_at() -> None:
    assert sum(len(kernels_of(path)) for path in FILES) > 10


@pytest.mark.parametrize("name", fednoil.kernels.KERNELS)
def test_a_kernels_file_has_its_gain_as_measured(name: str) -> None:
    text = next(path for path in FILES if path.stem == name).read_text(encoding="utf-8")
    claim = (ast.get_docstring(ast.parse(text)) or "").partition("Gain end to end")[2]
    times = json.loads(RECORD.read_text(encoding="utf-8"))["ms"].values()
    assert re.findall(r"([\d.]+) ×", claim) == [f"{t[name] / t['all']:.2f}" for t in times if name in t]
