"""A ranking as Markdown, as LaTeX, and as a page that sorts and filters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fednoil import __version__, pages
from fednoil.bench.ranking import RANKED_BY, READINGS, RankedMethod, Spread
from fednoil.report.latex import escaped


@dataclass(frozen=True)
class RankingEntry:
    """An entry of a table: its text, and the number that it is sorted by."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class RankingTable:
    title: str
    head: list[str]
    rows: list[list[RankingEntry]]


def tables(rows: Sequence[RankedMethod], settings: Sequence[str]) -> list[RankingTable]:
    """The ranking, the ranks by split and by noise, and the accuracy in each setting."""
    head = ["method", "mean rank", *READINGS.values(), "farthest behind", "knows the noise", "steps", "MB", "seconds"]
    first = RankingTable("Ranking", head, [_ranked(row) for row in rows])
    each = [[RankingEntry(row.method), *(_cell(row.by_setting.get(s)) for s in settings)] for row in rows]
    last = RankingTable(f"Accuracy in each setting ({READINGS[RANKED_BY]})", ["method", *settings], each)
    parts = list(dict.fromkeys([s.split("/")[0] for s in settings] + [s.split("/")[-1] for s in settings]))
    ranked = [row for row in rows if row.rank is not None]
    if not ranked or len(settings) < 2:
        return [first, last]
    by_part = [[RankingEntry(row.method), *(_rank_in(row, settings, part) for part in parts)] for row in ranked]
    return [first, RankingTable("Mean rank by split and by noise", ["method", *parts], by_part), last]


def _rank_in(row: RankedMethod, settings: Sequence[str], part: str) -> RankingEntry:
    ranks = [row.ranks[s] for s in settings if part in s.split("/")]
    mean = sum(ranks) / len(ranks)
    return RankingEntry(f"{mean:.2f}", mean)


def answer(rows: Sequence[RankedMethod], settings: Sequence[str]) -> str:
    """Which method to use, in a sentence or two; "" with fewer than two methods that have a rank."""
    ranked = [(row, row.rank, row.worst) for row in rows if row.rank is not None and row.worst is not None]
    if len(ranked) < 2:
        return ""
    (best, rank, _), (_, second, _), *_ = ranked
    equal: dict[str, list[str]] = {}  # methods by their mean rank
    for row, own, _ in ranked:
        equal.setdefault(f"{own.mean:.2f}", []).append(row.method)
    leaders, *others = equal.values()
    if len(leaders) > 1:
        return f"It is a tie: {' and '.join(leaders)} have the same mean rank, {rank.mean:.2f}."
    safest, _, (where, points) = min(ranked, key=lambda each: each[2][1])
    tops = {s: max(row.by_setting[s].mean for row, *_ in ranked) for s in settings}
    first = sum(best.by_setting[s].mean == tops[s] for s in settings)
    return (
        f"{best.method} has the best mean rank ({rank}) and is first in {first} of {len(settings)} settings; "
        f"{' and '.join(others[0])} {'are' if len(others[0]) > 1 else 'is'} second ({second}). {safest.method} is "
        f"{'also ' * (safest is best)}the least behind where it is worst: {points:.2f} points in {where}."
    )


def _ranked(row: RankedMethod) -> list[RankingEntry]:
    behind = (
        RankingEntry("–") if row.worst is None else RankingEntry(f"{row.worst[1]:.2f} in {row.worst[0]}", row.worst[1])
    )
    return [
        RankingEntry(row.method),
        _cell(row.rank),
        *(_cell(row.accuracy[reading]) for reading in READINGS),
        behind,
        RankingEntry("yes" if row.knows else "no"),
        RankingEntry(f"{row.steps:,.0f}", row.steps),
        RankingEntry(f"{row.traffic / 1e6:,.1f}", row.traffic),
        RankingEntry(f"{row.seconds:,.0f}", row.seconds),
    ]


def _cell(found: Spread | None) -> RankingEntry:
    return RankingEntry("–") if found is None else RankingEntry(str(found), found.mean)


def note(seeds: int, settings: int, rounds: Collection[int]) -> str:
    """What the numbers are; `rounds` are those of the runs."""
    few = " to ".join(map(str, sorted({min(10, min(rounds)), min(10, max(rounds))})))
    interval = f"± 95 % confidence over {seeds} seeds" if seeds > 2 else "no intervals, which take three seeds"
    return (
        f"Means over {settings} setting{'s' * (settings != 1)}; {interval}. Ranks are by the {READINGS[RANKED_BY]} "
        f"rounds, {few} of each run. The best round is known only with true labels. Farthest behind: points below the "
        "best method. Steps, megabytes and seconds are those of a run."
    )


def markdown(rows: Sequence[RankedMethod], settings: Sequence[str], said: str) -> str:
    """`said` is what a reader must know, such as the note."""
    parts = ["# Ranking of methods", *filter(None, [answer(rows, settings)]), said]
    for table in tables(rows, settings):
        parts += [f"## {table.title}", text_of(table)]
    return "\n\n".join(parts) + "\n"


def text_of(table: RankingTable) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(table.head)} |", "|" + "---|" * len(table.head)]
    return "\n".join(lines + [f"| {' | '.join(cell.text for cell in row)} |" for row in table.rows])


def latex(rows: Sequence[RankedMethod], settings: Sequence[str], said: str) -> str:
    parts = ["% needs \\usepackage{booktabs} and \\usepackage{graphicx}"]
    for table in tables(rows, settings):
        body = [f"{' & '.join(escaped(cell.text) for cell in row)} \\\\" for row in table.rows]
        lines = [
            "\\begin{table*}",
            "\\centering",
            f"\\caption{{{escaped(table.title)}. {escaped(said)}}}\\par\\smallskip",
            "\\resizebox{\\linewidth}{!}{%",
            f"\\begin{{tabular}}{{l{'c' * (len(table.head) - 1)}}}",
            "\\toprule",
            f"{' & '.join(map(escaped, table.head))} \\\\",
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}}",
            "\\end{table*}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


Curves = Mapping[tuple[str, str], Sequence[float]]  # accuracy over a run, mean over seeds, by method and setting


def html(rows: Sequence[RankedMethod], settings: Sequence[str], said: str, report: str, curves: Curves) -> str:
    """The page, which draws the curves; `report` is the name of the report of all runs beside it, or ""."""
    lines: dict[str, dict[str, list[float]]] = {}
    for (method, setting), values in curves.items():
        lines.setdefault(method, {})[setting] = [round(value, 2) for value in values]
    return pages.render(
        pages.asset("fednoil.bench", "ranking.html.j2"),
        version=__version__,
        css=pages.asset("fednoil.report", "page", "uPlot.min.css") + pages.style(),
        scripts=[
            pages.asset("fednoil.report", "page", "uPlot.iife.min.js"),
            pages.script(),
            pages.asset("fednoil.bench", "ranking.js"),
        ],
        answer=answer(rows, settings),
        note=said,
        tables=tables(rows, settings),
        parts=list(dict.fromkeys(part for s in settings for part in s.split("/"))) if len(settings) > 1 else [],
        report=report,
        data=pages.embedded({"curves": lines, "settings": list(settings)}),
    )
