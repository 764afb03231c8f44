"""Results laid out as the paper's tables: methods down, settings across, the paper's value beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fednoil.config.presets import NOISES, SETTINGS
from fednoil.config.small import BASE
from fednoil.paper import DATASETS, METHODS, Cell, cells, noise_name
from fednoil.report.places import Place, schedule_methods
from fednoil.report.results import METRICS, Figure, Results, Row

TITLES = {
    "1": "Table 1: FedNoiL and baselines",
    "2": "Table 2: more clients, clients of unequal size",
    "3": "Table 3: ablation of the two levels of sampling",
    "4": "Table 4: without semi-supervised learning (†)",
    "text": "Clean labels",
    "schedules": "Schedules of local epochs",
    "own": "Settings of your own",
}
_METRICS = {"3": ("accuracy", "noise_ratio", "precision", "recall"), "4": ("accuracy", "precision", "recall")}
_ORDER = [*dict.fromkeys(METHODS.values()), *schedule_methods()]
# Keys that the paper doesn't give: at its own scale another value is another reading of it.
_READINGS = ("partition.kind=", "partition.beta=", "partition.min_size=", "noise.")
_ABLATIONS = {"3": ("fednoil-uniform-clients", "fednoil-uniform-local"), "4": ("fednoil-no-ssl",)}


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
        return self.metric != "noise_ratio"


@dataclass(frozen=True)
class Entry:
    """One cell: ours, the paper's, their difference where both are the same experiment."""

    row: Row
    ours: Figure
    paper: Cell | None
    difference: float | None
    best: bool  # of its column
    last_round: Figure | None = None  # where `ours` is the best round because a seed did not converge
    best_round: Figure | None = None  # where `ours` is the last one, and a seed has fallen far below its best

    @property
    def beside(self) -> list[str]:
        """What stands beside ours: the last or best round, how far the runs got, the paper's value."""
        parts = [f"last round {self.last_round}"] if self.last_round else []
        parts += [f"best round {self.best_round}"] if self.best_round else []
        parts += [self.row.progress] if self.row.progress else []
        if self.paper:
            place = self.row.place
            same = place.family != "small" or self.paper.dataset == BASE
            parts.append(f"paper {self.paper}" if same else f"paper, {self.paper.dataset.upper()}: {self.paper}")
        return parts


@dataclass(frozen=True)
class Sheet:
    """One table. `entries[i][j]` is method i in column j, None where there is no such run."""

    table: str
    title: str
    columns: list[Column]
    methods: list[str]
    entries: list[list[Entry | None]]
    note: str


def sheets(results: Results) -> list[Sheet]:
    """All tables for which there are runs, in the paper's order."""
    wanted: dict[tuple[str, str, str, tuple[str, ...]], list[Row]] = {}
    for rows in results.settings():
        for table, members in _tables_of(rows).items():
            place = rows[0].place
            wanted.setdefault((table, place.family, place.dataset, place.setting_changes), []).extend(members)
    order = list(TITLES)
    found = [(*key, rows) for key, rows in wanted.items()]
    found.sort(key=lambda f: (order.index(f[0]), f[1] != "paper", f[2], f[3]))
    return [_sheet(table, rows) for table, _, _, _, rows in found]


def _tables_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of one setting, by table; FedNoiL(Logarithm) stands in each ablation as well."""
    place, tables = rows[0].place, {}
    main = "2" if place.setting in ("100-clients", "imbalanced") else "1"
    main = "own" if not place.family else "text" if place.noise == "clean" else main
    special = {m: table for table, methods in _ABLATIONS.items() for m in methods}
    special |= dict.fromkeys(schedule_methods(), "schedules")
    for row in rows:
        table = special.get(row.place.method, main) if place.family else main
        tables.setdefault(table, []).append(row)
    for table in set(tables) & {"3", "4", "schedules"}:
        beside = ("fednoil-logarithm", "fednoil-cosine") if table == "schedules" else ("fednoil-logarithm",)
        tables[table] += [row for row in tables.get(main, []) if row.place.method in beside]
    # A main table that would only repeat rows of the others says nothing new.
    elsewhere = {id(row) for table, members in tables.items() if table != main for row in members}
    if main in tables and all(id(row) in elsewhere for row in tables[main]):
        del tables[main]
    return tables


def _sheet(table: str, rows: list[Row]) -> Sheet:
    place = rows[0].place
    metrics = _METRICS.get(table, ("accuracy",))
    spots = sorted({(row.place.setting, row.place.noise) for row in rows}, key=_spot_rank)
    columns = [Column(setting, noise, metric) for setting, noise in spots for metric in metrics]
    columns = [c for c in columns if any(_at(row, c) and row.figure(c.metric) for row in rows)]
    names = {row.title: row.place.method for row in rows}
    methods = sorted(names, key=lambda title: (_rank(names[title]), title))
    entries: list[list[Entry | None]] = [[None] * len(columns) for _ in methods]
    for j, column in enumerate(columns):
        here = [(methods.index(r.title), r, r.figure(column.metric)) for r in rows if _at(r, column)]
        known = [(i, row, ours) for i, row, ours in here if ours is not None]
        sign = 1 if column.higher_wins else -1
        ranked = [sign * ours.mean for _, row, ours in known if row.finished]
        for i, row, ours in known:
            best = row.finished and len(ranked) > 1 and sign * ours.mean == max(ranked)
            entries[i][j] = _entry(table, row, column.metric, ours, best)
    return Sheet(table, _title(table, place), columns, methods, entries, _note(table, rows))


def _at(row: Row, column: Column) -> bool:
    return (row.place.setting, row.place.noise) == (column.setting, column.noise)


def _spot_rank(spot: tuple[str, str]) -> tuple[int, int, tuple[str, str]]:
    """The paper's order of settings and noises, others after them."""
    settings, noises = list(SETTINGS), list(NOISES)
    return (
        settings.index(spot[0]) if spot[0] in settings else len(settings),
        noises.index(spot[1]) if spot[1] in noises else len(noises),
        spot,
    )


def _rank(method: str) -> int:
    return _ORDER.index(method) if method in _ORDER else len(_ORDER)


def _entry(table: str, row: Row, metric: str, ours: Figure, best: bool) -> Entry:
    paper = paper_value(table, row.place, metric)
    same = row.place.family == "paper" and not row.place.setting_changes and not row.place.method_changes
    same = same and row.finished
    accuracy = metric == "accuracy"
    last = row.last_round() if ours.starred else None
    peak = row.best_round() if accuracy and not ours.starred and any(run.fallen for run in row.runs) else None
    return Entry(row, ours, paper, ours.mean - paper.mean if paper and same else None, best, last, peak)


def paper_value(table: str, place: Place, metric: str) -> Cell | None:
    """What the paper prints for this; at small scale its Fashion-MNIST, or where it has none, CIFAR-10."""
    datasets = {ours: theirs for theirs, ours in DATASETS.items()}
    wanted = [datasets[place.dataset]] if place.family == "paper" else ["fashion-mnist", "cifar-10"]
    noise = place.noise.removesuffix("-shared")  # the paper doesn't say which map it has
    for dataset in wanted if place.family else []:
        for cell in cells():
            if (
                (cell.table, cell.dataset, cell.setting, cell.metric) == (table, dataset, place.setting, metric)
                and noise_name(cell.noise, cell.mode) == noise
                and METHODS[cell.method] == place.method
            ):
                return cell
    return None


def _title(table: str, place: Place) -> str:
    scale = "small scale" if place.family == "small" else ""
    return ", ".join(w for w in (TITLES[table], place.dataset, scale, *place.setting_changes) if w)


def _note(table: str, rows: Sequence[Row]) -> str:
    place = rows[0].place
    notes = [
        "Accuracy: mean ± standard deviation over seeds of the last round; * a seed did not converge (a change of "
        "2 points or more in the last five rounds): then the mean of the best rounds, and the last round beside it."
    ]
    if table in _METRICS:
        notes.append(
            f"{', '.join(METRICS[m] for m in _METRICS[table][1:])}: mean ± deviation over rounds.".capitalize()
        )
    if any(not row.finished for row in rows):
        notes.append(
            "Rows that say “at round” or “diverged” are not finished: no difference, test or claim is made of them."
        )
    read_otherwise = place.setting_changes and all(change.startswith(_READINGS) for change in place.setting_changes)
    if place.family == "paper" and read_otherwise:
        notes.append("A split or noise that no preset has: the paper's values stand beside, without a difference.")
    elif place.family == "small" or place.setting_changes:
        notes.append("Not the paper's scale: its values stand here for the order of methods, not for comparison.")
    conducts = dict.fromkeys(", ".join(row.conduct) for row in rows)
    notes.append(f"Computed in: {'; '.join(sorted(conducts))}.")
    return " ".join(notes)
