"""What to run: the paper's tables and figures as cells, one run each.

A cell is a preset with changes and a seed. It is known by the hash of its configuration, which is part of its folder's
name: cells that several tables share are run once, and a cell that is done is never run again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednoil.config import Config, load_config, merge
from fednoil.config.presets import DATASETS, METHODS, NOISES, SETTINGS
from fednoil.errors import UserError, nearest
from fednoil.paper import METHODS as PAPER_METHODS
from fednoil.records.files import read_json
from fednoil.report.places import Place, place_of, schedule_methods, values_of

SCALES = ("paper", "small")
DEFAULT_SEEDS = {"paper": "0..4", "small": "0..2"}  # the paper's five; three keep a small table under ten minutes
_NOISY = ("symmetric-high", "symmetric-low", "pair-high", "pair-low")
_ABLATION = ("fednoil-logarithm", "fednoil-uniform-clients", "fednoil-uniform-local")
_SCHEDULES = ("fednoil-cosine", "fednoil-logarithm", *schedule_methods())
_TRADE_OFF = tuple(m for m in _SCHEDULES if "(10)" not in m and not re.search(r"constant.*\((20|40)\)", m))
_BASELINES = tuple(m for m in dict.fromkeys(PAPER_METHODS.values()) if m not in _ABLATION and m != "fednoil-no-ssl")


@dataclass(frozen=True)
class Goal:
    """A table or figure of the paper; a figure without methods needs no runs."""

    title: str
    datasets: tuple[str, ...] = ("cifar10",)
    settings: tuple[str, ...] = ("iid",)
    noises: tuple[str, ...] = ("symmetric-high",)
    methods: tuple[str, ...] = ()
    figure: str | None = None


GOALS: dict[str, Goal] = {
    "table1": Goal(
        "Table 1: FedNoiL and baselines on three datasets",
        tuple(DATASETS),
        ("iid", "non-iid"),
        _NOISY,
        (*_BASELINES, "fednoil-logarithm"),
    ),
    "table2": Goal(
        "Table 2: 100 clients, and clients of unequal size",
        settings=("100-clients", "imbalanced"),
        noises=_NOISY,
        methods=tuple(
            m for m in (*_BASELINES, "fednoil-logarithm") if not m.startswith("centralized") and m != "fedprox"
        ),
    ),
    "table3": Goal(
        "Table 3: either level of sampling made uniform", tuple(DATASETS), ("iid",), _NOISY[::2], _ABLATION, "ablation"
    ),
    "table4": Goal(
        "Table 4: without semi-supervised learning", noises=_NOISY, methods=("fednoil-logarithm", "fednoil-no-ssl")
    ),
    "schedules": Goal("Figure: local epochs by round", figure="schedules"),
    "efficiency": Goal("Figure: accuracy over rounds and over batches", methods=_SCHEDULES, figure="efficiency"),
    "tradeoff": Goal("Figure: rounds, batches and accuracy", methods=_TRADE_OFF, figure="tradeoff"),
    "ablation": Goal("Figure: Table 3 round by round", noises=("pair-high",), methods=_ABLATION, figure="ablation"),
    "clean": Goal("Clean labels: FedAvg and FedNoiL", noises=("clean",), methods=("fedavg", "fednoil-logarithm")),
}


@dataclass(frozen=True)
class Wanted:
    """What a user asked for; empty lists mean the goal's own."""

    scale: str = "paper"
    datasets: Sequence[str] = ()
    settings: Sequence[str] = ()
    noises: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    changes: dict[str, dict[str, Any]] | None = None  # sections of --set


@dataclass(frozen=True, eq=False)
class Cell:
    """One run to make."""

    config: Config
    place: Place

    @property
    def title(self) -> str:
        return f"{self.place.title}, {self.place.method_title}, seed {self.config.run.seed}"

    @property
    def folder(self) -> str:
        place = self.place
        words = (place.family, place.dataset, place.setting, place.noise, place.method)
        name = re.sub(r"[^\w+-]+", "-", "-".join(w for w in words if w)).strip("-")
        return f"{name}-seed{self.config.run.seed}-{self.config.hash()[:8]}"

    def is_done(self, out: Path) -> bool:
        """Whether `out` holds this cell's finished run."""
        try:
            summary = read_json(out / self.folder / "summary.json")
            return summary["config_hash"] == self.config.hash()
        except (UserError, TypeError, KeyError):
            return False


def make_plan(goal: str, wanted: Wanted) -> list[Cell]:
    """The cells of a goal, or of all of them, each once."""
    if goal != "all" and goal not in GOALS:
        raise UserError(
            f"unknown table or figure '{goal}'; choose {', '.join([*GOALS, 'all'])}{nearest(goal, [*GOALS])}"
        )
    if wanted.scale not in SCALES:
        raise UserError(f"--scale {wanted.scale}: choose {' or '.join(SCALES)}")
    _check("--dataset", wanted.datasets, list(DATASETS))
    _check("--setting", wanted.settings, list(SETTINGS))
    _check("--noise", wanted.noises, list(NOISES))
    methods = [PAPER_METHODS.get(m, m) for m in wanted.methods]
    _check("--method", methods, [*METHODS, *schedule_methods()])
    if wanted.scale == "small" and wanted.datasets:
        raise UserError("--dataset: the small scale has the embedded Fashion-MNIST images and nothing else")
    cells: dict[str, Cell] = {}
    for name in GOALS if goal == "all" else [goal]:
        spec, some = GOALS[name], goal == "all"
        for values in _grid(
            spec,
            wanted,
            _chosen(wanted.datasets, spec.datasets, some),
            _chosen(wanted.settings, spec.settings, some),
            _chosen(wanted.noises, spec.noises, some),
            _chosen(methods, spec.methods, some) if spec.methods else [],
        ):
            config = load_config(values)
            cells.setdefault(config.hash(), Cell(config, place_of(config.model_dump(mode="json"))))
    return list(cells.values())


def _grid(
    spec: Goal,
    wanted: Wanted,
    datasets: Sequence[str],
    settings: Sequence[str],
    noises: Sequence[str],
    methods: Sequence[str],
) -> list[dict[str, Any]]:
    """Seeds come last but one: a plan that is stopped early has whole rows of the paper's table."""
    changes = wanted.changes or {}
    rounds = changes.get("train", {}).get("rounds")
    found = []
    for dataset in datasets if wanted.scale == "paper" else [""]:
        for setting in settings:
            for noise in noises:
                for seed in wanted.seeds:
                    for method in methods:
                        values = values_of(wanted.scale, dataset, setting, noise, method, rounds)
                        values = merge(values, changes)
                        found.append(merge(values, {"run": {"seed": seed}}))
    return found


def _chosen(given: Sequence[str], own: Sequence[str], only_own: bool) -> list[str]:
    """What the user named; of all goals together, what of it belongs to this one."""
    return [g for g in given if g in own or not only_own] if given else list(own)


def _check(option: str, given: Sequence[str], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise UserError(f"{option} {name}: choose {', '.join(known)}{nearest(name, known)}")


def parse_seeds(text: str) -> list[int]:
    """`0..4`, `3`, `0,2,5` or a mixture."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last - first > 10_000:
            raise UserError(f"--seeds {text}: write numbers from 0 up, such as 0..4 or 0,2,5")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))
