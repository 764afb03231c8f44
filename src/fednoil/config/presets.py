"""Named configurations: the demo, and every cell of the paper that the package can run.

`paper/<dataset>/<setting>/<noise>/<method>` is put together from one row of each table below;
`small/<setting>/<noise>/<method>` is the same in minutes on a CPU.
"""

from __future__ import annotations

import itertools
from typing import Any

from fednoil.config.small import BASE, shrink
from fednoil.errors import UserError, nearest

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
    "non-iid": {"partition": {"kind": "dirichlet", "clients": 20, "beta": 0.5}},
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

NOISES: dict[str, Values] = {
    **{name: {"noise": {"kind": name.split("-")[0], "ratios": ratios}} for name, ratios in RATIOS.items()},
    **{
        f"{name}-shared": {"noise": {"kind": "pair", "ratios": RATIOS[name], "pair_map": "shared"}}
        for name in ("pair-high", "pair-low")
    },
    "clean": {"noise": {"kind": "none"}},
}

_CONSTANT: Values = {"schedule": {"name": "constant", "epochs": 30}}
_COSINE: Values = {"schedule": {"name": "cosine", "t_max": 100, "t_min": 20, "r_min": 80}}
_LOGARITHM: Values = {"schedule": {"name": "logarithm", "t_max": 100, "t_min": 20, "r_min": 80}}

# The paper sets the size of the labelled subset by hand from the noise mode; for clean labels it says nothing.
_FRAC = {"symmetric-high": 0.35, "pair-high": 0.35, "pair-high-shared": 0.35}
_FRAC_OTHERWISE = 0.55


_THIRD: Values = {"sampling": {"name": "uniform", "fraction": 0.3}}  # of the clients train in a round


def _on_server(server: str, schedule: Values, learner: str = "erm") -> Values:
    return {**_THIRD, "server": {"name": server}, "learner": {"name": learner}, **schedule}


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
    """A round is an epoch, and there are as many as the method's authors have."""
    return {
        "server": {"name": "centralized"},
        "learner": {"name": learner},
        "schedule": {"name": "constant", "epochs": 1},
        "train": {"rounds": rounds},
    }


def _tuned(dataset: str, noise: str) -> Values:
    """DivideMix's keys as its authors choose them by noise; without any, as with the least of theirs, a fifth wrong."""
    if noise.startswith("pair"):
        return {"lambda_u": 0.0, "entropy_penalty": True}
    little, much = (25.0, 150.0) if dataset == "cifar100" else (0.0, 25.0)
    return {"lambda_u": little if noise == "clean" else much}


METHODS: dict[str, Values] = {
    "fedavg": _on_server("fedavg", _CONSTANT),
    "fedprox": _on_server("fedprox", _CONSTANT),
    **{
        f"{server}+{learner}": _on_server(server, _CONSTANT, learner)
        for server in ("fedavg", "apfl", "krum", "cfl")
        for learner in ("dividemix", "josrc")
    },
    "fedavg+dividemix-tuned": _on_server("fedavg", _CONSTANT, "dividemix"),
    "centralized+dividemix": _centralized("dividemix", 300),
    "centralized+josrc": _centralized("josrc", 200),
    "centralized+dividemix-tuned": _centralized("dividemix", 300),
    "fednoil-cosine": _fednoil(_COSINE),
    "fednoil-logarithm": _fednoil(_LOGARITHM),
    "fednoil-auto": _fednoil(_LOGARITHM, learner={"frac": "auto"}),
    "fednoil-plus": _fednoil(_LOGARITHM, server={"average": 0.95}, learner={"name": "fednoil-plus"}),
    "fednoil-uniform-clients": _fednoil(_LOGARITHM, sampling="uniform"),
    "fednoil-uniform-local": _fednoil(_LOGARITHM, learner={"local_sampling": "uniform"}),
    "fednoil-no-ssl": _fednoil(_LOGARITHM, learner={"ssl": False}),
}

_DEMO_SETTING: Values = {
    "data": {"name": "fashion-mnist-mini"},
    "partition": {"kind": "iid", "clients": 20},
    "noise": {"kind": "symmetric", "ratios": RATIOS["symmetric-high"]},
    "model": {"name": "cnn", "width": 12},
    "train": {"rounds": 20, "pad": 2},
}

# The same total of local epochs for both, 298: 14 a round and one more in 18 rounds, against 30 falling to 8.
_DEMO_FEDAVG = _on_server("fedavg", {"schedule": {"name": "constant", "epochs": 14, "extra_rounds": 18}})
_DEMO_FEDNOIL = _fednoil({"schedule": {"name": "cosine", "t_max": 30, "t_min": 8, "r_min": 10}}, learner={"frac": 0.35})

_DEMOS: dict[str, Values] = {
    "demo": _DEMO_FEDNOIL,
    "demo/fednoil": _DEMO_FEDNOIL,
    "demo/fedavg": _DEMO_FEDAVG,
}


def _overlay(*layers: Values) -> Values:
    merged: Values = {}
    for layer in layers:
        for section, keys in layer.items():
            merged[section] = {**merged.get(section, {}), **keys}
    return merged


def preset_parts() -> dict[str, list[str]]:
    """What presets are put together from: `demo` are whole names, the others the parts of a paper's cell in order."""
    tables = {"demo": _DEMOS, "dataset": DATASETS, "setting": SETTINGS, "noise": NOISES, "method": METHODS}
    return {what: list(table) for what, table in tables.items()}


def preset_names() -> list[str]:
    """All presets, the demo first."""
    grid = itertools.product(DATASETS, SETTINGS, NOISES, METHODS)
    small = itertools.product(SETTINGS, NOISES, METHODS)
    return [
        *_DEMOS,
        *("/".join(("paper", *cell)) for cell in grid),
        *("/".join(("small", *cell)) for cell in small),
    ]


def preset(name: str) -> Values:
    """The sections of a preset."""
    if name in _DEMOS:
        return _overlay(_DEMO_SETTING, _DEMOS[name])
    parts = name.split("/")
    if parts[0] == "small" and len(parts) == 4:
        return shrink(preset("/".join(("paper", BASE, *parts[1:]))), parts[1])
    if parts[0] != "paper" or len(parts) != 5:
        raise UserError(
            f"unknown preset '{name}'; `fednoil presets` lists them: demo, or "
            "paper/<dataset>/<setting>/<noise>/<method>, or small/<setting>/<noise>/<method>"
            f"{nearest(name, preset_names())}"
        )
    _, dataset, setting, noise, method = parts
    for what, part, table in (
        ("dataset", dataset, DATASETS),
        ("setting", setting, SETTINGS),
        ("noise", noise, NOISES),
        ("method", method, METHODS),
    ):
        if part not in table:
            raise UserError(
                f"preset '{name}': unknown {what} '{part}'; choose {', '.join(table)}{nearest(part, list(table))}"
            )
    values = _overlay(DATASETS[dataset], SETTINGS[setting], NOISES[noise], METHODS[method])
    if values.get("learner", {}).get("name") == "fednoil":
        values["learner"].setdefault("frac", _FRAC.get(noise, _FRAC_OTHERWISE))
    if dataset == "cifar100" and values.get("learner", {}).get("name") == "dividemix":
        values["learner"]["warmup"] = 30  # as its authors have it for 100 classes
    if method.endswith("dividemix-tuned"):
        values["learner"].update(_tuned(dataset, noise))
    if (dataset, setting) == ("cifar100", "100-clients"):
        values["partition"]["samples_per_client"] = 500  # 100 × 1000 would be twice the training set
    return values
