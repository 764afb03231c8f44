"""Every command of the README is run, in order, cut down to one round on tiny data where it trains."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import fednoil
from PIL import Image

import fednoil as package
from fednoil.data import catalogue

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = ("train.rounds=1", "schedule.name=constant", "schedule.epochs=1", "model.width=2", "run.device=cpu")


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    return [body for name, body in found if name == language]


def commands() -> list[list[str]]:
    """The arguments of each `fednoil …` in the README's plain code blocks, in order."""
    found = []
    for block in blocks(""):
        for line in block.splitlines():
            command = line.split("#")[0].strip()
            found += [command.split()[1:]] if command.startswith("fednoil ") else []
    return found


def photos(folder: Path) -> None:
    """The user's own images: two classes, with a test set."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 4)):
        for name in ("cat", "dog"):
            target = folder / split / name
            target.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(target / f"{i}.png")


def test_the_readme_has_commands_and_is_short() -> None:
    assert {args[0] for args in commands()} == {"run", "compare", "audit", "reproduce"}
    assert len(README.splitlines()) < 85


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "nord", "süd"):
        photos(tmp_path / name)
    Image.new("L", (28, 28), 90).save(tmp_path / "shoe.png")
    small = [part for change in SMALL for part in ("--set", change)]
    for demo in ("demo/fedavg", "demo"):  # what `make run` has made
        assert fednoil("run", demo, *small, "--out", f"runs/{demo.replace('/', '-')}", "-q")[0] == 0
    have = {status.name for status in catalogue() if status.found}
    for args in commands():
        if args[0] == "run" and "--resume" not in args:
            if args[1].startswith("paper/") and args[1].split("/")[1] not in have:
                continue
            fewer = ["--set", "partition.samples_per_client=20"] if args[1].startswith("paper/") else []
            args = [*args, *small, *fewer]
        if args[0] == "reproduce":
            args = [*args, "--dry-run"]  # tests/test_reproduce.py runs one
        status, _, err = fednoil(*args)
        assert (status, err) == (0, ""), (args, err)


def test_the_lines_of_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("python")
    small = dict(change.split("=") for change in SMALL)
    run, seen = package.run, []

    def cut_down(source: str, set: dict[str, Any] | None = None, **given: Any) -> Any:
        seen.append(run(source, set={**(set or {}), **small}, **given))
        return seen[-1]

    monkeypatch.setattr(package, "run", cut_down)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert [found.name for found in seen] == ["demo", "demo/fedavg"]
    assert list(tmp_path.iterdir()) == []


def claims() -> list[list[str]]:
    """The rows of docs/claims.md: claim, record, command, test."""
    text = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    return rows[1:]


def test_every_claim_is_made_and_has_a_test() -> None:
    text = " ".join(f"{README} {promises()}".split())
    assert len(claims()) > 10
    for claim, record, command, tests in claims():
        assert claim in text, claim
        for path in re.findall(r"`([^`]+)`", record):
            assert (ROOT / path).is_file(), path
        assert record == "–" or command.startswith("`"), claim
        for name in re.findall(r"`([^`]+)`", tests):
            file, _, function = name.partition("::")
            assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), name
        assert "::" in tests, claim


def promises() -> str:
    """What docs/claims.md says before its table."""
    found, table, _ = (ROOT / "docs/claims.md").read_text(encoding="utf-8").partition("\n\nThe table lists")
    assert table
    return found


def test_every_promise_is_a_claim() -> None:
    bullets = [" ".join(bullet.split()) for bullet in promises().split("\n- ")[1:]]
    assert len(bullets) == 6
    for bullet in bullets:
        assert any(claim in bullet for claim, *_ in claims()), bullet


def test_every_number_of_the_readme_is_in_a_claim() -> None:
    """Of its sentences; tables are compared with their records elsewhere. Versions, addresses and axes are none."""
    text = re.sub(r"^```.*?^```$|^\|[^\n]*$|<!--.*?-->|^#[^\n]*$", "", README, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)|[\[\]*`]", "", " ".join(text.split()))
    text = re.sub(r"arXiv [\d.]+|Python 3\.11|before 1\.0|Apache-2\.0|over 20 rounds", "", text)
    known = [re.sub(r"[*`]", "", claim) for claim, *_ in claims()]
    found = [sentence for sentence in re.split(r"(?<=[.:;]) ", text) if re.search(r"\d", sentence)]
    assert len(found) > 3
    for sentence in found:
        assert any(claim in sentence or sentence.strip(".;:") in claim for claim in known), sentence


def test_make_runs_what_the_readme_says() -> None:
    shown = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line.split("fednoil ", 1)[1].split() for line in shown.splitlines() if "/fednoil " in line]
    assert [line[:2] for line in lines[:2]] == [["run", "demo/fedavg"], ["run", "demo"]]
    assert lines[2] == ["compare", "runs/demo-fedavg", "runs/demo"]
