"""The page "Your own model, learner or server" works as written."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import fednoil
from PIL import Image

from fednoil.config import read_toml

PAGE = (Path(__file__).parents[1] / "docs" / "own.md").read_text(encoding="utf-8")
SMALL = ("train.rounds=2", "schedule.name=constant", "schedule.epochs=1", "run.device=cpu")


def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Image.new("L", (28, 28), 90).save("shoe.png")
    sources = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [name for name, _ in sources] == ["my_model.py", "my_learner.py", "my_server.py", "test_my_methods.py"]
    for name, text in sources:
        Path(name).write_text(text)
    tests = dict(sources)["test_my_methods.py"]
    assert "pytest test_my_methods.py" in PAGE
    names: dict[str, Any] = {}
    exec(compile(tests, "test_my_methods.py", "exec"), names)
    checks = [value for name, value in names.items() if name.startswith("test_")]
    assert len(checks) == 2
    for check in checks:
        check()
    commands = re.findall(r"^fednoil .*$", PAGE, flags=re.MULTILINE)
    assert len(commands) == 4
    for line in commands:
        args = line.split()[1:]
        if args[0] == "run":
            width = [] if "model.name" in line else ["--set", "model.width=2"]
            args += [part for change in SMALL for part in ("--set", change)] + width + ["--force"]
        status, _, err = fednoil(*args)
        assert (status, err) == (0, ""), line
    learner = read_toml(Path("runs/demo-fedavg/config.toml"))["learner"]
    assert learner["name"] == "my_learner:SymmetricCrossEntropy"
    assert learner["reverse"] == 0.5
    assert fednoil("run", "--resume", "--out", "runs/demo-fedavg", "-q")[0] == 0
