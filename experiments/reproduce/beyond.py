"""Tables beyond the paper's own: other readings of what it leaves open beside ours, and the numbers of schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fednoil.config.presets import NOISES
from fednoil.report.evidence import alike, curve, efficiency
from fednoil.report.places import Place
from fednoil.report.results import Results, Row
from fednoil.report.sheets import paper_value, sheets
from fednoil.report.text import markdown_sheet

_KINDS = {"dirichlet": "Dirichlet over clients", "mixture": "a mix of each client's own"}
_R_MIN = (10, 20, 40, 80)


def is_papers(row: Row) -> bool:
    """Whether a row is in one of the paper's settings as we read them: with its split, pair noise per client."""
    return not row.place.setting_changes and not row.place.noise.endswith("-shared")


def beyond(results: Results) -> str:
    """Everything that `is_papers` is not: readings side by side, the rest as reports show it."""
    splits = [row for row in results.rows if _is_split(row)]
    maps = [row for row in results.rows if row.place.noise.endswith("-shared") and not row.place.setting_changes]
    known = {id(row) for row in (*splits, *maps)}
    others = results.some(lambda row: not is_papers(row) and id(row) not in known)
    parts = [
        *_by_dataset(splits, lambda mine: _split_table(results, mine)),
        *_by_dataset(maps, lambda mine: _map_table(results, mine)),
        *(markdown_sheet(sheet, 3) for sheet in sheets(others)),
    ]
    return "\n\n".join(parts) or "None yet."


def _is_split(row: Row) -> bool:
    """A non-IID row that differs from the preset in its split alone."""
    changes = row.place.setting_changes
    return row.place.setting == "non-iid" and bool(changes) and all(c.startswith("partition.") for c in changes)


def _by_dataset(rows: list[Row], table: Callable[[list[Row]], str]) -> list[str]:
    datasets = dict.fromkeys(row.place.dataset for row in rows)
    return [table([row for row in rows if row.place.dataset == dataset]) for dataset in datasets]


def _split_table(results: Results, rows: list[Row]) -> str:
    """One line for each noise and method, one column for each split, ours first."""
    splits = {(): _split(rows[0], ours=True)} | {row.place.setting_changes: _split(row) for row in rows}
    lines = [f"### Non-IID splits, {rows[0].place.dataset}", "", _line(["noise", "method", "paper", *splits.values()])]
    lines.append("|---" * (3 + len(splits)) + "|")
    for noise, method in _lines(rows):
        place = next(row.place for row in rows if (row.place.noise, row.place.method_title) == (noise, method))
        found = [_find(results, place, changes, noise, method) for changes in splits]
        lines.append(_line([noise, method, *_beside(place, found)]))
    return "\n".join([*lines, "", _NOTE])


def _split(row: Row, ours: bool = False) -> str:
    """`Dirichlet over clients, β = 1`, and what else is changed."""
    partition = row.runs[0].values["partition"]
    if ours:
        return f"{_KINDS['dirichlet']}, β = 0.5 (our preset)"
    changes = [c for c in row.place.setting_changes if not c.startswith(("partition.kind", "partition.beta"))]
    return ", ".join([_KINDS[partition["kind"]], f"β = {partition['beta']:g}", *changes])


def _map_table(results: Results, rows: list[Row]) -> str:
    """One line for each setting, noise and method: a map per client, and one for all."""
    lines = [f"### Pair noise, {rows[0].place.dataset}: a map per client, and one for all", ""]
    lines += [_line(["setting", "noise", "method", "paper", "per client (our preset)", "shared"]), "|---" * 6 + "|"]
    for row in sorted(rows, key=lambda row: (row.place.setting, _rank(row.place.noise), row.place.method_title)):
        noise = row.place.noise.removesuffix("-shared")
        ours = _find(results, row.place, (), noise, row.place.method_title)
        lines.append(_line([row.place.setting, noise, row.title, *_beside(row.place, [ours, row])]))
    return "\n".join([*lines, "", _NOTE])


_NOTE = (
    "Mean ± standard deviation over n seeds of the last round, and the difference from the paper, which doesn't say "
    "which it has; * the mean of the best rounds, because a seed did not converge."
)


def _lines(rows: list[Row]) -> list[tuple[str, str]]:
    found = {(row.place.noise, row.place.method_title) for row in rows}
    return sorted(found, key=lambda line: (_rank(line[0]), line[1]))


def _rank(noise: str) -> int:
    return list(NOISES).index(noise)


def _find(results: Results, beside: Place, changes: tuple[str, ...], noise: str, method: str) -> Row | None:
    """The row with the most seeds in the dataset and setting of another place, with these changes."""
    where = (beside.family, beside.dataset, beside.setting, noise, *changes)
    found = [row for row in results.rows if (row.place.where, row.place.method_title) == (where, method)]
    return max(found, key=lambda row: (row.finished, len(row.runs)), default=None)


def _beside(place: Place, rows: Iterable[Row | None]) -> list[str]:
    """The paper's value, and each row's with the difference."""
    table = "2" if place.setting in ("100-clients", "imbalanced") else "1"
    paper = paper_value(table, place, "accuracy")
    cells = [str(paper or "–")]
    for row in rows:
        if row is None:
            cells.append("not run")
            continue
        figure = row.figure("accuracy")
        assert figure is not None  # every run has an accuracy
        same = paper is not None and row.finished and not row.place.method_changes
        told = [f"n = {len(row.runs)}", *([row.progress] if row.progress else [])]
        told += [f"last round {row.last_round()}"] if figure.starred else []
        told += [f"{figure.mean - paper.mean:+.2f}"] if paper and same else []
        cells.append(f"{figure} ({', '.join(told)})")
    return cells


def schedules(results: Results) -> str:
    """Decaying schedules beside constant ones of the same total: batches, accuracy, and the areas the claims go by."""
    lines = []
    for first in results.grounds():
        for form in ("cosine", "logarithm"):
            for r_min in _R_MIN:
                decay = results.find(first, f"fednoil-{form}" if r_min == 80 else f"fednoil-{form}({r_min})")
                constant = results.find(first, f"fednoil-constant-as-{form}({r_min})")
                if decay and constant and decay.finished and constant.finished:
                    lines.append(_schedule_line(first.place, f"{form.capitalize()}({r_min})", decay, constant))
    if not lines:
        return "Not run yet."
    heads = ["setting", "schedule", "seeds", "batches", "last round: decaying", "constant"]
    heads += ["mean over rounds: decaying", "constant", "mean over batches: decaying", "constant"]
    return "\n".join([_line(heads), "|---" * len(heads) + "|", *lines])


def _schedule_line(place: Place, name: str, decay: Row, constant: Row) -> str:
    """Both on the seeds they share; areas to the smaller number of batches."""
    decay, constant, _ = alike(decay, constant)
    spent = [float(curve(row)[0][-1]) for row in (decay, constant)]
    areas = [efficiency(row, min(spent)) for row in (decay, constant)]
    seeds = "–".join(dict.fromkeys(str(len(row.runs)) for row in (decay, constant)))
    cells = [place.title, name, seeds, " / ".join(dict.fromkeys(f"{count:,.0f}" for count in spent))]
    cells += [str(row.last_round()) for row in (decay, constant)]
    for pair in zip(*areas, strict=True):
        cells += [f"**{area:.2f}**" if round(area, 2) > round(sum(pair) - area, 2) else f"{area:.2f}" for area in pair]
    return _line(cells)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
