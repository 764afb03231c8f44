"""Write the reference pages from the code: `python tools/make_reference.py`.

docs/configuration.md has every key once, with its default and meaning; docs/methods.md what each server and learner
does; docs/commands.md the command's options; docs/api.md what `fednoil` offers to Python.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.main import get_command

import fednoil
from fednoil.cli.main import app
from fednoil.config import Config
from fednoil.config.axes import AXES
from fednoil.plugins import Axis
from fednoil.section import Section

DOCS = Path(__file__).resolve().parents[1] / "docs"
Fields = Mapping[str, FieldInfo]

CONFIGURATION = """# Configuration

An experiment is one configuration of these sections. Give it as a preset's name with changes, as a TOML file, or from
Python as a dict; keys that are not given have their defaults.
`fednoil run demo --set train.rounds=5 --set data.validation=0.1` changes keys from the command line.

Where a section names a plugin (`learner.name`, `noise.kind`, …), its keys are those of that plugin, and a class of your
own is named as `package.module:Class` ([how](own.md)). A key that doesn't belong there, or a value out of bounds, is
refused in one line before anything runs.
"""
METHODS = """# Methods

Any server works with any learner: `fednoil run demo --set server.name=krum --set learner.name=dividemix`. `fednoil
methods` prints the short form of this page; the keys are in [Configuration](configuration.md).

`tests/test_conformance.py` runs every server with every learner. A client is scored with what it receives: two networks
as an ensemble, under `cfl` its own cluster's model, under `apfl` the common model. `centralized` pools all clients: it
samples nobody, and a [real federation](federation.md) refuses it, because data never leave their nodes.
"""
COMMANDS = """# Commands

`--help` after any command prints the same. Bad input ends with status 2 and one line that says what would be right.
"""
API = """# Python

What `import fednoil` offers. Everything else may move between versions.
"""


def configuration() -> str:
    """Every section and key."""
    lines = [CONFIGURATION.rstrip()]
    for section, field in Config.model_fields.items():
        axes = AXES.get(section, ())
        models = [axis.config(name) for axis in axes for name in axis.table]
        base: Any = field.annotation if not axes else None
        shared = dict(base.model_fields) if base else _shared(models)
        lines += ["", f"## `{section}`", "", ABOUT[section]]
        lines += [*(_choices(axis) for axis in axes)]
        lines += _table(section, {k: f for k, f in shared.items() if k not in {axis.key for axis in axes}})
        for axis in axes:
            lines += _plugins(section, axis, set(shared))
    return "\n".join(lines) + "\n"


def _shared(models: list[type[Section]]) -> dict[str, FieldInfo]:
    """The keys that every plugin of a section has, with the same meaning."""

    def said(model: type[Section], key: str) -> str | None:
        return model.model_fields[key].description if key in model.model_fields else None

    first = models[0].model_fields
    return {key: field for key, field in first.items() if all(said(m, key) == field.description for m in models)}


ABOUT = {
    "data": "Which images.",
    "partition": "Which samples each client holds.",
    "noise": "Which labels are wrong: `kind` says which label becomes which, `levels` how wrong each client is.",
    "model": "Which network.",
    "sampling": "Which clients train in a round.",
    "server": "What clients receive, and how their updates are combined.",
    "learner": "How one client learns from its data.",
    "schedule": "How many local epochs a round has.",
    "train": "Rounds, the clients' optimiser and weak augmentation, for all methods alike.",
    "run": "How a run is carried out. The seed changes its results; precision and executor change them by rounding.",
    "privacy": "What the server may learn about a client, and what a model may reveal ([privacy](privacy.md)).",
    "federation": "How a real federation is carried out; a simulation ignores it.",
}


def _choices(axis: Axis[Any]) -> str:
    names = ", ".join(f"`{name}`" for name in axis.names())
    return f"\n`{axis.path}`, by default `{axis.default}`: {names}, or `package.module:Class`."


def _plugins(section: str, axis: Axis[Any], shared: set[str]) -> Iterator[str]:
    """The keys of each plugin that not all of them have; plugins with the same keys together."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    tables: dict[tuple[tuple[str, str], ...], Fields] = {}
    for name in axis.table:
        own = {k: f for k, f in axis.config(name).model_fields.items() if k not in shared and k != axis.key}
        if own:
            key = tuple((k, f"{f.default!r} {f.description}") for k, f in own.items())
            groups.setdefault(key, []).append(name)
            tables[key] = own
    for key, names in groups.items():
        yield ""
        yield f"### `{axis.path}` = {', '.join(f'`{name}`' for name in names)}"
        yield from _table(section, tables[key])


def _table(section: str, fields: Fields) -> Iterator[str]:
    if not fields:
        return
    yield from ("", "| key | default | meaning |", "|---|---|---|")
    for name, field in fields.items():
        default = "–" if field.default is PydanticUndefined else f"`{_value(field.default)}`"
        yield f"| `{section}.{name}` | {default} | {' '.join(_meaning(field))} |"


def _value(value: Any) -> str:
    """As TOML has it, `none` where there is no value."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


def _meaning(field: FieldInfo) -> Iterator[str]:
    """The description, the choices and the bounds."""
    yield (field.description or "").replace("|", "\\|")
    options = [o for part in (field.annotation, *get_args(field.annotation)) if get_origin(part) is Literal
               for o in get_args(part)]  # fmt: skip
    if len(options) > 1:
        yield f"({', '.join(f'`{_value(option)}`' for option in dict.fromkeys(options))})"
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{s} {getattr(m, n):g}" for m in field.metadata for n, s in signs.items() if hasattr(m, n)]
    if bounds:
        yield f"({', '.join(bounds)})"


def methods() -> str:
    """What each server and learner does, from its own file."""
    lines = [METHODS.rstrip()]
    for section in ("server", "learner"):
        lines += ["", f"## {section.capitalize()}s"]
        seen: dict[str, str] = {}  # methods that share a file share its text
        for name, cls in AXES[section][0].table.items():
            about, text = cls.about, inspect.getdoc(inspect.getmodule(cls)) or ""
            text = f"See [`{seen[text]}`](#{seen[text]})." if text in seen else text
            seen.setdefault(text, name)
            kept = f"Keeps per client: {about.keeps}. Sends: {about.sends}."
            cost = f"Cost of a local update, FedAvg = 1: {about.cost}."
            lines += ["", f"### `{name}`", "", f"{about.title} ({about.paper}). {kept} {cost}", "", text]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every command with its arguments and options."""
    lines = [COMMANDS.rstrip()]
    for name, command in _commands(get_command(app), "fednoil"):
        used = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
        lines += ["", f"## `{' '.join([name, *used])}`", "", inspect.cleandoc(command.help or "")]
        rows = [(_opts(p), getattr(p, "help", None) or "") for p in command.params if not getattr(p, "hidden", False)]
        if rows:
            lines += ["", "| option | meaning |", "|---|---|", *(f"| {opts} | {_cell(text)} |" for opts, text in rows)]
    return "\n".join(lines) + "\n"


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, found in inner.items():
        yield from _commands(found, f"{name} {word}")


def _opts(param: click.Parameter) -> str:
    if isinstance(param, click.Argument):
        return f"`{(param.name or '').upper()}`"
    return ", ".join(f"`{option}`" for option in param.opts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def api() -> str:
    """What `fednoil` offers: the functions with their signatures, then the classes of what they return."""
    lines, names = [API.rstrip()], [name for name in getattr(fednoil, "__all__", ()) if not name.startswith("__")]
    for name in sorted(names, key=lambda name: inspect.isclass(getattr(fednoil, name))):
        found = getattr(fednoil, name)
        lines += ["", f"## `{name}`", ""]
        if not inspect.isclass(found):
            lines += ["```python", f"def {name}{_signature(found, wide=100)}: ...", "```", ""]
        lines += [_listed(inspect.getdoc(found) or "")]
        if inspect.isclass(found) and found is not fednoil.Config:
            lines += _members(found)
    return "\n".join(lines) + "\n"


def _listed(about: str) -> str:
    """A docstring whose arguments are a list."""
    lines: list[str] = []
    for line in about.splitlines():
        if line.startswith("        "):
            lines[-1] += f" {line.strip()}"
        elif line.startswith("    "):
            name, _, text = line.strip().partition(": ")
            lines.append(f"- `{name}`: {text}")
        else:
            lines += [line, ""] if line in ("Args:", "Raises:") else [line]
    return "\n".join(lines)


def _members(cls: type) -> Iterator[str]:
    """The documented methods and properties of a class that a user calls."""
    for name, value in vars(cls).items():
        about = inspect.getdoc(value.func if hasattr(value, "func") else value)
        if name.startswith("_") or not about or isinstance(value, classmethod) or not hasattr(value, "__get__"):
            continue
        signature = _signature(value) if inspect.isfunction(value) else ""
        yield from ("", f"- `.{name}{signature}`: {' '.join(about.split())}")


def _signature(found: Any, wide: int = 10_000) -> str:
    """The parameters with their types and defaults, as they are written, one a line if longer than `wide`."""
    parts = []
    signature = inspect.signature(found)
    for name, parameter in signature.parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        value = json.dumps(parameter.default) if isinstance(parameter.default, str) else repr(parameter.default)
        default = "" if parameter.default is parameter.empty else f" = {value}"
        parts.append(f"{star}{name}: {parameter.annotation}{default}")
    shown = ", ".join(parts)
    if len(shown) > wide:
        shown = "".join(f"\n    {part}," for part in parts) + "\n"
    return f"({shown}) -> {signature.return_annotation}"


PAGES: dict[str, typing.Callable[[], str]] = {
    "configuration.md": configuration,
    "methods.md": methods,
    "commands.md": commands,
    "api.md": api,
}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
