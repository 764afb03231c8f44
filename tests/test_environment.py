"""What environment.json says of the code that made a run."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

import fednoil
from fednoil.records import environment as module
from fednoil.records.environment import commit, environment


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit, and the package in it."""
    package = tmp_path / "src" / "fednoil"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    (tmp_path / "README.md").write_text("readme\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    return package


def head(root: Path) -> str:
    words = ["git", "-C", str(root), "rev-parse", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_a_checkout(checkout: Path) -> None:
    root = checkout.parents[1]
    assert commit(checkout) == head(root)
    (root / "README.md").write_text("another\n")
    assert commit(checkout) == head(root)  # no code
    (checkout / "a.py").write_text("a = 2\n")
    assert commit(checkout) == head(root) + "+changed"


def test_an_installed_package_has_no_commit(checkout: Path, tmp_path: Path) -> None:
    """Not even where the environment it is installed in lies in a repository."""
    installed = tmp_path / ".venv" / "lib" / "site-packages" / "fednoil"
    installed.mkdir(parents=True)
    assert commit(installed) is None


def test_without_git_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit(checkout) is None


def test_the_version_is_known_without_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", nothing)
    found = environment(torch.device("cpu"), "float32")
    assert found["packages"] == {"fednoil": fednoil.__version__, **dict.fromkeys(module._PACKAGES)}
    assert found["commit"] == commit()
