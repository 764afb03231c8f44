"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("fednoil", "torch", "numpy", "pydantic", "pyarrow", "pillow", "safetensors")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _command() -> list[str]:
    """How this process was called; a process that Flower started has a secret among its arguments."""
    return [] if "flwr" in Path(sys.argv[0]).name else ["fednoil", *sys.argv[1:]]


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
