"""The tables as Markdown and LaTeX, ready to be pasted into a paper or an issue."""

from __future__ import annotations

from fednoil.report.claims import SCOPE, judge
from fednoil.report.results import Results
from fednoil.report.sheets import Entry, Sheet, sheets

_WIDE = 4  # columns of numbers that fit into one column of text
_PAPER = "Wang, Zhou, Long, Han, Jiang: FedNoiL (arXiv 2205.10110)"


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


def latex(results: Results) -> str:
    """Every table as a `table` environment (booktabs), the paper's value in small type under ours."""
    lines = [f"% Values of the paper: {_PAPER}", "% needs \\usepackage{booktabs} and \\usepackage{graphicx}", "", ""]
    return "\n".join(lines) + "\n\n".join(_latex_sheet(sheet) for sheet in sheets(results)) + "\n"


def _latex_sheet(sheet: Sheet) -> str:
    heads = [_escape(_heading(sheet, j)) for j in range(len(sheet.columns))]
    wide = len(heads) > _WIDE  # over both columns of a page, and no wider than that
    table = "table*" if wide else "table"
    lines = [
        f"\\begin{{{table}}}",
        "\\centering",
        f"\\caption{{{_escape(sheet.title)}. {_escape(sheet.note)} {_seeds(sheet)}}}",
        *(["\\resizebox{\\textwidth}{!}{%"] if wide else []),
        f"\\begin{{tabular}}{{l{'c' * len(heads)}}}",
        "\\toprule",
        " & ".join(["Method", *heads]) + " \\\\",
        "\\midrule",
    ]
    for method, entries in zip(sheet.methods, sheet.entries, strict=True):
        lines.append(" & ".join([_escape(method), *(_latex_entry(entry) for entry in entries)]) + " \\\\")
        if any(entry and entry.beside for entry in entries):
            small = [f"{{\\small {_number('; '.join(e.beside))}}}" if e and e.beside else "" for e in entries]
            lines.append(" & ".join(["", *small]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", f"\\end{{tabular}}{'}' * wide}", f"\\end{{{table}}}"])


def _seeds(sheet: Sheet) -> str:
    """Over how many seeds the cells are."""
    counts = [len(entry.row.runs) for entries in sheet.entries for entry in entries if entry]
    least, most = min(counts), max(counts)
    return f"{least} seed{'s' * (least != 1)}." if least == most else f"{least} to {most} seeds."


def _latex_entry(entry: Entry | None) -> str:
    if entry is None:
        return "--"
    number = _number(str(entry.ours))
    return f"\\textbf{{{number}}}" if entry.best else number


def _number(text: str) -> str:
    return text.replace(" ± ", " $\\pm$ ").replace("*", "$^\\ast$")


_SPECIAL = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "†": "$\\dagger$",
    "±": "$\\pm$",
    "*": "$^\\ast$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
