"""Reading a configuration from a preset or file and `--set`, with one clear line for whatever is wrong."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fednoil import sampling
from fednoil.config.axes import AXES, constants, named, outdated, owners, section_model, validated
from fednoil.config.schema import Config
from fednoil.data import clients_of, is_own
from fednoil.data.elsewhere import at_nodes
from fednoil.errors import UserError, nearest
from fednoil.partition.base import PartitionConfig

Values = dict[str, Any]  # section -> key -> value

_MOVED = {  # keys of earlier versions
    "server.sampling": "sampling.name",
    "server.client_fraction": "sampling.fraction",
    "server.score_epsilon": "privacy.scores",
    "sampling.epsilon": "privacy.scores",
    "federation.update_clip": "privacy.clip",
    "federation.update_epsilon": "privacy.noise, a multiple of the clip, with privacy.sees = 'noise'",
    "server.trim": "server.bad",
    "server.f": "server.bad, a share of the updates",
    "noise.mode": "noise.ratios, one for each group of clients",
    "noise.true_class": "noise.kind: symmetric-all",
    "noise.pair_map": "noise.map",
    "noise.matrix_map": "noise.map",
    "noise.manifest": "noise.file",
    "noise.tau": "noise.ratios, the lowest and the highest",
    "noise.low": "noise.ratios, the lowest and the highest",
    "noise.high": "noise.ratios, the lowest and the highest",
    "schedule.t_max": "schedule.epochs",
    "schedule.extra_rounds": "schedule.r_min, from which on there is one epoch fewer",
    "learner.prior": "learner.weight",
    "partition.shards": "partition.classes",
    "learner.ssl": "learner.weight, and 0 is without pseudo-labels",
    "learner.lambda_u": "learner.weight",
    "learner.local_sampling": "learner.name, and uniform is fednoil.study.ablation:UniformLocal",
    "learner.forget": "learner.frac, the share that is trained on",
    "learner.augment": "train.pad and train.flip, for all learners",
    "partition.presence": "partition.classes",
    "partition.file": "partition.kind: annotator:FILE",
    "partition.cap": "partition.kind: capped",
    "server.finetune": "server.warmup",
    "server.sieve": "server.version",
    "data.mean": "data.normalisation, means and standard deviations",
    "data.std": "data.normalisation, means and standard deviations",
    "data.fold": "data.validation",
    "model.norm": "model.name: resnet18-gn or resnet34-gn",
    "run.executor": "run.parallel, and 0 is the sequential one",
}


def parse_set(assignments: Iterable[str]) -> Values:
    """Turn `section.key=value` strings into sections; values are TOML, anything else is a string."""
    values: Values = {}
    for text in assignments:
        key, equals, raw = text.partition("=")
        section, _, name = key.strip().partition(".")
        if not equals or not section or not name or "." in name:
            raise UserError(f"--set {text}: write section.key=value, for example train.rounds=50")
        try:
            parsed = tomllib.loads(f"value = {raw.strip()}")
            value = parsed["value"] if len(parsed) == 1 else raw.strip()
        except (tomllib.TOMLDecodeError, RecursionError):
            value = raw.strip()
        values.setdefault(section, {})[name] = value
    return values


def read_toml(path: Path) -> Values:
    """Read a configuration file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    for section, keys in values.items():
        if not isinstance(keys, dict):
            raise UserError(f"{path}: '{section}' stands outside a section; write it under [section]")
    return values


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML; keys without a value are left out."""
    lines: list[str] = []
    for section, keys in config.model_dump(mode="json").items():
        lines.append(f"[{section}]")
        # JSON's strings, numbers, booleans and lists of them are written the same way in TOML.
        lines += [f"{k} = {_toml_value(v, f'{section}.{k}')}" for k, v in keys.items() if v is not None]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any, key: str) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_value(k, key)} = {_toml_value(v, key)}" for k, v in value.items()) + "}"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one character TOML alone forbids
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{key} = {value!r} is not UTF-8 text, so no file can record it; rename it") from None
    return text


def merge(base: Values, changes: Values) -> Values:
    """Lay `changes` over a preset or file.

    Where another method, model or noise is named, the keys that belonged to the old one are dropped, and so is a key
    that completes one which is set again. If the user's own data replace a preset's, what was set to fit those is
    dropped, too: labels are never changed unless asked.
    """
    merged = {section: dict(keys) for section, keys in base.items()}
    for section, keys in changes.items():
        old = merged.get(section, {})
        gone = outdated(section, old, keys)
        merged[section] = {**{k: v for k, v in old.items() if k not in gone}, **keys}
    name = changes.get("data", {}).get("name")
    if isinstance(name, str) and name != base.get("data", {}).get("name") and is_own(name):
        for section in AXES.keys() & merged.keys():
            fitted = section_model(section, merged[section]).fits_data() - changes.get(section, {}).keys()
            merged[section] = {k: v for k, v in merged[section].items() if k not in fitted}
        clients = _clients(merged["data"])
        if "partition" not in changes and "partition" in merged and clients:
            del merged["partition"]
        if "schedule" not in changes and "schedule" in merged:
            merged["schedule"] = _spread_out(merged, base.get("sampling", {}).get("fraction"), clients)
    return merged


def _clients(keys: Values) -> int:
    """How many clients the data have; errors in the section are reported later."""
    try:
        return len(clients_of(validated("data", keys)))
    except ValidationError:
        return 0


def _spread_out(merged: Values, before: float | None, clients: int) -> Values:
    """The preset's local epochs, fewer if more of the clients train in a round than the preset's share `before`: each
    then trains about as much in total. Otherwise a few sites, which all train in every round, would soon have memorised
    their labels."""
    count = clients or merged.get("partition", {}).get("clients", PartitionConfig().clients)
    if at_nodes(merged["data"]):
        count = 1  # all clients, if there are few
    try:
        now = sampling.make(validated("sampling", merged.get("sampling", {}))).count(count) / count
        schedule = validated("schedule", merged["schedule"])
    except (ValidationError, UserError, TypeError, ZeroDivisionError):  # reported when all sections are checked
        return merged["schedule"]
    share = (before or now) / now
    if share >= 1:
        return merged["schedule"]
    return merged["schedule"] | schedule.spread(share)


def load_config(values: Values) -> Config:
    """Validate section by section; the first thing wrong becomes one line."""
    sections = list(Config.model_fields)
    for section in values:
        if section not in sections:
            raise UserError(f"unknown section '{section}'; sections: {', '.join(sections)}{nearest(section, sections)}")
    parsed: dict[str, BaseModel] = {}
    for section in sections:
        if section not in values:
            continue
        keys = {**values[section], **named(section, values[section])}
        model = _section_model(section, keys)
        try:
            parsed[section] = model.model_validate(keys)
        except ValidationError as error:
            raise UserError(_one_line(error, section, model)) from None
    try:
        return Config.model_validate(parsed)
    except ValidationError as error:  # errors that concern several sections
        raise UserError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None


def _section_model(section: str, keys: Values) -> type[BaseModel]:
    """The class that validates a section; in a section with a choice, that of the choice."""
    if section in AXES:
        return section_model(section, keys)
    model = Config.model_fields[section].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model


def _one_line(error: ValidationError, section: str, model: type[BaseModel]) -> str:
    """The first error of a section: key, value, what would be right."""
    errors = error.errors()
    first = errors[0]
    names = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        key, known = names[-1], list(model.model_fields)
        if moved := _MOVED.get(f"{section}.{key}"):
            return f"'{section}.{key}' is now called {moved}{_lacks(moved, section, model)}"
        if elsewhere := owners(section, key):
            hint = f"; it is a key of {', '.join(elsewhere)}"
        elif fixed := constants(section, key):
            hint = f"; it is a constant of {', '.join(fixed)}, which a class of your own can change"
        else:
            others = [name for name in Config.model_fields if key in _section_model(name, {}).model_fields]
            hint = nearest(key, known) or (f"; it is a key of {', '.join(others)}" if others else "")
        return f"unknown key '{section}.{key}'; known in {section}: {', '.join(known)}{hint}"
    if first["type"] == "missing":
        return f"{section}.{names[-1]} has no default; set it"
    if not names:
        return str(first["msg"]).removeprefix("Value error, ")
    # A key that takes one of several kinds has an error for each; the kinds' names in between are pydantic's own.
    places = [part + 1 for part in first["loc"] if isinstance(part, int)]
    same = [e for e in errors if e["loc"][0] == first["loc"][0] and repr(e["input"]) == repr(first["input"])]
    message = " or ".join(dict.fromkeys(_said(e) for e in same))
    of_list = "".join(f"value {place} of " for place in reversed(places))
    return f"{of_list}{section}.{names[0]} = {first['input']!r}: {message}"


def _lacks(moved: str, section: str, model: type[BaseModel]) -> str:
    """Who has the new key, if what is chosen in this section doesn't."""
    place, _, rest = moved.partition(".")
    key = re.split(r"\W", rest)[0]
    if place != section or section not in AXES or key in model.model_fields:
        return ""
    chosen = next(
        (model.model_fields[axis.key].default for axis in AXES[section] if axis.key in model.model_fields), ""
    )
    return f"; {chosen} doesn't have it: it is a key of {', '.join(owners(section, key))}"


def _said(error: ErrorDetails) -> str:
    """What would be right, in pydantic's words unless they are a programmer's."""
    kind = error["type"]
    if kind == "tuple_type":
        given = str(error["input"])
        return "must be a whole list, such as [0.3,0.6]" if given.startswith("[") else f"must be a list: [{given}]"
    if kind == "too_short":
        return f"must have {error.get('ctx', {})['min_length']} or more values"
    if kind in ("bool_parsing", "bool_type"):
        return "must be true or false"
    if kind in ("int_parsing", "int_type", "int_from_float"):
        return "must be a whole number"
    if kind in ("float_parsing", "float_type"):
        return "must be a number"
    return str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
