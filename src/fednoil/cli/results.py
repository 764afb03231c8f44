"""Results on the terminal: the tables, and a study's sections."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fednoil.report.results import Results
from fednoil.report.sheets import Entry, Sheet, sheets
from fednoil.terminal import output


def show_results(results: Results) -> None:
    """Print every table, then the study's sections, then the warnings."""
    console = output()
    if not console.is_terminal:
        console = output(width=max(console.width, 160))  # a file has room
    for sheet in sheets(results):
        console.print(_table(sheet))
        console.print()
    for section in results.sections():
        for line in section.lines:
            _line(console, line)
        console.print()
    for warning in results.warnings:
        _line(console, f"warning: {warning}")


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for column in sheet.columns:
        metric = "" if column.metric == "accuracy" else f"\n{column.metric.replace('_', ' ')}"
        table.add_column(Text(f"{column.title}{metric}"), justify="right", overflow="fold")
    for method, entries in zip(sheet.methods, sheet.entries, strict=True):
        table.add_row(Text(method), *(_cell(entry) for entry in entries))
    return table


def _cell(entry: Entry | None) -> Text:
    if entry is None:
        return Text("–")
    text = Text(str(entry.ours), style="bold" if entry.best else "")
    difference = f" {entry.gap}" if entry.gap else ""
    for part in entry.beside:
        is_printed = entry.printed is not None and part == entry.printed.text
        text.append(f"\n{part}{difference if is_printed else ''}", style="dim")
    return text
