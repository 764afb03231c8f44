"""The choices that make an experiment: which section's keys depend on what it names."""

from __future__ import annotations

from typing import Any

from fednoil import data, learners, models, noise, partition, sampling, schedules, servers
from fednoil.errors import UserError
from fednoil.plugins import Axis, merged
from fednoil.section import Section

AXES: dict[str, tuple[Axis[Any], ...]] = {
    "data": (data.AXIS,),
    "partition": (partition.AXIS,),
    "noise": (noise.KIND_AXIS, noise.LEVELS_AXIS),
    "model": (models.AXIS,),
    "sampling": (sampling.AXIS,),
    "server": (servers.AXIS,),
    "learner": (learners.AXIS,),
    "schedule": (schedules.AXIS,),
}


def named(section: str, keys: dict[str, Any]) -> dict[str, str]:
    """What a section chooses on each of its axes, by key; by default the axis's default."""
    names: dict[str, str] = {}
    for axis in AXES.get(section, ()):
        name = keys.get(axis.key, axis.default)
        if not isinstance(name, str):
            raise UserError(f"{axis.path} = {name!r}: must be a name")
        names[axis.key] = name
    return names


def section_model(section: str, keys: dict[str, Any]) -> type[Section]:
    """The class that validates a section, by what its keys name."""
    names = named(section, keys)
    return merged(tuple(axis.config(names[axis.key]) for axis in AXES[section]))


def validated(section: str, value: Any) -> Any:
    """A section's keys as a value of the class that they name; a value is returned unchanged."""
    if not isinstance(value, dict):
        return value
    return section_model(section, value).model_validate({**value, **named(section, value)})


def outdated(section: str, old: dict[str, Any], changes: dict[str, Any]) -> set[str]:
    """The keys in `old` that belong to a choice which `changes` replace, and those that complete a key which `changes`
    set again."""
    if section not in AXES:
        return set()
    completed = section_model(section, old).completes
    gone = {key for key, other in completed.items() if other in changes}
    for axis in AXES.get(section, ()):
        before = old.get(axis.key, axis.default)
        if changes.get(axis.key, before) != before:
            shared: type[Section] = getattr(axis.base, "Config", Section)
            gone |= axis.config(before).model_fields.keys() - shared.model_fields.keys()
    return gone & old.keys()


def own_code(values: dict[str, Any]) -> dict[str, str]:
    """The import paths that a configuration's sections name, by `section.key`; nothing is imported."""
    found: dict[str, str] = {}
    for section, axes in AXES.items():
        for axis in axes:
            name = str(values.get(section, {}).get(axis.key, ""))
            if axis.is_own(name):
                found[axis.path] = name
    return found


def owners(section: str, key: str) -> list[str]:
    """What can be named in a section that has `key`."""
    return [name for axis in AXES.get(section, ()) for name in axis.owners(key)]


def constants(section: str, key: str) -> list[str]:
    """What can be named in a section whose class has a constant called `key`, as some keys of earlier versions are."""
    return [name for axis in AXES.get(section, ()) for name in axis.constants(key)]
