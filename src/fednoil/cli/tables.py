"""Tables on the terminal."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show(rows: list[dict[str, Any]], columns: dict[str, str], title: str, as_json: bool) -> None:
    """Print rows as a table (`columns`: key -> heading), or all of them as JSON."""
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    console = Console()
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    numeric = {key for key in columns if rows and all(isinstance(row.get(key), int | float) for row in rows)}
    for key, heading in columns.items():
        number, first = key in numeric, key == next(iter(columns))
        table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number or first)
    for row in rows:
        # As text: a file's or class's name in brackets is no markup.
        table.add_row(*(Text(cell(row.get(key))) for key in columns))
    console.print(table)


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
