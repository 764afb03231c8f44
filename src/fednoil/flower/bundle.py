"""The Flower app for `flwr run`: a configuration without code.

The code is each machine's own fednoil, so a node runs only what its operator has installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fednoil.config import Config, to_toml
from fednoil.records.files import write_text

_TEXT = """[project]
name = "fednoil-federation"
version = "1.0.0"
description = "FedNoiL on Flower: configuration only, the code is the installed fednoil"
license = "Apache-2.0"
dependencies = ["fednoil[flower]"]

[tool.flwr.app]
publisher = "fednoil"

[tool.flwr.app.components]
serverapp = "fednoil.flower.server:app"
clientapp = "fednoil.flower.client:app"

[tool.flwr.app.config]
"""


def write_bundle(
    folder: Path,
    config: Config,
    out: Path,
    *,
    resume: bool,
    force: bool,
    command: Sequence[str],
    origin: Mapping[str, Any] | None,
    nodes: int,
) -> None:
    """Write the app for one run into `folder`; `out` is a path on the SuperLink's machine, `command` the user's
    command, `origin` what its configuration came from, and `nodes` how many there are (0: unknown)."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"config": to_toml(config), "out": str(out), "resume": resume, "force": force, "nodes": nodes}
    values |= {"command": json.dumps(list(command)), "origin": json.dumps(origin)}  # Flower's has no lists
    # JSON's strings, booleans and numbers are TOML's; DEL is the one character that only TOML forbids.
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f") for key, value in values.items()
    ]
    write_text(folder / "pyproject.toml", _TEXT + "\n".join(lines) + "\n")
