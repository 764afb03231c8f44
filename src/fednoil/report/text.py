"""Results as Markdown, ready to be pasted into an issue."""

from __future__ import annotations

from fednoil.report.results import Results
from fednoil.report.sheets import Entry, Sheet, sheets


def markdown(results: Results) -> str:
    """Every table, the study's sections and the warnings."""
    parts = [markdown_sheet(sheet) for sheet in sheets(results)]
    parts += [f"## {section.title}\n\n{section.markdown}" for section in results.sections()]
    if results.warnings:
        parts.append("\n".join(["## Warnings", "", *(f"- {in_cell(line)}" for line in results.warnings)]))
    return "\n\n".join(parts) + "\n"


def markdown_sheet(sheet: Sheet, level: int = 2) -> str:
    """One table under a heading of this level."""
    head = ["method", *(_heading(sheet, j) for j in range(len(sheet.columns)))]
    lines = [f"{'#' * level} {in_cell(sheet.title)}", "", _row(head), _row(["---"] * len(head))]
    for method, entries in zip(sheet.methods, sheet.entries, strict=True):
        lines.append(_row([method, *(_markdown_entry(entry) for entry in entries)]))
    return "\n".join([*lines, "", in_cell(sheet.note)])


def _heading(sheet: Sheet, j: int) -> str:
    column = sheet.columns[j]
    metric = "" if column.metric == "accuracy" else f", {column.metric.replace('_', ' ')}"
    return f"{column.title}{metric}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(in_cell(cell) for cell in cells) + " |"


def in_cell(text: str) -> str:
    """Text escaped for a table's cell."""
    return " ".join(text.replace("<", "&lt;").replace("|", "\\|").split())


def _markdown_entry(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    ours = f"**{entry.ours}**" if entry.best else str(entry.ours)
    difference = f", {entry.gap}" if entry.gap else ""
    beside = f" [{'; '.join(entry.beside)}{difference}]" if entry.beside else ""
    return f"{ours} (n = {len(entry.row.runs)}){beside}"
