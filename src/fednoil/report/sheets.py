"""Results laid out as tables: methods down, settings across, with a study's printed values beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fednoil.report.chance import CHANCE, SampleStats, unpaired_p
from fednoil.report.hook import Beside, ReportTable
from fednoil.report.results import METRICS, Results, Row, Value


@dataclass(frozen=True)
class Column:
    setting: str
    noise: str
    metric: str

    @property
    def title(self) -> str:
        return " ".join(w for w in (self.setting, self.noise) if w)

    @property
    def higher_wins(self) -> bool:
        return self.metric != "selected_noise"


@dataclass(frozen=True)
class Entry:
    """One cell of a table: our value, a printed one, and their difference if both are the same experiment."""

    row: Row
    ours: Value
    printed: Beside | None
    difference: float | None
    best: bool  # of its column
    p: float | None = None  # how likely the difference is by chance; None: unknown
    last_round: Value | None = None  # if `ours` is the best round because a seed did not converge
    best_round: Value | None = None  # if `ours` is the last round, and a seed has fallen far below its best
    batches: int | None = None  # where not all of the column have as many

    @property
    def gap(self) -> str:
        """The difference in words, with ≈ if it may be chance."""
        if self.difference is None:
            return ""
        return f"{self.difference:+.2f}" + (" ≈" if self.p is not None and self.p >= CHANCE else "")

    @property
    def beside(self) -> list[str]:
        """What is shown beside our value: the last or best round, how far the runs got, batches, the printed value."""
        parts = [f"last round {self.last_round}"] if self.last_round else []
        parts += [f"best round {self.best_round}"] if self.best_round else []
        parts += [self.row.progress] if self.row.progress else []
        parts += [f"{self.batches:,} batches"] if self.batches is not None else []
        return [*parts, *([self.printed.text] if self.printed else [])]


@dataclass(frozen=True)
class Sheet:
    """One table. `entries[i][j]` is method i in column j, None if there is no such run."""

    table: str
    title: str
    caption: str
    columns: list[Column]
    methods: list[str]
    entries: list[list[Entry | None]]
    note: str


@dataclass(frozen=True)
class OwnTable:
    """Runs on one dataset that belong to no study."""

    rows: Sequence[Row]
    key: str = ""
    metrics: tuple[str, ...] = ("accuracy",)

    @property
    def title(self) -> str:
        return f"Results, {self.rows[0].place.dataset}"

    caption = title

    def printed(self, row: Row, metric: str) -> Beside | None:
        return None

    def rank_spot(self, setting: str, noise: str) -> tuple[str, str]:
        return setting, noise

    def rank_method(self, method: str) -> int:
        return 0

    def notes(self) -> list[str]:
        return []


def sheets(results: Results) -> list[Sheet]:
    """All tables, a study's first."""
    tables: list[ReportTable] = list(results.study.tables(results)) if results.study else []
    own: dict[str, list[Row]] = {}
    for row in results.rows:
        if not row.place.family:
            own.setdefault(row.place.dataset, []).append(row)
    return [_sheet(table) for table in [*tables, *(OwnTable(own[dataset]) for dataset in sorted(own))]]


def _sheet(table: ReportTable) -> Sheet:
    rows = table.rows
    spots = sorted({(row.place.setting, row.place.noise) for row in rows}, key=lambda spot: table.rank_spot(*spot))
    columns = [Column(setting, noise, metric) for setting, noise in spots for metric in table.metrics]
    columns = [c for c in columns if any(_at(row, c) and row.value(c.metric) for row in rows)]
    names = {row.title: row.place.method for row in rows}
    methods = sorted(names, key=lambda title: (table.rank_method(names[title]), title))
    entries: list[list[Entry | None]] = [[None] * len(columns) for _ in methods]
    for j, column in enumerate(columns):
        here = [(methods.index(r.title), r, r.value(column.metric)) for r in rows if _at(r, column)]
        known = [(i, row, ours) for i, row, ours in here if ours is not None]
        sign = 1 if column.higher_wins else -1
        unequal = not table.key and len({row.batches for _, row, _ in known}) > 1
        ends = {i: _ending(row, column.metric, ours) for i, row, ours in known if row.finished}
        top = sign * max((sign * end for end in ends.values()), default=0.0)
        for i, row, ours in known:
            entry = _entry(table, row, column.metric, ours, best=len(ends) > 1 and ends.get(i) == top)
            entries[i][j] = replace(entry, batches=row.batches) if unequal else entry
    return Sheet(table.key, table.title, table.caption, columns, methods, entries, _note(table))


def _at(row: Row, column: Column) -> bool:
    return (row.place.setting, row.place.noise) == (column.setting, column.noise)


def _ending(row: Row, metric: str, ours: Value) -> float:
    """What a cell is ranked by; nobody could choose the best round that stands where a seed is unsettled."""
    return round((row.last_round() if metric == "accuracy" else ours).mean, 2)


def _entry(table: ReportTable, row: Row, metric: str, ours: Value, best: bool) -> Entry:
    printed = table.printed(row, metric)
    difference = ours.mean - printed.mean if printed and printed.same and row.finished else None
    p = None
    if printed is not None and difference is not None and metric == "accuracy":  # other metrics spread over rounds
        theirs = SampleStats(printed.mean, printed.std, printed.count)
        p = unpaired_p(SampleStats(ours.mean, None if ours.starred else ours.std, len(row.runs)), theirs)
    last = row.last_round() if ours.starred else None
    fallen = metric == "accuracy" and not ours.starred and any(run.fallen for run in row.runs)
    return Entry(row, ours, printed, difference, best, p, last, row.best_round() if fallen else None)


def _note(table: ReportTable) -> str:
    measures = list(dict.fromkeys(run.measure for row in table.rows for run in row.runs))
    notes = [
        f"{', or '.join(measures).capitalize()}: mean ± standard deviation over seeds of the last round; * a seed did "
        "not converge (a change of 2 points or more in the last five rounds): then the mean of the best rounds, and "
        "the last round beside it. Bold: the best of a column, in accuracy by the last round."
    ]
    if len(table.metrics) > 1:
        notes.append(f"{', '.join(METRICS[m] for m in table.metrics[1:])}: mean ± deviation over rounds.".capitalize())
    if any(not row.finished for row in table.rows):
        notes.append(
            "Rows that say “at round” or “diverged” are not finished: they enter no difference, test or claim."
        )
    if any(table.printed(row, "accuracy") for row in table.rows):
        notes.append("≈: Welch's test can't distinguish the difference from chance.")
    conducts = dict.fromkeys(", ".join(row.conduct) for row in table.rows)
    return " ".join([*notes, *table.notes(), f"Computed in: {'; '.join(sorted(conducts))}."])
