"""Tables on the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from textwrap import wrap
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


def show_list(groups: Mapping[str, Sequence[tuple[str, Sequence[str]]]]) -> None:
    """Print names with texts beside them under headings, no wider than the terminal; 80 columns where there is none."""
    names = [name for entries in groups.values() for name, _ in entries]
    indent = max(map(len, names)) + 4
    width = max(Console().width - indent, 20)
    for heading, entries in groups.items():
        print(f"\n{heading}")
        for name, texts in entries:
            first, *rest = (line.replace("\N{NO-BREAK SPACE}", " ") for text in texts for line in wrap(text, width))
            print(f"  {name:<{indent - 4}}  {first}", *(f"{' ' * indent}{line}" for line in rest), sep="\n")


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
