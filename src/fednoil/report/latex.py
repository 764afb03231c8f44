"""The tables as LaTeX, ready for a paper: columns by setting, noise and metric, no wider than the page."""

from __future__ import annotations

from itertools import groupby

from fednoil.report.results import METRICS, Results
from fednoil.report.sheets import Entry, Sheet, sheets

_NARROW = 2  # columns of numbers that one column of a two-column page takes
_WHOLE = 4  # columns of numbers up to which several settings share a table
_FIT = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"  # shrinks if needed, never grows


def latex(results: Results) -> str:
    """Every table in its own environments (booktabs), with a printed value in small type under ours."""
    found = sheets(results)
    lines = ["% needs \\usepackage{booktabs} and \\usepackage{graphicx}"]
    if results.study and any(sheet.table for sheet in found):
        lines.insert(0, f"% Values of the paper: {results.study.cites}")
    tables = [_table(sheet, columns) for sheet in found for columns in _pieces(sheet)]
    return "\n\n".join(["\n".join(lines), *tables]) + "\n"


def _pieces(sheet: Sheet) -> list[list[int]]:
    """Which columns share a table: all of a small one, otherwise one setting's, or one noise's if it has many."""
    every = list(range(len(sheet.columns)))
    if len(every) <= _WHOLE:
        return [every]
    by_setting = [list(js) for _, js in groupby(every, lambda j: sheet.columns[j].setting)]
    if len({column.metric for column in sheet.columns}) == 1:
        return by_setting
    return [list(js) for some in by_setting for _, js in groupby(some, lambda j: sheet.columns[j].noise)]


def _table(sheet: Sheet, columns: list[int]) -> str:
    levels = [[getattr(sheet.columns[j], name) for j in columns] for name in ("setting", "noise", "metric")]
    levels[2] = [METRICS.get(metric, metric) for metric in levels[2]]
    common = [level[0] for level in levels[:2] if len(set(level)) == 1 and level[0]]
    heads = [level for level in levels if len(set(level)) > 1] or [levels[2]]
    rows = [(m, [row[j] for j in columns]) for m, row in zip(sheet.methods, sheet.entries, strict=True)]
    rows = [(method, entries) for method, entries in rows if any(entries)]
    table = "table*" if len(columns) > _NARROW else "table"
    lines = [
        f"\\begin{{{table}}}",
        "\\centering",
        f"\\caption{{{escaped(', '.join([sheet.caption, *common]))}. {_seeds(rows)}}}\\par\\smallskip",
        _FIT,
        f"\\begin{{tabular}}{{l{'c' * len(columns)}}}",
        "\\toprule",
        *_heads(heads),
        "\\midrule",
        "\n\\addlinespace\n".join("\n".join(_lines(method, entries)) for method, entries in rows),
        "\\bottomrule",
        "\\end{tabular}}",
        f"\\begin{{minipage}}{{\\linewidth}}\\smallskip\\footnotesize {escaped(sheet.note)}\\end{{minipage}}",
        f"\\end{{{table}}}",
    ]
    return "\n".join(lines)


def _heads(levels: list[list[str]]) -> list[str]:
    """One line per level; what spans several columns has a rule under it."""
    lines = []
    for depth in range(1, len(levels)):
        cells, rules, at = [""], [], 2
        for key, same in groupby(zip(*levels[:depth], strict=True)):
            width = len(list(same))
            cells.append(f"\\multicolumn{{{width}}}{{c}}{{{escaped(key[-1])}}}")
            rules.append(f"\\cmidrule(lr){{{at}-{at + width - 1}}}")
            at += width
        lines += [_row(cells), "".join(rules)]
    return [*lines, _row(["Method", *map(escaped, levels[-1])])]


def _lines(method: str, entries: list[Entry | None]) -> list[str]:
    """Our value, with remarks and the paper's value in small type."""
    lines = [_row([escaped(method), *map(_ours, entries)])]
    said = [_parts(entry) for entry in entries]
    for texts in zip(*said, strict=True):
        if any(texts):
            lines.append(_row(["", *(f"{{\\small {escaped(text)}}}" if text else "" for text in texts)]))
    return lines


def _parts(entry: Entry | None) -> tuple[str, str]:
    if entry is None:
        return "", ""
    beside = entry.beside
    return ("; ".join(beside[:-1]), beside[-1]) if entry.printed else ("; ".join(beside), "")


def _ours(entry: Entry | None) -> str:
    if entry is None:
        return "--"
    return f"\\textbf{{{escaped(str(entry.ours))}}}" if entry.best else escaped(str(entry.ours))


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _seeds(rows: list[tuple[str, list[Entry | None]]]) -> str:
    """The number of seeds behind the cells."""
    counts = [len(entry.row.runs) for _, entries in rows for entry in entries if entry]
    least, most = min(counts), max(counts)
    return f"{least} seed{'s' * (least != 1)}." if least == most else f"{least} to {most} seeds."


_SPECIAL = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "†": "$\\dagger$",
    "±": "$\\pm$",
    "–": "--",
    "*": "$^\\ast$",
    **{character: f"${character}$" for character in "<>|"},
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
