"""How many keys a configuration has: every one is described, and their number stays small."""

from __future__ import annotations

from typing import Any

from fednoil.config import Config
from fednoil.config.axes import AXES
from fednoil.plugins import Axis
from fednoil.section import Section

MOST_OF_ONE_EXPERIMENT = 80
MOST_OF_A_LEARNER = 12
MOST_IN_ALL = 80  # over all plugins, each `section.key` once


def plain() -> dict[str, type[Section]]:
    """The sections in which nothing is chosen."""
    fields = Config.model_fields.items()
    return {name: field.annotation for name, field in fields if name not in AXES}  # type: ignore[misc]


def longest(axis: Axis[Any]) -> int:
    return max(len(axis.config(name).model_fields) for name in axis.table)


def test_no_experiment_has_more_keys_than_one_can_read() -> None:
    """The longest choice on every axis, with the sections that are always there."""
    chosen = sum(longest(axis) for axes in AXES.values() for axis in axes)
    assert chosen + sum(len(model.model_fields) for model in plain().values()) <= MOST_OF_ONE_EXPERIMENT


def test_no_learner_has_more_keys_than_one_can_read() -> None:
    (axis,) = AXES["learner"]
    assert {name for name in axis.table if len(axis.config(name).model_fields) > MOST_OF_A_LEARNER} == set()


def test_all_keys_together() -> None:
    models = [(axis.section, axis.config(name)) for axes in AXES.values() for axis in axes for name in axis.table]
    keys = {(section, key) for section, model in [*models, *plain().items()] for key in model.model_fields}
    assert len(keys) <= MOST_IN_ALL


def test_every_key_is_described() -> None:
    """The name of a choice needs no words: the reference lists what there is to choose from."""
    models = [(axes, axis.config(name)) for axes in AXES.values() for axis in axes for name in axis.table]
    for axes, model in [*models, *(((), model) for model in plain().values())]:
        choices = {axis.key for axis in axes}
        bare = {key for key, field in model.model_fields.items() if not field.description and key not in choices}
        assert bare == set(), model
