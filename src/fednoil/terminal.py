"""Where lines, tables and bars are printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def output(**options: Any) -> Console:
    """Standard output. A pipe or a file gets neither colours nor bars, even where the environment asks for them
    (`FORCE_COLOR`): they would be escape codes in somebody's log."""
    from rich.console import Console

    return Console(force_terminal=sys.stdout.isatty(), **options)
