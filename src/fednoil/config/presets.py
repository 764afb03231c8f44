"""Named configurations: the demo, and families of presets that others register."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fednoil.config.protocols import PROTOCOLS, ProtocolFamily
from fednoil.errors import UserError, nearest

Values = dict[str, Any]


class Family(Protocol):
    """Presets with names that start with the family's name and a slash."""

    def names(self) -> Sequence[str]:
        """All of them, in the order in which they are listed."""
        ...

    def values(self, name: str) -> Values:
        """The sections of one; a name that doesn't exist is a `UserError`."""
        ...

    def about(self) -> Sequence[str]:
        """What there is, in a few lines."""
        ...


_DEMO_SETTING: Values = {
    "data": {"name": "fashion-mnist-mini"},
    "partition": {"kind": "iid", "clients": 20},
    "noise": {"kind": "symmetric", "ratios": [0.5, 0.6, 0.7, 0.8]},
    "model": {"name": "cnn", "width": 12},
    "train": {"rounds": 20, "pad": 2},
}

# What to use when nobody knows the noise (experiments/default).
DEFAULT: Values = {
    "sampling": {"name": "uniform", "fraction": 0.3},
    "server": {"name": "fedavg", "average": 0.95},
    "learner": {"name": "fednoil-plus"},
    "schedule": {"name": "network"},
    "train": {"weight_decay": "auto"},
}
_DEMO_FEDNOIL: Values = {
    "sampling": {"name": "score", "fraction": 0.3},
    "server": {"name": "fedavg"},
    "learner": {"name": "fednoil", "frac": 0.35},
    "schedule": {"name": "cosine", "epochs": 30, "t_min": 8, "r_min": 10},
}
# The same total of local epochs for both, 298: 15 a round and 14 in the last two, against 30 falling to 8.
_DEMO_FEDAVG: Values = {
    "sampling": {"name": "uniform", "fraction": 0.3},
    "server": {"name": "fedavg"},
    "learner": {"name": "erm"},
    "schedule": {"name": "constant", "epochs": 15, "r_min": 19},
}

_DEMOS: dict[str, Values] = {
    "demo": DEFAULT,
    "demo/fednoil": _DEMO_FEDNOIL,
    "demo/fedavg": _DEMO_FEDAVG,
}
_FAMILIES: dict[str, Callable[[], Family]] = {
    name: partial(ProtocolFamily, name, settings) for name, settings in PROTOCOLS.items()
}
# Families that a program has to import; the command knows them.
_ELSEWHERE = {"paper": "fednoil.study", "small": "fednoil.study", "bench": "fednoil.bench.presets"}


def register(family: str, load: Callable[[], Family]) -> None:
    """Register a family of presets; `load` is called when one of them is used."""
    _FAMILIES[family] = load


def preset_names() -> list[str]:
    """All presets, the demo first."""
    return [*_DEMOS, *(name for load in _FAMILIES.values() for name in load().names())]


def is_preset(name: str) -> bool:
    """Whether a preset has this name; loads no other family than its own."""
    family = _FAMILIES.get(name.split("/")[0])
    return name in _DEMOS or (family is not None and name in family().names())


def preset(name: str) -> Values:
    """The sections of a preset."""
    if name in _DEMOS:
        layers = (_DEMO_SETTING, _DEMOS[name])
        sections = dict.fromkeys(section for layer in layers for section in layer)
        return {section: {**layers[0].get(section, {}), **layers[1].get(section, {})} for section in sections}
    if (load := _FAMILIES.get(name.split("/")[0])) is not None:
        return load().values(name)
    if data := _as_data(name):
        raise UserError(f"'{name}' is not a preset; to use it as data: fednoil run demo --set data.name={data}")
    known = preset_names()
    if module := _ELSEWHERE.get(name.split("/")[0]):
        raise UserError(f"preset '{name}' is known after `import {module}`")
    raise UserError(
        f"unknown preset '{name}'; `fednoil presets` lists them: {', '.join([*_DEMOS, *(f'{f}/…' for f in _FAMILIES)])}"
        f"{nearest(name, known)}"
    )


def _as_data(name: str) -> str:
    """The data that was named in place of a preset, or ""."""
    path = Path(name)
    if ":" in name or not path.exists() or (path / "config.toml").exists():
        return name if ":" in name else ""
    return f"folder:{name}" if path.is_dir() else ""


def about_presets() -> list[str]:
    """What presets there are, in a few lines."""
    return [*_DEMOS, *(line for load in _FAMILIES.values() for line in load().about())]
