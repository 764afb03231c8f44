"""The study's presets: `paper/<dataset>/<setting>/<noise>/<method>`, and `small/...` for the same on a CPU.

Each is composed of one row of each table below. Only those exist that a goal of the study uses (`fednoil.study.goals`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from fednoil.config.presets import DEFAULT
from fednoil.errors import UserError, nearest
from fednoil.study.goals import BEYOND, FEDNOIL, SMALL_BEYOND, TABLES, Goal
from fednoil.study.small import BASE, shrink

Values = dict[str, Any]

DATASETS: dict[str, Values] = {
    "fashion-mnist": {
        "data": {"name": "fashion-mnist"},
        "partition": {"samples_per_client": 600},
        "model": {"name": "cnn", "width": 32},
        "train": {"rounds": 150, "pad": 2},  # the paper gives no shift; see experiments/paper
    },
    "cifar10": {
        "data": {"name": "cifar10"},
        "partition": {"samples_per_client": 500},
        "model": {"name": "resnet18"},
        "train": {"rounds": 200},
    },
    "cifar100": {
        "data": {"name": "cifar100"},
        "partition": {"samples_per_client": 1000},
        "model": {"name": "resnet18"},
        "train": {"rounds": 200},
    },
}

SETTINGS: dict[str, Values] = {
    "iid": {"partition": {"kind": "iid", "clients": 20}},
    "non-iid": {"partition": {"kind": "dirichlet", "clients": 20, "beta": 1.0}},
    "non-iid-0.5": {"partition": {"kind": "dirichlet", "clients": 20, "beta": 0.5}},
    "non-iid-0.1": {"partition": {"kind": "dirichlet", "clients": 20, "beta": 0.1}},
    "100-clients": {"partition": {"kind": "iid", "clients": 100}},
    "imbalanced": {"partition": {"kind": "quantity", "clients": 20, "beta": 20.0}},
}

# The paper's four groups of clients: the noise ratio of each, by kind and mode.
RATIOS: dict[str, list[float]] = {
    "symmetric-high": [0.5, 0.6, 0.7, 0.8],
    "symmetric-low": [0.3, 0.4, 0.5, 0.6],
    "pair-high": [0.3, 0.5, 0.6, 0.8],
    "pair-low": [0.3, 0.4, 0.5, 0.6],
}

PAPER_NOISES: dict[str, Values] = {
    **{name: {"noise": {"kind": name.split("-")[0], "ratios": ratios}} for name, ratios in RATIOS.items()},
    **{
        f"{name}-shared": {"noise": {"kind": "pair", "ratios": RATIOS[name], "map": "shared"}}
        for name in ("pair-high", "pair-low")
    },
    "clean": {"noise": {"kind": "none"}},
}

_CONSTANT: Values = {"schedule": {"name": "constant", "epochs": 30}}
_COSINE: Values = {"schedule": {"name": "cosine", "epochs": 100, "t_min": 20, "r_min": 80}}
_LOGARITHM: Values = {"schedule": {"name": "logarithm", "epochs": 100, "t_min": 20, "r_min": 80}}

# The paper sets the size of the labelled subset by noise mode; for clean labels it gives none.
_FRAC = {"symmetric-high": 0.35, "pair-high": 0.35, "pair-high-shared": 0.35}
_FRAC_OTHERWISE = 0.55


def _on_server(server: str, schedule: Values, learner: str = "erm") -> Values:
    """A third of the clients, drawn uniformly, train in a round."""
    sampling = {"name": "uniform", "fraction": 0.3}
    return {"sampling": sampling, "server": {"name": server}, "learner": {"name": learner}, **schedule}


def _fednoil(
    schedule: Values, sampling: str = "score", server: Values | None = None, learner: Values | None = None
) -> Values:
    """FedNoiL's two levels of sampling on FedAvg; the ablations change one of them."""
    return {
        "sampling": {"name": sampling, "fraction": 0.3},
        "server": {"name": "fedavg", **(server or {})},
        "learner": {"name": "fednoil", **(learner or {})},
        **schedule,
    }


def _centralized(learner: str, rounds: int) -> Values:
    """A round is an epoch, and there are as many as in the authors' experiments."""
    return {
        "server": {"name": "centralized"},
        "learner": {"name": learner},
        "schedule": {"name": "constant", "epochs": 1},
        "train": {"rounds": rounds},
    }


_UNIFORM_LOCAL, _RECIPE = "fednoil.study.ablation:UniformLocal", "fednoil.study.recipe:Recipe"
RECIPE = "fednoil-recipe"  # what reaches the paper's number on CIFAR-10 (experiments/cifar)
PAPER_METHODS: dict[str, Values] = {
    "fedavg": _on_server("fedavg", _CONSTANT),
    "fedprox": _on_server("fedprox", _CONSTANT),
    **{
        f"{server}+{learner}": _on_server(server, _CONSTANT, learner)
        for server in ("fedavg", "apfl", "krum", "cfl")
        for learner in ("dividemix", "josrc")
    },
    "centralized+dividemix": _centralized("dividemix", 300),
    "centralized+josrc": _centralized("josrc", 200),
    "fednoil-cosine": _fednoil(_COSINE),
    "fednoil-logarithm": _fednoil(_LOGARITHM),
    "fednoil-auto": _fednoil(_LOGARITHM, learner={"frac": "auto"}),
    "fednoil-plus": DEFAULT,
    "fednoil-uniform-clients": _fednoil(_LOGARITHM, sampling="uniform"),
    "fednoil-uniform-local": _fednoil(_LOGARITHM, learner={"name": _UNIFORM_LOCAL}),
    "fednoil-no-ssl": _fednoil(_LOGARITHM, learner={"weight": 0.0}),
    RECIPE: {
        **_fednoil(
            _LOGARITHM,
            learner={"name": _RECIPE, "x_augment": "strong"},
        ),
        "train": {"weight_decay": 2e-3},
    },
}

# The other reading of the labelled subset's size: as many samples as a client has clean labels (experiments/readings).
TOTAL = "-total"
PAPER_METHODS |= {
    f"{name}{TOTAL}": PAPER_METHODS[name]
    for name in (*FEDNOIL, "fednoil-uniform-clients", "fednoil-uniform-local", "fednoil-no-ssl")
}

PARTS: dict[str, dict[str, Values]] = {
    "dataset": DATASETS,
    "setting": SETTINGS,
    "noise": PAPER_NOISES,
    "method": PAPER_METHODS,
}


def composed(dataset: str, setting: str, noise: str, method: str) -> Values:
    """The sections of a cell at the paper's scale."""
    values: Values = {}
    for layer in (DATASETS[dataset], SETTINGS[setting], PAPER_NOISES[noise], PAPER_METHODS[method]):
        for section, keys in layer.items():
            values[section] = {**values.get(section, {}), **keys}
    if method.endswith(TOTAL):
        values["learner"]["frac"] = [round(1 - ratio, 6) for ratio in values["noise"].get("ratios", [0.0])]
    elif values.get("learner", {}).get("name") in ("fednoil", _UNIFORM_LOCAL, _RECIPE):
        values["learner"].setdefault("frac", _FRAC.get(noise, _FRAC_OTHERWISE))
    if dataset == "cifar100" and values.get("learner", {}).get("name") == "dividemix":
        values["learner"]["warmup"] = 30  # the authors' value for 100 classes
    return values


class PresetGrid:
    """The presets of one scale: the cells of some goals, in the order of the tables above."""

    def __init__(self, scale: str, goals: Iterable[Goal]) -> None:
        self.scale, self._goals = scale, tuple(goals)
        self.parts = list(PARTS)[scale == "small" :]  # the small scale has one dataset

    @functools.cached_property
    def _cells(self) -> dict[str, tuple[str, ...]]:
        """The parts of each name."""
        wanted = {cell[-len(self.parts) :] for goal in self._goals for cell in goal.cells()}
        order = [list(PARTS[what]) for what in self.parts]
        ranked = sorted(wanted, key=lambda cell: [names.index(part) for names, part in zip(order, cell, strict=True)])
        return {"/".join((self.scale, *cell)): cell for cell in ranked}

    def names(self) -> Sequence[str]:
        return list(self._cells)

    def values(self, name: str) -> Values:
        if name not in self._cells:
            raise UserError(self._unknown(name))
        *dataset, setting, noise, method = self._cells[name]
        values = composed(dataset[0] if dataset else BASE, setting, noise, method)
        return values if dataset else shrink(values, setting)

    def _unknown(self, name: str) -> str:
        parts = name.split("/")[1:]
        if len(parts) != len(self.parts):
            form = "/".join([self.scale, *(f"<{what}>" for what in self.parts)])
            return f"unknown preset '{name}'; write {form}{nearest(name, list(self.names()))}"
        for what, part in zip(self.parts, parts, strict=True):
            if part not in PARTS[what]:
                known = list(PARTS[what])
                return f"preset '{name}': unknown {what} '{part}'; choose {', '.join(known)}{nearest(part, known)}"
        start = "/".join([self.scale, *parts[:-1], ""])
        methods = [known.removeprefix(start) for known in self.names() if known.startswith(start)]
        there = f"{start}… has {', '.join(methods)}" if methods else f"there is no preset {start}…"
        return f"the study has no preset '{name}'; {there}"

    def about(self) -> Sequence[str]:
        form = "/".join(f"<{what}>" for what in self.parts)
        if self.scale == "small":
            return [f"small/{form}: the same in minutes on a CPU, with the embedded data; {len(self._cells)} in all"]
        lines = [f"  {what + ':':9} {', '.join(PARTS[what])}" for what in self.parts]
        return [f"paper/{form}, {len(self._cells)} in all:", *lines]


PAPER = PresetGrid("paper", (*TABLES.values(), *BEYOND))
SMALL = PresetGrid("small", (*TABLES.values(), *SMALL_BEYOND))
