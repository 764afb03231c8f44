"""The Python API: the names in `fednoil.__all__`, which the command uses too."""

from __future__ import annotations

from fednoil.api.audit import Audit
from fednoil.api.comparison import Comparison, compare
from fednoil.api.run import Run, load
from fednoil.api.running import Interrupted
from fednoil.api.running import run as _run
from fednoil.api.table import Table
from fednoil.api.words import in_python
from fednoil.config import preset_names

__all__ = ["Audit", "Comparison", "Interrupted", "Run", "Table", "compare", "load", "presets", "run"]

run = in_python(_run)


def presets(pattern: str = "") -> list[str]:
    """The names of the presets that contain `pattern`; * stands for anything."""
    from fnmatch import fnmatchcase

    return [name for name in preset_names() if fnmatchcase(name, f"*{pattern}*")]
