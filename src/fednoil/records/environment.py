"""Where and with what a run was made, and other notes in environment.json."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fednoil import __version__
from fednoil.config.axes import own_code
from fednoil.config.schema import Config
from fednoil.errors import UserError
from fednoil.executors.base import Executor
from fednoil.history import RoundRecord
from fednoil.plugins import source_digest
from fednoil.records.files import read_json
from fednoil.records.folder import RunFolder

_PACKAGES = ("torch", "numpy", "pydantic", "pyarrow", "pillow", "safetensors")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the checkout that this package is run from, with `+changed` where its code differs from that; None
    where it is installed, or git can't be asked."""
    root = package.parents[1]
    if package.parent.name != "src" or not (root / ".git").exists():
        return None
    ask = ["git", "-c", f"safe.directory={root}", "-C", str(root)]  # whoever owns the checkout
    try:
        found = _output([*ask, "rev-parse", "HEAD"])
        changed = _output([*ask, "status", "--porcelain", "--", str(package)])
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{found}+changed" if changed else found


def _output(words: Sequence[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _command() -> list[str]:
    """How this process was called; only the name of a program that isn't the command, because its arguments may hold
    secrets, as Flower's do."""
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
    """Versions, hardware and command of this process, and its precision; `command` if another process has asked for the
    run."""
    return {
        "started": now(),
        "command": _command() if command is None else list(command),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": commit(),
        "packages": {
            "fednoil": __version__,  # also where it isn't installed
            **{name: package_version(name) for name in (*_PACKAGES, *more_packages)},
        },
        "device": _name(device),
        "precision": precision,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _name(device: torch.device) -> str:
    return {"cuda": torch.cuda.get_device_name, "mps": lambda _: "Apple GPU"}.get(device.type, str)(device)


def own_files(config: Config) -> dict[str, str]:
    """Digests of the files with the user's own code, by the import path that names it."""
    named = own_code(config.model_dump(mode="json")).values()
    return {name: digest for name in named if (digest := source_digest(name)) is not None}


def recorded_code(folder: Path) -> dict[str, str]:
    """What `own_files` was when the run in a folder began, as far as it is recorded."""
    try:
        return dict(read_json(folder / "environment.json").get("own_files", {}))
    except (UserError, AttributeError, TypeError, ValueError):
        return {}


def changed_code(folder: Path, config: Config) -> str | None:
    """The import path of own code that is no longer what the run in a folder began with."""
    now = own_files(config)
    return differing_code([recorded_code(folder), now]) if now else None


def differing_code(codes: Iterable[Mapping[str, str]]) -> str | None:
    """The import path of own code that isn't the same in all of these digests, as far as they have it."""
    first: dict[str, str] = {}
    return next((n for code in codes for n, digest in code.items() if first.setdefault(n, digest) != digest), None)


def note_resumption(folder: RunFolder, after: int, present: dict[str, Any]) -> None:
    """Add a line to environment.json; if the file is lost or damaged, it is started again and nothing stops."""
    try:
        past = read_json(folder.path / "environment.json")
        known = {**past, "resumed": list(past.get("resumed", []))}
    except (UserError, TypeError, AttributeError):
        known = {**present, "resumed": []}
    made_with = {"precision": present["precision"], "version": __version__, "commit": present.get("commit")}
    if changed := present.get("origin", {}).get("set"):
        made_with["set"] = changed
    known["resumed"].append({"at": now(), "after_round": after, **made_with})
    folder.write_environment(known)


def slower_noted(folder: RunFolder, executor: Executor) -> Callable[[RoundRecord], None]:
    """A watcher that records once what makes the run slower, for anyone who compares times."""
    noted: str | None = None

    def watch(record: RoundRecord) -> None:
        nonlocal noted
        if executor.slower != noted:
            noted = executor.slower
            note(folder, slower={"round": record.round, "reason": noted})

    return watch


def note(folder: RunFolder, **more: dict[str, Any]) -> None:
    """Add to environment.json; if that fails, the run's own outcome is still what gets reported."""
    with contextlib.suppress(UserError, OSError, TypeError):
        known = read_json(folder.path / "environment.json")
        folder.write_environment({**known, **more})
