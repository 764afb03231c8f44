"""Finds what a configuration names: a row of a literal table, or the user's own class by import path."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import create_model

from fednoil.errors import UserError, nearest
from fednoil.section import Section

T = TypeVar("T")


@dataclass(frozen=True)
class About:
    """What `fednoil methods` shows about a method."""

    title: str
    paper: str = ""
    keeps: str = ""  # per client between rounds
    sends: str = ""  # what a client uploads
    cost: str = ""  # computing of a local update relative to FedAvg with plain cross-entropy


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


def source_digest(path: str) -> str | None:
    """A digest of the file that an import path names, as it is now, whatever its comments and layout; None if it has no
    file of Python, or a broken one."""
    try:
        found = importlib.util.find_spec(path.partition(":")[0])
        if found is None or found.origin is None or not found.origin.endswith(".py"):
            return None
        code = ast.unparse(ast.parse(Path(found.origin).read_bytes()))
    except (ImportError, OSError, SyntaxError, ValueError):
        return None
    return hashlib.sha256(code.encode()).hexdigest()


@dataclass(frozen=True)
class Axis(Generic[T]):
    """One choice that makes an experiment: a literal table of classes, or the user's own `package.module:Class`.

    Each class has a `Config`, the keys that `section` takes when its `key` names that class. A section with two axes
    (a kind of noise and its levels) takes the keys of both.
    """

    section: str
    base: type[T]
    table: Mapping[str, type[T]]
    default: str
    key: str = "name"
    optional: tuple[type, ...] = ()  # protocols whose methods a class may have besides those of the base

    @property
    def path(self) -> str:
        """The choice's name in the configuration, for example `learner.name`."""
        return f"{self.section}.{self.key}"

    def names(self) -> list[str]:
        """What can be named, as the configuration takes it."""
        return list(self.table)

    def find(self, name: str) -> type[T]:
        """The class called `name`, or the user's own."""
        if name in self.table:
            return self.table[name]
        if ":" not in name:
            raise UserError(
                f"{self.path} = '{name}' is unknown; choose {', '.join(self.table)} or your own package.module:Class"
                + nearest(name, list(self.table))
            )
        found = import_object(name, self.path)
        if not (isinstance(found, type) and issubclass(found, self.base)):
            base = f"{self.base.__module__}.{self.base.__name__}"
            raise UserError(f"{self.path} = '{name}' is not a class derived from {base}")
        said = f"{self.path} = '{name}'"
        config, keys = (getattr(cls, "Config", None) for cls in (found, self.base))
        if keys is not None and not (isinstance(config, type) and issubclass(config, keys)):
            raise UserError(f"{said}: its Config must be a class derived from {keys.__module__}.{keys.__name__}")
        _check_methods(found, self.base, said)
        for protocol in self.optional:
            _check_optional(found, protocol, said)
        return found

    def is_own(self, name: str) -> bool:
        """Whether `name` is the import path of a user's own class."""
        return ":" in name and name not in self.table

    def config(self, name: str) -> type[Section]:
        """The class that validates the section's keys; for the user's own, `key` holds its import path."""
        config: type[Section] = self.find(name).Config  # pyright: ignore[reportAttributeAccessIssue]
        return renamed(config, self.key, name) if self.is_own(name) else config

    def owners(self, key: str) -> list[str]:
        """The classes of the table that have a key."""
        return [name for name in self.table if key in self.config(name).model_fields]

    def constants(self, name: str) -> list[str]:
        """The classes of the table that have a constant of this name, a number, which a derived class can change."""
        has = [word for word, cls in self.table.items() if isinstance(getattr(cls, name, None), (int, float, tuple))]
        return [] if hasattr(self.base, name) else has


@cache
def renamed(config: type[Section], key: str, name: str) -> type[Section]:
    """A configuration with an import path instead of a fixed name in `key`; the same class each time."""
    field: dict[str, Any] = {key: (str, name)}
    return create_model(config.__name__, __base__=config, **field)


@cache
def merged(configs: tuple[type[Section], ...]) -> type[Section]:
    """One class with the keys of several: the model of a section that more than one axis share."""
    if len(configs) == 1:
        return configs[0]
    return create_model(
        "".join(config.__name__ for config in configs), __base__=configs[::-1]
    )  # pydantic lists the last one's keys first


def _check_methods(found: type, base: type, said: str) -> None:
    """Refuse a class that lacks a method, or has one that can't be called as the base's is."""
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"{said} must define {' and '.join(missing)}, as {base.__module__} describes")
    for name in vars(base):
        _check_signature(found, base, name, said)


def _check_optional(found: type, protocol: type, said: str) -> None:
    """Refuse a class that has some of a protocol's methods and not all, or one that can't be called as it says."""
    methods = [name for name, value in vars(protocol).items() if not name.startswith("_") and inspect.isfunction(value)]
    present = [name for name in methods if hasattr(found, name)]
    if present and len(present) < len(methods):
        missing = " and ".join(name for name in methods if name not in present)
        raise UserError(
            f"{said} has {' and '.join(present)} but no {missing}: {protocol.__module__} says what it is for"
        )
    for name in present:
        _check_signature(found, protocol, name, said)


def _check_signature(found: type, base: type, name: str, said: str) -> None:
    own, theirs = inspect.getattr_static(found, name), vars(base)[name]
    if own is theirs or (name.startswith("_") and name != "__init__"):
        return
    if not (inspect.isfunction(theirs) and inspect.isfunction(own)):
        return
    wanted = inspect.signature(theirs).parameters
    by_name = {word: None for word, parameter in wanted.items() if parameter.kind is parameter.KEYWORD_ONLY}
    try:
        inspect.signature(own).bind(*(word for word in wanted if word not in by_name), **by_name)
    except TypeError:
        given = ", ".join(inspect.signature(own).parameters)
        raise UserError(f"{said}: its {name}({given}) must take ({', '.join(wanted)})") from None
