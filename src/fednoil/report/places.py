"""The place of a run among others: its setting and method in words, and the keys in which two runs differ."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fednoil.config import load_config
from fednoil.data import SITES
from fednoil.data.elsewhere import at_nodes
from fednoil.errors import counted
from fednoil.records.compare import method_name, of_sites, setting_words
from fednoil.records.folder import Roster

Values = dict[str, Any]

SETTING_SECTIONS = ("data", "partition", "noise", "model", "train")
METHOD_SECTIONS = ("sampling", "server", "learner", "schedule", "privacy")
OPTIMISER = ("optimizer", "lr", "momentum", "weight_decay", "lr_rounds", "balance")
"""Keys of `train` that belong to a method: they don't keep two runs from being compared."""
TRAINING = ("train", "run")  # sections of which a part belongs to a method


@dataclass(frozen=True)
class Place:
    """One run's place. A study's places have its `family`, and list differences from its presets as changes."""

    family: str  # "" for a run that belongs to no study
    dataset: str
    setting: str
    noise: str
    method: str
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
        return ", ".join([" ".join(words), *self.setting_changes])

    @property
    def method_title(self) -> str:
        """The method in words, with what was changed."""
        return ", ".join([self.method, *self.method_changes])


def own_place(full: Values, roster: Roster | None = None, clients: int | None = None) -> Place:
    """The place of a run with this configuration, all keys given; a federation also has a `roster`. `clients` is their
    number, if recorded, used if the configuration doesn't give it: a manifest has its own.

    A short hash distinguishes settings with the same words.
    """
    if of_sites(full):
        return _of_sites(full, roster)
    digest = _digest([_of_setting(full, section) for section in SETTING_SECTIONS])
    data, split, noise = setting_words(full)
    count = clients if full["noise"]["kind"] == "manifest" else full["partition"].get("clients", clients)
    rounds = counted(full["train"]["rounds"], "round")
    words = [*([counted(count, "client")] if count else []), rounds, f"#{digest[:4]}"]
    about = f"({', '.join(words)})"
    return Place("", data, split, f"{noise} {about}".strip(), method_name(full))


def _of_sites(full: Values, roster: Roster | None) -> Place:
    """Sites with their own data: the configuration's partition and noise don't apply to them."""
    founders = roster.founders if roster else {}
    there = at_nodes(full["data"])
    sections = ("data", "model", "train") if there else SETTING_SECTIONS
    digest = _digest([*(_of_setting(full, section) for section in sections), founders])
    samples = [counted(sum(founders.values()), "sample")] if founders else []
    words = ", ".join([*samples, counted(full["train"]["rounds"], "round"), f"#{digest[:4]}"])
    where = counted(len(founders), "site") if founders else SITES
    return Place("", "federation" if there else "own data", where, f"({words})", method_name(full))


def _of_setting(full: Values, section: str) -> Values:
    """The keys of a section that two runs must share to be compared."""
    return {key: value for key, value in full[section].items() if section != "train" or key not in OPTIMISER}


def as_method(full: Values) -> Values:
    """The sections that make a method, and of others the optimiser's keys and the round whose model is kept."""
    optimiser, kept = {k: full["train"].get(k) for k in OPTIMISER}, {"select": full["run"]["select"]}
    return {**{s: full[s] for s in METHOD_SECTIONS}, "train": optimiser, "run": kept}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def own_keys(full: Values) -> tuple[str, ...]:
    """The keys of sampling, server, learner and privacy that differ from the defaults, to distinguish two methods."""
    names = (full["sampling"]["name"], full["server"]["name"], full["learner"]["name"])
    if any(":" in name for name in names):  # a user's own code, which a report doesn't import
        return ()
    changes = differences(full, _defaults(*names), ("sampling", "server", "learner", "privacy"))
    return tuple(change for change in changes if change != "sampling.fraction=null")  # the share depends on the clients


@functools.cache
def _defaults(sampling: str, server: str, learner: str) -> Values:
    values = {"sampling": {"name": sampling, "fraction": 0.3}, "server": {"name": server}, "learner": {"name": learner}}
    return load_config(values).model_dump(mode="json")  # with the share of clients that all presets have


def method_key(values: Values) -> str:
    """Equal for two runs of the same method: two names may stand for the same sections."""
    return json.dumps(as_method(values), sort_keys=True)


def differences(full: Values, base: Values, sections: tuple[str, ...]) -> tuple[str, ...]:
    """`section.key=value` for each difference of `full` from `base`, as `--set` takes it."""
    changed = {
        section: {key: value for key, value in full[section].items() if base[section].get(key) != value}
        for section in sections
    }
    return set_arguments(changed, sections)


def set_arguments(values: Values, sections: tuple[str, ...]) -> tuple[str, ...]:
    """Every `section.key=value`, as `--set` takes it."""
    return tuple(
        f"{section}.{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for section in sections
        for key, value in values[section].items()
    )


def differing(configs: Sequence[Values], sections: tuple[str, ...]) -> set[str]:
    """The `section.key` in which the configurations differ."""
    keys = [set(set_arguments(values, sections)) for values in configs]
    return {key.split("=")[0] for key in set.union(*keys) - set.intersection(*keys)}


def picked(values: Values, sections: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    """The `section.key=value` of the keys in `names`."""
    return tuple(key for key in set_arguments(values, sections) if key.split("=")[0] in names)
