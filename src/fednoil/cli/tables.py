"""Tables on the terminal."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from textwrap import wrap
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fednoil.terminal import output

LEAST = 18  # characters of a text column


def show(rows: list[dict[str, Any]], columns: dict[str, str], title: str, as_json: bool) -> None:
    """Print rows as a table (`columns`: key -> heading), or all of them as JSON.

    Numbers are never cut. Text is folded; if its column would be narrower than `LEAST`, it goes on lines of its own.
    """
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    console = output()
    first, *others = columns
    numeric = {key for key in columns if rows and all(isinstance(row.get(key), int | float) for row in rows)}
    widths = {key: max(map(cell_len, [columns[key], *(cell(row.get(key)) for row in rows)])) for key in columns}
    texts = [key for key in others if key not in numeric and widths[key] > LEAST]
    least = {**widths, **dict.fromkeys(texts, LEAST)}
    console.print(Text(title, style="italic"), soft_wrap=True)
    if _needed(least.values()) > console.width:
        return _show_below(console, rows, columns, numeric, widths, texts)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for key in columns:
        number = key in numeric
        justify = "right" if number else "left"
        whole = number or key == first
        table.add_column(columns[key], justify=justify, overflow="fold", no_wrap=whole, min_width=least[key])
    for row in rows:
        table.add_row(*(Text(cell(row.get(key))) for key in columns))  # as text: a name in brackets is not markup
    console.print(table)


def _show_below(
    console: Console,
    rows: list[dict[str, Any]],
    columns: dict[str, str],
    numeric: Collection[str],
    widths: Mapping[str, int],
    texts: Sequence[str],
) -> None:
    """A table with its `texts` below each row, and with a long first cell above it."""
    beside = [key for key in columns if key not in texts]
    first, *numbers = beside
    room = console.width - _needed([widths[key] for key in numbers]) - 2
    widths = {**widths, first: min(widths[first], max(LEAST, room))}

    def line(cells: Mapping[str, str]) -> Text:
        gaps = {key: " " * (widths[key] - cell_len(cells[key])) for key in beside}
        parts = [gaps[key] + cells[key] if key in numeric else cells[key] + gaps[key] for key in beside]
        return Text("  ".join(parts).rstrip())

    console.print(line(columns), style="bold", soft_wrap=True)
    console.print("─" * (_needed([widths[key] for key in beside]) - 1), soft_wrap=True)
    for row in rows:
        cells = {key: cell(row.get(key)) for key in beside}
        if cell_len(cells[first]) > widths[first]:
            print(cells[first])
            cells[first] = ""
        console.print(line(cells), soft_wrap=True)
        for key in texts:
            if row.get(key):
                lines = wrap(f"{columns[key]}: {cell(row[key])}", max(console.width - 4, 20), break_on_hyphens=False)
                print(*(f"    {part}" if place else f"  {part}" for place, part in enumerate(lines)), sep="\n")


def _needed(widths: Collection[int]) -> int:
    """The width of a table with columns of these widths: two spaces between them, one after the last."""
    return sum(widths) + 2 * len(widths) - 1


def show_list(groups: Mapping[str, Sequence[tuple[str, Sequence[str]]]]) -> None:
    """Print names with text beside them under headings, no wider than the terminal, or 80 columns without one."""
    names = [name for entries in groups.values() for name, _ in entries]
    indent = max(map(len, names)) + 4
    width = max(output().width - indent, 20)
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
