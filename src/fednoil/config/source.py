"""What a run is made from: a preset's name, a TOML file, or a program's sections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fednoil.config.loading import Values, read_toml
from fednoil.config.presets import is_preset, preset
from fednoil.config.schema import Config
from fednoil.errors import UserError


def is_file(source: str | Path) -> bool:
    """Whether a source is meant as a file and not as a preset's name."""
    if isinstance(source, Path):
        return True
    return not is_preset(source) and (source.endswith(".toml") or Path(source).is_file())


def read_source(source: str | Path) -> tuple[Values, str]:
    """The sections of a preset or a TOML file, and what to call it."""
    if not isinstance(source, str | Path):
        raise UserError(f"{source!r} is no preset, file or dict of sections; for example fednoil.run('demo')")
    path = Path(source)
    if is_file(source):
        if path.suffix.lower() in (".csv", ".npz", ".parquet") and path.is_file():
            word = path.suffix.lower()[1:]
            rows = "" if word == "npz" else f", or table:{path} if its rows are not pictures"
            raise UserError(
                f"{path} is not a TOML file; to use it as data: fednoil run demo --set data.name={word}:{path}{rows}"
            )
        return read_toml(Path(source)), Path(source).stem
    if (path / "config.toml").is_file():
        raise UserError(
            f"{path} is the folder of a run, not a preset; to continue it: fednoil run --resume --out {path}"
        )
    return preset(str(source)), str(source)


def origin_of(source: str | Path | None, changes: Values) -> Values:
    """What a run records about where its configuration came from: the preset or the file's name, neither for a
    program's own sections, and what was set."""
    named = {} if source is None else {"file": Path(source).name} if is_file(source) else {"preset": str(source)}
    left_out = ("run.seed", "run.device")  # which say nothing about the experiment
    return {**named, "set": [change for change in as_set(changes) if change.split("=")[0] not in left_out]}


def as_set(values: Values) -> list[str]:
    """Every `section.key=value`, as `--set` takes it."""
    return [
        f"{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for section, keys in values.items()
        for key, value in keys.items()
    ]


def values_of(given: Config | Mapping[str, Any], what: str = "set") -> Values:
    """The sections of a configuration, or of a dict of sections or of dotted keys."""
    if isinstance(given, Config):
        dumped = given.model_dump(mode="json")
        return {s: {k: v for k, v in keys.items() if v is not None} for s, keys in dumped.items()}
    if not isinstance(given, Mapping):
        raise UserError(
            f"{what} = {given!r} is not a dict; write {{'section.key': value}}, for example {{'train.rounds': 50}}"
        )
    values: Values = {}
    for key, value in given.items():
        section, dot, name = str(key).partition(".")
        if dot:
            values.setdefault(section, {})[name] = _plain(key, value)
        elif isinstance(value, Mapping):
            values.setdefault(section, {}).update({str(n): _plain(f"{key}.{n}", inner) for n, inner in value.items()})
        else:
            raise UserError(
                f"{what}: {key!r} is not a key; write {{'section.key': value}}, for example {{'train.rounds': 50}}"
            )
    return values


def _plain(key: str, value: Any) -> Any:
    """numpy's numbers as Python's own, paths as strings, any sequence as a list."""
    if callable(value):
        path = f", here '{value.__module__}:{value.__qualname__}'" if hasattr(value, "__qualname__") else ""
        raise UserError(f"{key} takes a name, not an object; give the import path of a class or function{path}")
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, tuple | range) else value
