"""The tables and claims as Markdown, ready to be pasted into an issue."""

from __future__ import annotations

from fednoil.report.claims import SCOPE, judge
from fednoil.report.results import Results
from fednoil.report.sheets import Entry, Sheet, sheets


def markdown(results: Results) -> str:
    """Every table, the claims and the warnings."""
    parts = [markdown_sheet(sheet) for sheet in sheets(results)]
    parts += [f"## The paper's claims\n\n{markdown_claims(results)}"]
    if results.warnings:
        parts.append("\n".join(["## Warnings", "", *(f"- {_cell(line)}" for line in results.warnings)]))
    return "\n\n".join(parts) + "\n"


def markdown_sheet(sheet: Sheet, level: int = 2) -> str:
    """One table under a heading of this level."""
    head = ["method", *(_heading(sheet, j) for j in range(len(sheet.columns)))]
    lines = [f"{'#' * level} {_cell(sheet.title)}", "", _row(head), _row(["---"] * len(head))]
    for method, entries in zip(sheet.methods, sheet.entries, strict=True):
        lines.append(_row([method, *(_markdown_entry(entry) for entry in entries)]))
    return "\n".join([*lines, "", _cell(sheet.note)])


def markdown_claims(results: Results) -> str:
    """The claims with their verdicts, and what they are judged on."""
    lines = ["| verdict | claim | in the paper | evidence |", "|---|---|---|---|"]
    for verdict in judge(results):
        claim = verdict.claim
        lines.append(f"| {verdict.status} | {_cell(claim.said)} | {claim.where} | {_cell(verdict.summary)} |")
    return "\n".join([*lines, "", SCOPE])


def _heading(sheet: Sheet, j: int) -> str:
    column = sheet.columns[j]
    metric = "" if column.metric == "accuracy" else f", {column.metric.replace('_', ' ')}"
    return f"{column.title}{metric}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return " ".join(text.replace("<", "&lt;").replace("|", "\\|").split())


def _markdown_entry(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    ours = f"**{entry.ours}**" if entry.best else str(entry.ours)
    difference = "" if entry.difference is None else f", {entry.difference:+.2f}"
    beside = f" [{'; '.join(entry.beside)}{difference}]" if entry.beside else ""
    return f"{ours} (n = {len(entry.row.runs)}){beside}"
