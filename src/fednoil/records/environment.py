"""Where and with what a run was made, and what else is noted of it in environment.json."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fednoil.errors import UserError
from fednoil.executors.base import Executor
from fednoil.history import RoundRecord
from fednoil.records.files import read_json
from fednoil.records.folder import RunFolder

_PACKAGES = ("fednoil", "torch", "numpy", "pydantic", "pyarrow", "pillow", "safetensors")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _command() -> list[str]:
    """How this process was called; of a program that isn't the command only its name, as its arguments may hold
    secrets: Flower's do."""
    program = Path(sys.argv[0])
    if "flwr" in program.name:
        return []
    is_command = program.stem == "fednoil" or program.parts[-2:] == ("fednoil", "__main__.py")
    return ["fednoil", *sys.argv[1:]] if is_command else [program.name]


def environment(
    device: torch.device,
    precision: str,
    command: Sequence[str] | None = None,
    more_packages: Sequence[str] = (),
) -> dict[str, Any]:
    """Versions, hardware and command of this process, and what it computes in; `command` where another process has
    asked for the run."""
    return {
        "started": now(),
        "command": _command() if command is None else list(command),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: package_version(name) for name in (*_PACKAGES, *more_packages)},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "precision": precision,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def note_resumption(folder: RunFolder, after: int, present: dict[str, Any]) -> None:
    """Add a line to environment.json; a lost or damaged one says less and stops nobody."""
    try:
        past = read_json(folder.path / "environment.json")
        known = {**past, "resumed": list(past.get("resumed", []))}
    except (UserError, TypeError, AttributeError):
        known = {**present, "resumed": []}
    known["resumed"].append({"at": now(), "after_round": after, "precision": present["precision"]})
    folder.write_environment(known)


def slower_noted(folder: RunFolder, executor: Executor) -> Callable[[RoundRecord], None]:
    """A watcher that writes down once what makes the run slower, for whoever compares times."""
    noted: str | None = None

    def watch(record: RoundRecord) -> None:
        nonlocal noted
        if executor.slower != noted:
            noted = executor.slower
            note(folder, slower={"round": record.round, "reason": noted})

    return watch


def note(folder: RunFolder, **more: dict[str, Any]) -> None:
    """Add to environment.json; if that fails, what goes on in the run itself is still what is to be told."""
    with contextlib.suppress(UserError, OSError, TypeError):
        known = read_json(folder.path / "environment.json")
        folder.write_environment({**known, **more})
