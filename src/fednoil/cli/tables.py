"""Tables on the terminal."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from textwrap import wrap
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fednoil.terminal import output

LEAST = 18  # characters of a text column


def show(rows: list[dict[str, Any]], columns: dict[str, str], title: str, as_json: bool) -> None:
    """Print rows as a table (`columns`: key -> heading), or all of them as JSON.

    Numbers are never cut. Text is folded; if its column would be narrower than `LEAST`, it goes on a line of its own.
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
    whole = _needed(least.values()) <= console.width
    if not whole:
        least[first] = min(LEAST, widths[first])
    below = texts if _needed(least.values()) > console.width else []
    beside = [key for key in others if key not in below]
    console.width = max(console.width, _needed([least[key] for key in (first, *beside)]))
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for key in (first, *beside):
        table.add_column(
            columns[key],
            justify="right" if key in numeric else "left",
            overflow="fold",
            no_wrap=key in numeric or (whole and key == first),
            min_width=least[key],
        )
    for row in rows:
        lines = [cell(row.get(first)), *(f"{columns[key]}: {cell(row[key])}" for key in below if row.get(key))]
        # As text: a file's or class's name in brackets is not markup.
        table.add_row(Text("\n".join(lines)), *(Text(cell(row.get(key))) for key in beside))
    console.print(table)


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
