"""Plans: the paper's tables and figures as cells, one run each.

A cell is a preset with changes and a seed. It is known by the hash of its configuration, which is part of its folder's
name: cells that several tables share are run once, and a cell that is done is never run again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fednoil.batch.cell import Cell
from fednoil.config import Config, load_config, merge
from fednoil.config.source import as_set, origin_of
from fednoil.errors import UserError, check_known, nearest
from fednoil.report.places import Place, own_place
from fednoil.study.figures import FIGURES
from fednoil.study.goals import TABLES, Goal
from fednoil.study.paper import METHOD_NAMES
from fednoil.study.places import paper_name, place_of, preset_name, schedule_methods, values_of
from fednoil.study.presets import DATASETS, PAPER_METHODS, PAPER_NOISES, SETTINGS

PAPER_SCALES = ("paper", "small")
DEFAULT_SEEDS = {"paper": "0..4", "small": "0..2"}  # the paper's five; three keep a small table under ten minutes
_TABLES = {name: goal for name, goal in TABLES.items() if name != "clean"}
GOALS: dict[str, Goal] = {**_TABLES, **{f.name: f.goal for f in FIGURES.values()}, "clean": TABLES["clean"]}


@dataclass(frozen=True)
class PlanOptions:
    """The user's options; empty lists mean the goal's own."""

    scale: str = "paper"
    datasets: Sequence[str] = ()
    settings: Sequence[str] = ()
    noises: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    changes: dict[str, dict[str, Any]] | None = None  # sections of --set


@dataclass(frozen=True, eq=False)
class PlacedCell(Cell):
    """A cell of a table or figure, and its place in the study."""

    place: Place


def placed(config: Config, origin: dict[str, Any]) -> PlacedCell:
    """The cell that makes this run; its folder's name distinguishes it from every other configuration."""
    values, seed = config.model_dump(mode="json"), config.run.seed
    place = place_of(values, origin) or own_place(values)
    words = (place.family, place.dataset, place.setting, place.noise, place.method)
    name = re.sub(r"[^\w+-]+", "-", "-".join(w for w in words if w)).strip("-")
    return PlacedCell(
        config,
        f"{place.title}, {place.method_title}, seed {seed}",
        f"{name}-seed{seed}-{config.hash()[:8]}",
        f"{paper_name(place.method)}, {place.noise}, seed {seed}",
        place,
        origin=origin,
    )


def make_plan(goal: str, wanted: PlanOptions) -> list[PlacedCell]:
    """The cells of a goal, or of all goals, each once: seed by seed, the most informative first."""
    if goal != "all" and goal not in GOALS:
        raise UserError(
            f"unknown table or figure '{goal}'; choose {', '.join([*GOALS, 'all'])}{nearest(goal, [*GOALS])}"
        )
    if wanted.scale not in PAPER_SCALES:
        raise UserError(f"--scale {wanted.scale}: choose {' or '.join(PAPER_SCALES)}")
    wanted = replace(wanted, methods=[METHOD_NAMES.get(m, m) for m in wanted.methods])
    for option, (given, known) in _filters(wanted).items():
        check_known(option, given, known)
    if wanted.scale == "small" and wanted.datasets:
        raise UserError("--dataset: the small scale has only the embedded Fashion-MNIST images; leave it out")
    cells = _cells(goal, wanted)
    if not cells and (goal == "all" or GOALS[goal].methods):
        raise UserError(_empty(goal, wanted))
    if goal != "all" and not GOALS[goal].methods and (wanted.settings or wanted.noises or wanted.methods):
        raise UserError(f"{goal} needs no runs, so --setting, --noise and --method don't apply; leave them out")
    return sorted(cells, key=_urgency)


def _filters(wanted: PlanOptions) -> dict[str, tuple[Sequence[str], list[str]]]:
    """The options that choose cells: what was given, and what is known."""
    return {
        "--dataset": (wanted.datasets, list(DATASETS)),
        "--setting": (wanted.settings, list(SETTINGS)),
        "--noise": (wanted.noises, list(PAPER_NOISES)),
        "--method": (wanted.methods, [*PAPER_METHODS, *schedule_methods()]),
    }


def _cells(goal: str, wanted: PlanOptions) -> list[PlacedCell]:
    cells: dict[str, PlacedCell] = {}
    for name in GOALS if goal == "all" else [goal]:
        spec, some = GOALS[name], goal == "all"
        for values, origin in _grid(
            wanted,
            _chosen(wanted.datasets, spec.datasets, some),
            _chosen(wanted.settings, spec.settings, some),
            _chosen(wanted.noises, spec.noises, some),
            _chosen(wanted.methods, spec.methods, some) if spec.methods else [],
        ):
            cell = placed(load_config(values), origin)
            cells.setdefault(cell.config.hash(), cell)
    return list(cells.values())


def _empty(goal: str, wanted: PlanOptions) -> str:
    """Why a plan has no cell: the options that exclude all cells, each by itself or all together."""
    fields = {"--dataset": "datasets", "--setting": "settings", "--noise": "noises", "--method": "methods"}
    given = {option: values for option, (values, _) in _filters(wanted).items() if values}
    guilty = [option for option in given if _cells(goal, replace(wanted, seeds=(0,), **{fields[option]: ()}))]
    named = " with ".join(f"{option} {' '.join(given[option])}" for option in guilty or given)
    return f"nothing to run: no table or figure of '{goal}' has {named}; leave it out or name another"


def _urgency(cell: PlacedCell) -> tuple[int, int, int]:
    """Order of the plan: by seed, then by dataset, small ones first, then FedNoiL before its competitors."""
    place, datasets = cell.place, list(DATASETS)
    dataset = datasets.index(place.dataset) if place.dataset in datasets else 0
    method = 0 if place.method in ("fednoil-logarithm", "fednoil-cosine") else 2 if "centralized" in place.method else 1
    return cell.config.run.seed, dataset, method


def _grid(
    wanted: PlanOptions, datasets: Sequence[str], settings: Sequence[str], noises: Sequence[str], methods: Sequence[str]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The sections of every cell that has a preset, method by method, and where they came from."""
    changes = wanted.changes or {}
    rounds = changes.get("train", {}).get("rounds")
    places = itertools.product(datasets if wanted.scale == "paper" else [""], methods, settings, noises, wanted.seeds)
    for dataset, method, setting, noise, seed in places:
        name = preset_name(wanted.scale, dataset, setting, noise, method)
        if name is None:
            continue
        values = values_of(wanted.scale, dataset, setting, noise, method, rounds)
        own = {"schedule": values["schedule"]} if method in schedule_methods() else {}
        origin = {"preset": name, "set": [*as_set(own), *origin_of(name, changes)["set"]]}
        yield merge(merge(values, changes), {"run": {"seed": seed}}), origin


def _chosen(given: Sequence[str], own: Sequence[str], only_own: bool) -> list[str]:
    """What the user named; for `all`, only what belongs to this goal."""
    return [g for g in given if g in own or not only_own] if given else list(own)
