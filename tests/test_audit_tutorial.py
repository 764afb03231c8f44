"""The tutorial of docs/audit.md, every command and program of its numbered parts, in order."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import fednoil, refused

DOCS = Path(__file__).parents[1] / "docs"


FEWER = ("partition.samples_per_client=100", "train.rounds=3", "schedule.epochs=12")


@pytest.mark.parametrize("fewer", [FEWER, pytest.param((), marks=pytest.mark.slow)], ids=["short", "whole"])
def test_the_tutorial(
    fewer: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands, or (`fewer`) with a run that takes a tenth of the time and learns less."""
    monkeypatch.chdir(tmp_path)
    numbered = "".join(re.findall(r"^## \d\. .*?(?=^## |\Z)", (DOCS / "audit.md").read_text(), re.M | re.S))
    blocks = re.findall(r"```(\w*)\n(.*?)```", numbered, re.S)
    assert [language for language, _ in blocks] == ["", "", "python", "", "python", ""]
    for language, body in blocks:
        if language == "python":
            exec(compile(body, "docs/audit.md", "exec"), {})
        else:
            command, *words = shlex.split(body)
            assert command == "fednoil"
            status, _, err = fednoil(
                *words,
                *(["--device", "cpu", "-q", *(f"--set={change}" for change in fewer)] if words[0] == "run" else []),
            )
            assert status == 0, err
    assert "hospital 3: look at" in capsys.readouterr().out
    summary = json.loads(Path("runs/hospitals/audit/summary.json").read_text())
    assert summary["overall"]["quality"]["auroc"] > (0.6 if fewer else 0.9)
    folded = json.loads(Path("runs/hospitals/audit-folds-5/summary.json").read_text())
    assert folded["folds"] == 5
    clinic = json.loads(Path("clinic-audit/summary.json").read_text())
    assert {reason for _, reason in clinic["clients"][0]["skipped"]} == {"is of a class that the model doesn't know"}
    model = "runs/hospitals/model.safetensors"
    assert "class 'handbags'" in refused("audit", "--data", "folder:clinic", "--model", model, "--out", "again")
