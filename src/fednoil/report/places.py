"""Where a run belongs: which of the paper's settings and methods its configuration is, and what it changes.

A run is recognised by its configuration, never by its folder's name, so `fednoil run` and `fednoil reproduce` give
the same rows. What is no preset's neighbour, a user's own data for instance, is described in words instead.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fednoil import schedules
from fednoil.config import load_config, merge, preset
from fednoil.config.presets import DATASETS, METHODS, NOISES, RATIOS, SETTINGS
from fednoil.config.small import shrink_schedule
from fednoil.data import SITES
from fednoil.paper import METHODS as PAPER_METHODS
from fednoil.paper import SCHEDULES
from fednoil.records.compare import method_name, setting_name
from fednoil.records.folder import Roster

Values = dict[str, Any]

SETTING_SECTIONS = ("data", "partition", "noise", "model", "train")
METHOD_SECTIONS = ("sampling", "server", "learner", "schedule")
_MOST_CHANGES = {"paper": 6, "small": 3}  # of a setting; more, and it is a setting of its own
# The paper's name of a method where several rows have one preset: the row of Table 1.
_NAMES = {ours: paper for paper, ours in reversed(PAPER_METHODS.items())} | {
    "fednoil-logarithm": "FedNoiL(Logarithm)",
    "fednoil-auto": "FedNoiL(Logarithm), automatic share",
}


@dataclass(frozen=True)
class Place:
    """One run's place. `changes` lists `key=value` that differ from the preset."""

    family: str  # "paper", "small", or "" for a setting of one's own
    dataset: str  # the first three as in a preset's name, or as configured
    setting: str
    noise: str
    method: str  # as in a preset's name, `fednoil-cosine(40)` for a schedule of the figures
    setting_changes: tuple[str, ...] = ()
    method_changes: tuple[str, ...] = ()

    @property
    def where(self) -> tuple[str, ...]:
        """What runs must share to be compared: everything but method and seed."""
        return (self.family, self.dataset, self.setting, self.noise, *self.setting_changes)

    @property
    def title(self) -> str:
        """The setting in words."""
        words = [w for w in (self.dataset, self.setting, self.noise) if w]
        scale = ["small scale"] if self.family == "small" else []
        return ", ".join([" ".join(words), *scale, *self.setting_changes])

    @property
    def method_title(self) -> str:
        """The paper's name of the method, with what was changed."""
        return ", ".join([paper_name(self.method), *self.method_changes])


def paper_name(method: str) -> str:
    """`FedNoiL(Cosine)` for `fednoil-cosine`, `Cosine(40)` for a schedule of the figures."""
    if method in schedule_methods():
        return f"FedNoiL {schedule_methods()[method]}"
    return _NAMES.get(method, method)


@functools.cache
def schedule_methods() -> dict[str, str]:
    """The schedules of the figures as methods: `fednoil-cosine(40)` -> `Cosine(40)`; r_min = 80 is Table 1's row."""
    found = {}
    for name, (form, r_min, kind) in SCHEDULES.items():
        if kind == "decay" and r_min == 80:
            continue
        found[f"fednoil-{form}({r_min})" if kind == "decay" else f"fednoil-constant-as-{form}({r_min})"] = name
    return found


def values_of(family: str, dataset: str, setting: str, noise: str, method: str, rounds: int | None = None) -> Values:
    """The sections of a preset, or of a schedule of the figures; constant ones match a total over `rounds`."""
    schedule = schedule_methods().get(method)
    name = "/".join(("paper", dataset) if family == "paper" else ("small",))
    base = preset(f"{name}/{setting}/{noise}/{'fednoil-logarithm' if schedule else method}")
    if schedule is None:
        return base
    form, r_min, kind = SCHEDULES[schedule]
    keys = {"name": form, "t_max": 100, "t_min": 20, "r_min": r_min}
    decay = schedules.make(shrink_schedule(keys) if family == "small" else keys)
    if kind == "decay":
        return merge(base, {"schedule": decay.config.model_dump()})
    epochs, extra = divmod(decay.total(length := rounds or int(base["train"]["rounds"])), length)
    return merge(base, {"schedule": {"name": "constant", "epochs": epochs, "extra_rounds": extra}})


def place_of(full: Values, roster: Roster | None = None) -> Place:
    """The place of a run with this configuration, all keys given; `roster` of a federation's."""
    data = full["data"]["name"]
    if data == SITES:
        return _of_sites(full, roster)
    family = "small" if data == "fashion-mnist-mini" else "paper" if data in DATASETS else ""
    noise = _noise_name(full["noise"])
    if not family or noise is None:
        return _own(full)
    best: Place | None = None
    for setting in _settings_like(full["partition"]["kind"]):
        method, method_changes, setting_changes = _nearest_method(full, family, data, setting, noise)
        place = Place(family, data, setting, noise, method, setting_changes, method_changes)
        if best is None or len(place.setting_changes) < len(best.setting_changes):
            best = place
    return _own(full) if best is None or len(best.setting_changes) > _MOST_CHANGES[family] else best


def _settings_like(kind: str) -> list[str]:
    """The settings whose clients are dealt samples in this way; a mix of classes that no preset has is non-IID."""
    kinds = {s: preset(f"paper/fashion-mnist/{s}/clean/fedavg")["partition"]["kind"] for s in SETTINGS}
    return [setting for setting, known in kinds.items() if known == kind] or ["non-iid"]


def command_of(full: Values, conduct: Sequence[str] = ()) -> list[str] | None:
    """The arguments of `fednoil` that make such a run from a preset; None for a setting of one's own.

    `conduct` lists changes that no preset has and a configuration's hash doesn't tell, as `run.precision=float32`.
    """
    place = place_of(full)
    if not place.family or place.method not in {*METHODS, *schedule_methods()}:
        return None
    method = "fednoil-logarithm" if place.method in schedule_methods() else place.method
    parts = ("paper", place.dataset) if place.family == "paper" else ("small",)
    name = "/".join((*parts, place.setting, place.noise, method))
    base = load_config(preset(name)).model_dump(mode="json")
    sections = (*SETTING_SECTIONS, *METHOD_SECTIONS)
    for section in sections:  # another name drops the preset's other keys
        if base[section].get("name") != full[section].get("name"):
            base[section] = {}
    changes = [*_differences(full, base, sections), *conduct]
    seed = ["--seed", str(full["run"]["seed"])]
    return ["run", name, *(part for change in changes for part in ("--set", change)), *seed]


def _noise_name(noise: Values) -> str | None:
    if noise["kind"] == "none":
        return "clean"
    name = next((n for n, r in RATIOS.items() if n.startswith(noise["kind"]) and r == noise["ratios"]), None)
    if name is not None and noise["kind"] == "pair" and noise["pair_map"] != "per_client":
        name += f"-{noise['pair_map']}"
    return name if name in NOISES else None


def _nearest_method(
    full: Values, family: str, dataset: str, setting: str, noise: str
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The method of the paper with the fewest differences, those differences, and those of the setting."""
    found = []
    candidates = _candidates(family, dataset, setting, noise, full["train"]["rounds"])
    for method, values in candidates.items():
        if values["server"]["name"] != full["server"]["name"] or values["learner"]["name"] != full["learner"]["name"]:
            continue
        changes = _differences(full, values, METHOD_SECTIONS)
        same_schedule = values["schedule"]["name"] == full["schedule"]["name"]
        found.append((len(changes) + (0 if same_schedule else 3), method, changes, values))
    if not found:
        return method_name(full), _own_keys(full), _differences(full, candidates["fedavg"], SETTING_SECTIONS)
    _, method, changes, values = min(found, key=lambda row: row[0])
    return method, changes, _differences(full, values, SETTING_SECTIONS)


@functools.cache
def _candidates(family: str, dataset: str, setting: str, noise: str, rounds: int) -> dict[str, Values]:
    methods = [*METHODS, *schedule_methods()]
    found = {m: load_config(values_of(family, dataset, setting, noise, m, rounds)) for m in methods}
    return {method: config.model_dump(mode="json") for method, config in found.items()}


def method_key(values: Values) -> str:
    """What makes two runs runs of one method: two names may stand for the same sections."""
    return json.dumps([values[section] for section in METHOD_SECTIONS], sort_keys=True)


def key_of(place: Place, method: str, rounds: int) -> str:
    """The key of a method of the paper in a run's setting."""
    return method_key(_candidates(place.family, place.dataset, place.setting, place.noise, rounds)[method])


def _differences(full: Values, base: Values, sections: tuple[str, ...]) -> tuple[str, ...]:
    """`section.key=value` of what `full` has otherwise, as `--set` takes it."""
    changed = {
        section: {key: value for key, value in full[section].items() if base[section].get(key) != value}
        for section in sections
    }
    return set_arguments(changed, sections)


def set_arguments(values: Values, sections: tuple[str, ...]) -> tuple[str, ...]:
    """Every `section.key=value`, as `--set` takes it."""
    return tuple(
        f"{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for section in sections
        for key, value in values[section].items()
    )


def differing(configs: Sequence[Values], sections: tuple[str, ...]) -> set[str]:
    """The `section.key` in which not all of the configurations are alike."""
    keys = [set(set_arguments(values, sections)) for values in configs]
    return {key.split("=")[0] for key in set.union(*keys) - set.intersection(*keys)}


def picked(values: Values, sections: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    """The `section.key=value` whose keys are among `names`."""
    return tuple(key for key in set_arguments(values, sections) if key.split("=")[0] in names)


def _of_sites(full: Values, roster: Roster | None) -> Place:
    """Sites with data of their own: partition and noise of the configuration say nothing of them."""
    founders = roster.founders if roster else {}
    digest = _digest([*(full[s] for s in ("data", "model", "train")), founders])
    samples = [f"{sum(founders.values()):,} samples"] if founders else []
    words = ", ".join([*samples, f"{full['train']['rounds']} rounds", f"#{digest[:4]}"])
    where = f"{len(founders)} sites" if founders else SITES
    return Place("", "federation", where, f"({words})", method_name(full), method_changes=_own_keys(full))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _own(full: Values) -> Place:
    """A setting in words; a short hash tells settings apart that the words don't."""
    digest = _digest([full[s] for s in SETTING_SECTIONS])
    name = setting_name(full).split(" ")
    data, words = " ".join(name[:-2]), name[-2:]
    clients = f"{full['partition']['clients']} clients, {full['train']['rounds']} rounds, #{digest[:4]}"
    return Place("", data, words[0], f"{words[1]} ({clients})", method_name(full), method_changes=_own_keys(full))


def _own_keys(full: Values) -> tuple[str, ...]:
    """What a method outside the paper's has otherwise than its defaults, so that two of them are told apart."""
    names = (full["sampling"]["name"], full["server"]["name"], full["learner"]["name"])
    if any(":" in name for name in names):  # a user's own code, which a report doesn't import
        return ()
    changes = _differences(full, _defaults(*names), ("sampling", "server", "learner"))
    return tuple(change for change in changes if change != "sampling.fraction=null")  # the share follows the clients


@functools.cache
def _defaults(sampling: str, server: str, learner: str) -> Values:
    values = {"sampling": {"name": sampling, "fraction": 0.3}, "server": {"name": server}, "learner": {"name": learner}}
    return load_config(values).model_dump(mode="json")  # the share of clients is that of all presets
