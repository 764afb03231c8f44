"""The paper's tables: which rows of the results each contains, and the paper's values beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fednoil.report.hook import Beside
from fednoil.report.places import Place
from fednoil.report.results import Results, Row
from fednoil.study.paper import DATASET_NAMES, METHOD_NAMES, Printed, noise_name, printed
from fednoil.study.places import schedule_methods
from fednoil.study.presets import PAPER_NOISES, SETTINGS, TOTAL
from fednoil.study.small import BASE

TITLES = {  # the table's number in the paper, and what it shows
    "1": ("Table 1", "FedNoiL and baselines"),
    "2": ("Table 2", "more clients, clients of unequal size"),
    "3": ("Table 3", "ablation of the two levels of sampling"),
    "4": ("Table 4", "without semi-supervised learning (†)"),
    "text": ("", "Clean labels"),
    "schedules": ("", "Schedules of local epochs"),
    "beyond": ("", "Settings beyond the paper"),
}
_METRICS = {"3": ("accuracy", "selected_noise", "precision", "recall"), "4": ("accuracy", "precision", "recall")}
_ORDER = [*dict.fromkeys(METHOD_NAMES.values()), *schedule_methods()]
# Keys that the paper doesn't give: at its own scale a different value is a different reading of it.
_READINGS = ("partition.kind=", "partition.beta=", "partition.cap=", "partition.min_size=", "noise.")
_ABLATIONS = {"3": ("fednoil-uniform-clients", "fednoil-uniform-local"), "4": ("fednoil-no-ssl",)}
_TRIALS = 5  # of the paper
TABLE_OF = {"iid": "1", "non-iid": "1", "100-clients": "2", "imbalanced": "2"}


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper, for one dataset and scale."""

    key: str
    rows: Sequence[Row]

    @property
    def title(self) -> str:
        number, about = TITLES[self.key]
        return ", ".join([f"{number}: {about}" if number else about, *self._where()])

    @property
    def caption(self) -> str:
        """With the paper's table number at the end, because LaTeX puts its own in front."""
        number, about = TITLES[self.key]
        title = f"{about[:1].upper()}{about[1:]}"
        return ", ".join([f"{title} ({number} of the paper)" if number else title, *self._where()])

    def _where(self) -> list[str]:
        place = self.rows[0].place
        scale = "small scale" if place.family == "small" else ""
        return [w for w in (place.dataset, scale, *place.setting_changes) if w]

    @property
    def metrics(self) -> tuple[str, ...]:
        return _METRICS.get(self.key, ("accuracy",))

    def printed(self, row: Row, metric: str) -> Beside | None:
        """The paper's value, named as such if it is another dataset's (at small scale)."""
        value, place = paper_value(self.key, row.place, metric), row.place
        if value is None:
            return None
        whose = place.family != "small" or value.dataset == BASE
        text = f"paper {value}" if whose else f"paper, {value.dataset.upper()}: {value}"
        same = place.family == "paper" and not place.setting_changes and not place.method_changes
        return Beside(text, value.mean, value.std, same, _TRIALS)

    def rank_spot(self, setting: str, noise: str) -> tuple[int, int]:
        settings, noises = list(SETTINGS), list(PAPER_NOISES)
        return settings.index(setting), noises.index(noise)

    def rank_method(self, method: str) -> int:
        known = method.removesuffix(TOTAL)
        return _ORDER.index(known) if known in _ORDER else len(_ORDER)

    def notes(self) -> list[str]:
        place = self.rows[0].place
        read_otherwise = place.setting_changes and all(change.startswith(_READINGS) for change in place.setting_changes)
        if place.family == "paper" and read_otherwise:
            return ["A split or noise that no preset has: the paper's values are shown without a difference."]
        if place.family == "small" or place.setting_changes:
            return ["Not the paper's scale: its values are shown for the order of methods, not for comparison."]
        return []


def tables(results: Results) -> list[PaperTable]:
    """All tables for which there are runs, in the paper's order."""
    wanted: dict[tuple[str, str, str, tuple[str, ...]], list[Row]] = {}
    for rows in results.settings():
        place = rows[0].place
        for table, members in (_tables_of(rows) if place.family else {}).items():
            wanted.setdefault((table, place.family, place.dataset, place.setting_changes), []).extend(members)
    order = list(TITLES)
    found = sorted(wanted.items(), key=lambda f: (order.index(f[0][0]), f[0][1] != "paper", *f[0][2:]))
    return [PaperTable(key[0], rows) for key, rows in found]


def _tables_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of one setting, by table; FedNoiL(Logarithm) is also in each ablation."""
    place = rows[0].place
    found: dict[str, list[Row]] = {}
    main = TABLE_OF.get(place.setting, "beyond")
    main = "text" if place.noise == "clean" and main != "beyond" else main
    special = {m: table for table, methods in _ABLATIONS.items() for m in methods}
    special |= dict.fromkeys(schedule_methods(), "schedules")
    for row in rows:
        found.setdefault(special.get(row.place.method.removesuffix(TOTAL), main), []).append(row)
    for table in set(found) & {"3", "4", "schedules"}:
        beside = ("fednoil-logarithm", "fednoil-cosine") if table == "schedules" else ("fednoil-logarithm",)
        found[table] += [row for row in found.get(main, []) if row.place.method.removesuffix(TOTAL) in beside]
    # A main table that would only repeat rows of the others is left out.
    elsewhere = {id(row) for table, members in found.items() if table != main for row in members}
    if main in found and all(id(row) in elsewhere for row in found[main]):
        del found[main]
    return found


def paper_value(table: str, place: Place, metric: str) -> Printed | None:
    """What the paper prints for this; at small scale its value for Fashion-MNIST or, if it has none, CIFAR-10."""
    datasets = {ours: theirs for theirs, ours in DATASET_NAMES.items()}
    wanted = [datasets[place.dataset]] if place.family == "paper" else ["fashion-mnist", "cifar-10"]
    noise = place.noise.removesuffix("-shared")  # the paper doesn't say which map it uses
    for dataset in wanted if place.family else []:
        for number in printed():
            if (
                (number.table, number.dataset, number.setting, number.metric) == (table, dataset, place.setting, metric)
                and noise_name(number.noise, number.mode) == noise
                and METHOD_NAMES[number.method] == place.method.removesuffix(TOTAL)
            ):
                return number
    return None
