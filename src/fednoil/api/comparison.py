"""Runs side by side: a table, a picture of their accuracies, Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednoil.api.run import Run, read_run
from fednoil.api.table import Table
from fednoil.api.words import in_python
from fednoil.errors import UserError, few_of
from fednoil.figures.drawing import COLOURS, require_matplotlib
from fednoil.history import ACCURACY, AGREEMENT
from fednoil.records.compare import described, short_names
from fednoil.records.environment import differing_code, recorded_code
from fednoil.records.folder import RunFolder
from fednoil.report.places import METHOD_SECTIONS, SETTING_SECTIONS, differing, picked
from fednoil.report.runs import completed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPARED = {
    "run": "run",
    "method": "method",
    "setting": "setting",
    "keys": "differs in",
    "seed": "seed",
    "rounds": "rounds",
    "final_accuracy": "final",
    "best_accuracy": "best",
    "last10_accuracy": "last 10",
    "converged": "conv.",
    "train_batches": "batches",
    "wall_s": "s",
}
_NOT_RESULTS = {"run.seed", "run.checkpoint_every", "run.log"}  # a column of its own, and what changes no result


class Comparison:
    """Several runs side by side, with several seeds in one row. Accuracies are in percent."""

    def __init__(self, groups: Sequence[Sequence[Run]], names: Sequence[str]) -> None:
        self._groups = [tuple(group) for group in groups]
        self.runs = tuple(run for group in groups for run in group)
        self.names = tuple(names)
        self.rows: list[dict[str, Any]] = []  # everything about each run, for programs
        for group, name in zip(self._groups, self.names, strict=True):
            each = [described(run._values, run._roster, run.summary, run.finished) for run in group]
            path = group[0].path if len(group) == 1 or group[0].path is None else group[0].path.parent
            self.rows.append(
                {"run": name if path is None else str(path), **(_mean(each) if len(each) > 1 else each[0])}
            )
        for row, keys in zip(self.rows, self._keys(), strict=True):
            row["keys"] = keys

    @property
    def common(self) -> dict[str, Any]:
        """What all runs have in common in setting, seed and rounds."""
        return {k: self.rows[0][k] for k in ("setting", "seed", "rounds") if len({row[k] for row in self.rows}) == 1}

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the table, by key, leaving out what is the same for all runs."""
        left_out = {*self.common, *([] if any(row["keys"] for row in self.rows) else ["keys"])}
        return {key: heading for key, heading in COMPARED.items() if key not in left_out}

    @property
    def title(self) -> str:
        """The title: what the accuracies are."""
        shared = [str(value) if key == "setting" else f"{key} {value}" for key, value in self.common.items()]
        return f"{self._measure} in percent" + "".join(f", {part}" for part in shared)

    @property
    def _measure(self) -> str:
        measures = {row.get("measure", ACCURACY) for row in self.rows}
        if measures == {AGREEMENT}:
            return AGREEMENT.capitalize()
        return "Test accuracy" + (f" ({AGREEMENT} where a run had no test images)" if AGREEMENT in measures else "")

    @property
    def table(self) -> Table:
        """One row per run: its method, accuracies, batches and seconds, and the keys in which it differs from others of
        the same method. Accuracies of several seeds are means, with their standard deviations beside them (`…_std`)."""
        known = {key for row in self.rows for key in row}
        keys = [name for key in self.columns for name in (key, f"{key}_std") if name == key or name in known]
        several = any(isinstance(row["seed"], str) for row in self.rows)
        rows = [row | {"seed": str(row["seed"])} if several else row for row in self._named()]
        return Table.of([{key: row.get(key) for key in keys} for row in rows])

    def shown(self) -> list[dict[str, Any]]:
        """The rows for people."""
        return [row | _spread(row) for row in self._named()]

    def _named(self) -> list[dict[str, Any]]:
        """The rows with names and keys as text."""
        return [
            {**row, "run": name if row["finished"] else f"{name} (unfinished)", "keys": ", ".join(row["keys"])}
            for row, name in zip(self.rows, self.names, strict=True)
        ]

    def to_markdown(self) -> str:
        """The table in Markdown."""
        return f"{self.title}:\n\n{self.table.to_markdown()}"

    @in_python
    def plot(self, x: str = "round", y: str = "test_accuracy", ax: Axes | None = None) -> Axes:
        """Draw each run's accuracy by round, or other columns of `Run.history`; returns matplotlib's Axes."""
        require_matplotlib()
        from matplotlib import pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(6, 4), layout="constrained")
        drawn = 0
        lines = [(place, run) for place, group in enumerate(self._groups) for run in group]
        for place, run in lines:
            name = self.names[place] if run is self._groups[place][0] else None  # a name for all seeds
            columns = run.history.columns
            if x not in columns or y not in columns:
                continue
            points = [(a, b) for a, b in zip(run.history[x], run.history[y], strict=True) if None not in (a, b)]
            if points:
                colour, style = COLOURS[place % len(COLOURS)], ("-", "--", ":")[place // len(COLOURS) % 3]
                across, up = zip(*points, strict=True)
                ax.plot(across, up, label=name, color=colour, linestyle=style, marker="o", markersize=3)
                drawn += 1
        if not drawn:
            known = ", ".join(dict.fromkeys(c for run in self.runs for c in run.history.columns))
            raise UserError(f"plot: no run has both '{x}' and '{y}'; the columns are {known}")
        axes = {**_AXES, "test_accuracy": f"{self._measure.lower()}, %"}
        ax.set_xlabel(axes.get(x, x))
        ax.set_ylabel(axes.get(y, y))
        ax.grid(alpha=0.3)
        ax.legend(frameon=False)
        return ax

    def _keys(self) -> list[list[str]]:
        """For each run the `section.key=value` that differ between runs with the same method or setting."""
        configs = [_completed(group[0]) for group in self._groups]
        found: list[list[str]] = [[] for _ in self.rows]
        for name, sections in (("method", METHOD_SECTIONS), ("setting", (*SETTING_SECTIONS, "run", "federation"))):
            for row, config, keys in zip(self.rows, configs, found, strict=True):
                alike = [c for c, other in zip(configs, self.rows, strict=True) if other[name] == row[name]]
                keys += picked(config, sections, differing(alike, sections) - _NOT_RESULTS)
        return found

    def __repr__(self) -> str:
        return f"{self.title}\n{self.table!r}"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return f"<p>{self.title}</p>{self.table._repr_html_()}"


_AXES = {"round": "round", "train_batches": "training batches"}


def side_by_side(*runs: Run | str | Path, names: Sequence[str] | None = None) -> Comparison:
    """Put runs, or the folders of runs, side by side; `names` replace their own names."""
    if not runs:
        raise UserError("compare: give at least one run, or the folder of one")
    if strange := next((run for run in runs if not isinstance(run, Run | str | Path)), None):
        raise UserError(
            f"compare: {type(strange).__name__} is no run and no folder; give them one by one, compare(a, b)"
        )
    found = [[run] if isinstance(run, Run) else _read(Path(run)) for run in runs]
    if names is not None and len(names) != len(found):
        raise UserError(f"compare: {len(names)} names for {len(found)} runs; give one each")
    for run in (run for group in found for run in group):
        if not len(run.history):
            diverged = run.path is not None and RunFolder(run.path).diverged()
            why = "diverged in its first round" if diverged else "has no finished round yet"
            raise UserError(f"{run.path or run.name} {why}; leave it out")
    return Comparison(found, names or _names(found))


compare = in_python(side_by_side)


def _completed(run: Run) -> dict[str, Any]:
    try:
        return completed(run._values)
    except UserError as error:
        raise UserError(f"{run.path or run.name}: {error}") from None


def _read(path: Path) -> list[Run]:
    """The run in a folder, or the runs of several seeds that `run --seeds` has left in it."""
    seeds = [] if (path / "config.toml").is_file() else sorted(path.glob("seed-*/config.toml"))
    found = [read_run(file.parent) for file in seeds] or [read_run(path)]
    configs = [_completed(run) for run in found]
    sections = (*METHOD_SECTIONS, *SETTING_SECTIONS, "run")
    changed = {k for k in differing(configs, sections) if not k.startswith("run.") or k == "run.select"}
    if changed:
        raise UserError(f"{path} holds runs that differ in {few_of(sorted(changed), 3)}; give them one by one")
    numbers = [config["run"]["seed"] for config in configs]
    if twice := [seed for seed in numbers if numbers.count(seed) > 1]:
        raise UserError(f"{path} holds {len(twice)} runs with seed {twice[0]}; leave one of them")
    if name := differing_code(recorded_code(file.parent) for file in seeds):
        raise UserError(f"{path}: the file of {name} changed between these runs; give them one by one")
    return found


def _mean(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of several seeds' runs: means, and the standard deviation of accuracies."""
    found: dict[str, Any] = {**rows[0], "seed": ", ".join(str(row["seed"]) for row in rows)}
    for key in ("final_accuracy", "best_accuracy", "last10_accuracy", "train_batches", "wall_s", "rounds"):
        known = [row[key] for row in rows if row.get(key) is not None]
        if len(known) == len(rows):
            mean = statistics.fmean(known)
            found[key] = mean if key.endswith("accuracy") or key == "wall_s" else round(mean)
            if key.endswith("accuracy"):
                found[f"{key}_std"] = statistics.stdev(known)
    converged = [row["converged"] for row in rows]
    return found | {
        "finished": all(row["finished"] for row in rows),
        "converged": None if None in converged else all(converged),
    }


def _spread(row: dict[str, Any]) -> dict[str, str]:
    """A row's means with their standard deviations, as text."""
    keys = [key.removesuffix("_std") for key in row if key.endswith("_std")]
    return {key: f"{row[key]:.2f} ± {row[f'{key}_std']:.2f}" for key in keys}


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The runs' own names if they differ, otherwise with their folders, seeds or numbers."""
    runs = [group[0] for group in groups]
    if all(run.path is not None for run in runs):
        paths = [run.path for run in runs if run.path is not None]
        return short_names([p if len(group) == 1 else p.parent for p, group in zip(paths, groups, strict=True)])
    names = [run.name if not (g and run.path) else run.path.parent.name for run, *g in groups]
    if len(set(names)) < len(names):
        names = [f"{run.name}, seed {run._values.get('run', {}).get('seed', 0)}" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.name} ({place})" for place, run in enumerate(runs, 1)]
    return names
