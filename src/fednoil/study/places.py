"""Where a run belongs in the study: which of the paper's settings and methods it is, and what it changes.

A run records the preset that it came from. Where it doesn't (earlier versions, or a user's own file) it is recognised
by its configuration, never by its folder's name, so `fednoil run` and `fednoil reproduce` give the same rows. A run
that is not close to a preset, on a user's own data for instance, is not part of the study.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from fednoil import schedules
from fednoil.config import load_config, merge
from fednoil.records.compare import method_name
from fednoil.report.places import (
    METHOD_SECTIONS,
    SETTING_SECTIONS,
    TRAINING,
    Place,
    as_method,
    differences,
    method_key,
    own_keys,
)
from fednoil.schedules.constant import adding_up_to
from fednoil.study.paper import FIGURE_SCHEDULES, METHOD_NAMES
from fednoil.study.presets import DATASETS, PAPER, PAPER_METHODS, PAPER_NOISES, RATIOS, SETTINGS, SMALL, TOTAL, composed
from fednoil.study.small import BASE, shrink, shrink_schedule

Values = dict[str, Any]

_MOST_CHANGES = {"paper": 6, "small": 3}  # of a setting; with more it is a different setting
# The paper's name of a method, where several rows have one preset: that of Table 1.
_NAMES = {ours: paper for paper, ours in reversed(METHOD_NAMES.items())} | {
    "fednoil-logarithm": "FedNoiL(Logarithm)",
    "fednoil-auto": "FedNoiL(Logarithm), automatic share",
}


class PaperPlace(Place):
    """The family is the scale, "paper" or "small"; the others are parts of a preset's name, or a figure's schedule."""

    @property
    def title(self) -> str:
        words = [w for w in (self.dataset, self.setting, self.noise) if w]
        scale = ["small scale"] if self.family == "small" else []
        return ", ".join([" ".join(words), *scale, *self.setting_changes])

    @property
    def method_title(self) -> str:
        """The paper's name of the method, with what was changed."""
        return ", ".join([paper_name(self.method), *self.method_changes])


def paper_name(method: str) -> str:
    """`FedNoiL(Cosine)` for `fednoil-cosine`, `FedNoiL Cosine(40)` for a schedule of the figures."""
    if method in schedule_methods():
        return f"FedNoiL {schedule_methods()[method]}"
    if method.endswith(TOTAL):
        return f"{paper_name(method.removesuffix(TOTAL))}, D^x by client"
    return _NAMES.get(method, method)


@functools.cache
def schedule_methods() -> dict[str, str]:
    """The schedules of the figures as methods: `fednoil-cosine(40)` -> `Cosine(40)`; r_min = 80 is Table 1's row."""
    found = {}
    for name, (form, r_min, kind) in FIGURE_SCHEDULES.items():
        if kind == "decay" and r_min == 80:
            continue
        found[f"fednoil-{form}({r_min})" if kind == "decay" else f"fednoil-constant-as-{form}({r_min})"] = name
    return found


def decay_of(form: str, r_min: int, small: bool) -> Values:
    """The section of a decaying schedule, in the paper's or the small scale's form."""
    keys = {"name": form, "epochs": 100, "t_min": 20, "r_min": r_min}
    return shrink_schedule(keys) if small else keys


def values_of(family: str, dataset: str, setting: str, noise: str, method: str, rounds: int | None = None) -> Values:
    """The sections of a cell, or of a schedule of the figures; constant ones match a total over `rounds`."""
    schedule = schedule_methods().get(method)
    parts = (setting, noise, "fednoil-logarithm" if schedule else method)
    base = composed(dataset, *parts) if family == "paper" else shrink(composed(BASE, *parts), setting)
    if schedule is None:
        return base
    form, r_min, kind = FIGURE_SCHEDULES[schedule]
    keys = decay_of(form, r_min, family == "small")
    if kind == "decay":
        return merge(base, {"schedule": keys})
    length = rounds or int(base["train"]["rounds"])
    constant = adding_up_to(schedules.make(keys).total(length), length)
    return merge(base, {"schedule": {"name": "constant", **constant}})


def preset_name(family: str, dataset: str, setting: str, noise: str, method: str) -> str | None:
    """The preset of a cell; None if no goal of the study has it."""
    parts = ("paper", dataset) if family == "paper" else ("small",)
    name = "/".join((*parts, setting, noise, "fednoil-logarithm" if method in schedule_methods() else method))
    return name if name in (PAPER if family == "paper" else SMALL).names() else None


def place_of(full: Values, origin: Values | None = None) -> Place | None:
    """The place of a run with this configuration, all keys given; None if it isn't part of the study."""
    data = full["data"]["name"]
    family = "small" if data == "fashion-mnist-mini" else "paper" if data in DATASETS else ""
    if not family:
        return None
    recorded = str((origin or {}).get("preset", ""))
    if recorded:
        return _recorded(full, family, data, recorded)
    noise = _noise_name(full["noise"])
    if noise is None:
        return None
    places = [_nearest(full, family, data, setting, noise) for setting in _settings_like(full["partition"]["kind"])]
    return _near(min(places, key=lambda place: len(place.setting_changes)))


def _recorded(full: Values, family: str, data: str, preset: str) -> Place | None:
    """The place that the preset's name gives, with what differs from it."""
    scale, *parts = preset.split("/")
    if scale != family or preset not in (PAPER if family == "paper" else SMALL).names():
        return None
    setting, noise, method = parts[-3:]
    base = _candidates(family, data, setting, noise, full["train"]["rounds"])
    same = [m for m in (method, *schedule_methods()) if not differences(full, base[m], METHOD_SECTIONS)]
    return _near(_at(full, base, PaperPlace(family, data, setting, noise, same[0] if same else method)))


def _near(place: Place) -> Place | None:
    return None if len(place.setting_changes) > _MOST_CHANGES[place.family] else place


def _at(full: Values, base: dict[str, Values], place: Place) -> Place:
    """A place with its changes; with another server or learner it is the user's own method."""
    values = base[place.method]
    method, changes = place.method, differences(full, values, METHOD_SECTIONS)
    if any(values[section]["name"] != full[section]["name"] for section in ("server", "learner")):
        method, values = method_name(full), base["fedavg"]
        changes = own_keys(full)
    own = differences(as_method(full), as_method(values), TRAINING)
    of_setting = tuple(change for change in differences(full, values, SETTING_SECTIONS) if change not in own)
    return PaperPlace(place.family, place.dataset, place.setting, place.noise, method, of_setting, (*changes, *own))


def _settings_like(kind: str) -> list[str]:
    """The settings with this kind of partition; a mix of classes that no preset has counts as non-IID."""
    return [name for name, values in SETTINGS.items() if values["partition"]["kind"] == kind] or ["non-iid"]


def _noise_name(noise: Values) -> str | None:
    if noise["kind"] == "none":
        return "clean"
    name = next((n for n, r in RATIOS.items() if n.startswith(noise["kind"]) and r == noise.get("ratios")), None)
    if name is not None and noise["kind"] == "pair" and noise["map"] != "per_client":
        name += f"-{noise['map']}"
    return name if name in PAPER_NOISES else None


def _nearest(full: Values, family: str, dataset: str, setting: str, noise: str) -> Place:
    """The place with the paper's method that differs least."""
    base = _candidates(family, dataset, setting, noise, full["train"]["rounds"])

    def distance(method: str) -> int:
        values = base[method]
        same_schedule = values["schedule"]["name"] == full["schedule"]["name"]
        return len(differences(full, values, METHOD_SECTIONS)) + (0 if same_schedule else 3)

    alike = [m for m, v in base.items() if all(v[s]["name"] == full[s]["name"] for s in ("server", "learner"))]
    method = min(alike or ["fedavg"], key=distance)
    return _at(full, base, PaperPlace(family, dataset, setting, noise, method))


@functools.cache
def _candidates(family: str, dataset: str, setting: str, noise: str, rounds: int) -> dict[str, Values]:
    methods = [*PAPER_METHODS, *schedule_methods()]
    found = {m: load_config(values_of(family, dataset, setting, noise, m, rounds)) for m in methods}
    return {method: config.model_dump(mode="json") for method, config in found.items()}


def key_of(place: Place, method: str, rounds: int) -> str:
    """The key of a method of the paper in a run's setting."""
    return method_key(_candidates(place.family, place.dataset, place.setting, place.noise, rounds)[method])


def command_of(full: Values, conduct: Sequence[str] = ()) -> list[str] | None:
    """The arguments of `fednoil` that make such a run from a preset; None for a user's own setting.

    `conduct` lists changes that are neither in a preset nor in a configuration's hash, such as `run.precision=float32`.
    """
    place = place_of(full)
    name = preset_name(place.family, place.dataset, place.setting, place.noise, place.method) if place else None
    if place is None or name is None:
        return None
    base = load_config((PAPER if place.family == "paper" else SMALL).values(name)).model_dump(mode="json")
    sections = (*SETTING_SECTIONS, *METHOD_SECTIONS)
    for section in sections:  # another name drops the preset's other keys
        if base[section].get("name") != full[section].get("name"):
            base[section] = {}
    changes = [*differences(full, base, sections), *conduct]
    seed = ["--seed", str(full["run"]["seed"])]
    return ["run", name, *(part for change in changes for part in ("--set", change)), *seed]
