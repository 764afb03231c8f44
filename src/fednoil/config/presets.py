"""Named configurations: the demo, and every cell of the paper that the package can run.

`paper/<dataset>/<setting>/<noise>/<method>` is put together from one row of each table below.
"""

from __future__ import annotations

import itertools
from typing import Any

from fednoil.errors import UserError, nearest

Values = dict[str, Any]

_DATASETS: dict[str, Values] = {
    "fashion-mnist": {
        "data": {"name": "fashion-mnist"},
        "partition": {"samples_per_client": 600},
        "model": {"name": "cnn", "width": 32},
        "train": {"rounds": 150},
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

_SETTINGS: dict[str, Values] = {
    "iid": {"partition": {"kind": "iid", "clients": 20}},
    "non-iid": {"partition": {"kind": "dirichlet", "clients": 20, "beta": 0.5}},
    "100-clients": {"partition": {"kind": "iid", "clients": 100}},
    "imbalanced": {"partition": {"kind": "quantity", "clients": 20, "beta": 20.0}},
}

_NOISES: dict[str, Values] = {
    "symmetric-high": {"noise": {"kind": "symmetric", "mode": "high"}},
    "symmetric-low": {"noise": {"kind": "symmetric", "mode": "low"}},
    "pair-high": {"noise": {"kind": "pair", "mode": "high", "pair_map": "per_client"}},
    "pair-low": {"noise": {"kind": "pair", "mode": "low", "pair_map": "per_client"}},
    "pair-high-shared": {"noise": {"kind": "pair", "mode": "high", "pair_map": "shared"}},
    "pair-low-shared": {"noise": {"kind": "pair", "mode": "low", "pair_map": "shared"}},
    "clean": {"noise": {"kind": "none"}},
}

_METHODS: dict[str, Values] = {
    "fedavg": {"server": {"name": "fedavg"}, "schedule": {"name": "constant", "epochs": 30}},
    "fedprox": {"server": {"name": "fedprox"}, "schedule": {"name": "constant", "epochs": 30}},
}

_DEMO_SETTING: Values = {
    "data": {"name": "fashion-mnist-mini"},
    "partition": {"kind": "iid", "clients": 20},
    "noise": {"kind": "symmetric", "mode": "high"},
    "model": {"name": "cnn", "width": 12},
    "train": {"rounds": 20},
}

_DEMOS: dict[str, Values] = {
    "demo": {"server": {"name": "fedavg"}, "schedule": {"name": "constant", "epochs": 15}},
}


def _overlay(*layers: Values) -> Values:
    merged: Values = {}
    for layer in layers:
        for section, keys in layer.items():
            merged[section] = {**merged.get(section, {}), **keys}
    return merged


def preset_names() -> list[str]:
    """All presets, the demo first."""
    grid = itertools.product(_DATASETS, _SETTINGS, _NOISES, _METHODS)
    return [*_DEMOS, *("/".join(("paper", *cell)) for cell in grid)]


def preset(name: str) -> Values:
    """The sections of a preset."""
    if name in _DEMOS:
        return _overlay(_DEMO_SETTING, _DEMOS[name])
    parts = name.split("/")
    if parts[0] != "paper" or len(parts) != 5:
        raise UserError(
            f"unknown preset '{name}'; `fednoil presets` lists them: demo, or "
            f"paper/<dataset>/<setting>/<noise>/<method>{nearest(name, preset_names())}"
        )
    _, dataset, setting, noise, method = parts
    for what, part, table in (
        ("dataset", dataset, _DATASETS),
        ("setting", setting, _SETTINGS),
        ("noise", noise, _NOISES),
        ("method", method, _METHODS),
    ):
        if part not in table:
            raise UserError(
                f"preset '{name}': unknown {what} '{part}'; choose {', '.join(table)}{nearest(part, list(table))}"
            )
    values = _overlay(_DATASETS[dataset], _SETTINGS[setting], _NOISES[noise], _METHODS[method])
    if (dataset, setting) == ("cifar100", "100-clients"):
        values["partition"]["samples_per_client"] = 500  # 100 × 1000 would be twice the training set
    return values
