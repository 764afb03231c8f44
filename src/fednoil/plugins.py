"""Finding what a configuration names: a row of a literal table, or the user's own by import path."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import create_model

from fednoil.errors import UserError, nearest
from fednoil.section import Section

T = TypeVar("T")


@dataclass(frozen=True)
class About:
    """What `fednoil methods` tells of a method."""

    title: str
    paper: str
    keeps: str  # per client between rounds
    sends: str  # what a client uploads
    cost: str  # computing of a local update relative to FedAvg with plain cross-entropy


def import_object(path: str, key: str) -> object:
    """Import `package.module:name`; the current folder is searched as well."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise UserError(f"{key} = '{path}' is not an import path; write package.module:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{key} = '{path}': importing {module_name} failed: {error!r}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(f"{key} = '{path}': {module_name} has no '{attribute}'") from None


def config_for(config: type[Section], name: str) -> type[Section]:
    """The class that validates a method's section: for the user's own, `name` is its import path, not a fixed word."""
    if ":" not in name:
        return config
    return create_model(config.__name__, __base__=config, name=(str, name))


def find_class(name: str, table: Mapping[str, type[T]], base: type[T], key: str) -> type[T]:
    """The class called `name` in `table`, or the user's own at `package.module:Class`."""
    if name in table:
        return table[name]
    if ":" not in name:
        known = ", ".join(table)
        raise UserError(
            f"{key} = '{name}' is unknown; choose {known} or your own package.module:Class" + nearest(name, list(table))
        )
    found = import_object(name, key)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"{key} = '{name}' is not a class derived from {base.__module__}.{base.__name__}")
    _check_methods(found, base, f"{key} = '{name}'")
    return found


def _check_methods(found: type, base: type, said: str) -> None:
    """Refuse a class that lacks a method, or has one that can't be called as the base's is."""
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"{said} must define {' and '.join(missing)}, as {base.__module__} tells")
    for name, theirs in vars(base).items():
        own = inspect.getattr_static(found, name)
        if name.startswith("_") or own is theirs or not (inspect.isfunction(theirs) and inspect.isfunction(own)):
            continue
        wanted = list(inspect.signature(theirs).parameters)
        try:
            inspect.signature(own).bind(*wanted)
        except TypeError:
            given = ", ".join(inspect.signature(own).parameters)
            raise UserError(f"{said}: its {name}({given}) must take ({', '.join(wanted)})") from None
