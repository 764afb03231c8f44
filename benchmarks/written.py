"""Writes what a benchmark has measured, with the version and commit that it was measured with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fednoil import __version__
from fednoil.records.environment import commit


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": __version__, "commit": commit(), **found}, indent=1) + "\n")
