"""The grid of a ranking: methods × settings × seeds as cells, one run each.

What was asked for is kept in the folder (`bench.json`), so that the same ranking can be continued, or a new method
added to it, without naming the rest again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fednoil.batch.cell import Cell
from fednoil.bench.settings import BENCH_SCALES, DEFAULT_METHODS, settings_of
from fednoil.config import load_config, merge, read_toml
from fednoil.config.protocols import PROTOCOL_METHODS, Protocol
from fednoil.errors import UserError, check_known
from fednoil.records.environment import changed_code
from fednoil.records.files import read_json, write_json
from fednoil.records.folder import RunFolder
from fednoil.records.older import in_todays_keys, lost_settings

FILE = "bench.json"


@dataclass(frozen=True)
class Grid:
    """What is ranked: methods by name, the user's own learners as `module:Class`, or `server+learner`."""

    scale: str = "small"
    methods: Sequence[str] = DEFAULT_METHODS
    settings: Sequence[str] = ()  # none: all of the scale
    seeds: Sequence[int] = (0, 1, 2)
    changes: dict[str, dict[str, Any]] | None = None  # sections of --set


@dataclass(frozen=True, eq=False)
class BenchCell(Cell):
    """A cell and its place in the grid."""

    method: str
    setting: str

    @property
    def key(self) -> tuple[str, str, int]:
        """Method, setting and seed."""
        return self.method, self.setting, self.config.run.seed


def saved(out: Path) -> Grid | None:
    """The grid of a ranking that was begun in `out`."""
    if not (out / FILE).is_file():
        return None
    try:
        return Grid(**read_json(out / FILE))
    except TypeError as error:
        raise UserError(f"{out / FILE} is damaged ({error}); remove it, and name what is to be ranked") from None


def save(grid: Grid, out: Path) -> None:
    write_json(out / FILE, asdict(grid))


def with_added(grid: Grid, methods: Sequence[str]) -> Grid:
    """The grid with methods that are no protocol's: a learner of the user's, or a server and a learner."""
    for name in methods:
        if not is_added(name) or name.startswith("+") or name.endswith("+"):
            raise UserError(
                f"--add {name}: name your own learner as module:Class, or a server and a learner as SERVER+LEARNER; "
                "for methods of the package use --method"
            )
    return replace(grid, methods=list(dict.fromkeys([*grid.methods, *methods])))


def is_added(method: str) -> bool:
    return ":" in method or "+" in method


def _values(protocol: Protocol, method: str) -> dict[str, Any]:
    """The sections of a method; one that is added has those of the first with its learner, and with its server or else
    FedAvg's, which have the rounds."""
    if not is_added(method):
        return protocol.values(method)
    server, _, learner = method.rpartition("+")
    known = [protocol.values(name) for name in PROTOCOL_METHODS]
    usual = next((values for values in known if values["server"]["name"] == server), protocol.values("fedavg"))
    own = next((values["learner"] for values in known if values["learner"]["name"] == learner), {"name": learner})
    return usual | {"learner": own} | ({"server": {**usual["server"], "name": server}} if server else {})


def with_changes(grid: Grid, changes: dict[str, dict[str, Any]]) -> Grid:
    """The grid with more keys changed; those that it has changed before stay so unless they are named again."""
    before = grid.changes or {}
    after = {section: {**before.get(section, {}), **changes.get(section, {})} for section in {**before, **changes}}
    return replace(grid, changes=after or None)


def changed(grid: Grid) -> str:
    """A sentence, after others, about what --set and --device change, or ""."""
    values = [(f"{name}.{key}", value) for name, keys in (grid.changes or {}).items() for key, value in keys.items()]
    said = ", ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values)
    return f" Changed in all runs: {said}." if said else ""


def cells_of(grid: Grid) -> list[BenchCell]:
    """The cells of a grid, seed by seed, so that a first ranking is available early."""
    if grid.scale not in BENCH_SCALES:
        raise UserError(f"--scale {grid.scale}: choose {' or '.join(BENCH_SCALES)}")
    protocols = settings_of(grid.scale)
    settings = list(dict.fromkeys(grid.settings)) or list(protocols)
    check_known("--setting", settings, list(protocols))
    check_known("--method", [name for name in grid.methods if not is_added(name)], list(PROTOCOL_METHODS))
    found, titles = [], {}
    for seed in grid.seeds:
        for setting in settings:
            for method in dict.fromkeys(grid.methods):
                try:
                    values = merge(_values(protocols[setting], method), grid.changes or {})
                    config = load_config(merge(values, {"run": {"seed": seed}}))
                except UserError as error:
                    raise UserError(f"{method} in {setting}: {error}") from None
                name = re.sub(r"[^\w+-]+", "-", f"{grid.scale}-{setting}-{method}").strip("-")
                title = f"{setting}, {method}, seed {seed}"
                same = titles.setdefault(config.hash(), title)
                if same != title:
                    raise UserError(f"'{same}' and '{title}' are the same run; leave one out.{changed(grid)}")
                found.append(BenchCell(config, title, f"{name}-seed{seed}-{config.hash()[:8]}", title, method, setting))
    return found


def planned(cells: Sequence[BenchCell]) -> list[str]:
    """What is to run, a line for each setting and the seeds that its methods need there."""
    seeds: dict[str, dict[str, list[int]]] = {}
    for cell in cells:
        seeds.setdefault(cell.setting, {}).setdefault(cell.method, []).append(cell.config.run.seed)
    lines = []
    for setting, own in seeds.items():
        methods: dict[tuple[int, ...], list[str]] = {}
        for method, numbers in own.items():
            methods.setdefault(tuple(numbers), []).append(method)
        for numbers, names in methods.items():
            word = "seed" if len(numbers) == 1 else "seeds"
            lines.append(f"{setting}, {word} {', '.join(map(str, numbers))}: {', '.join(names)}")
    return lines


def finished(out: Path) -> dict[str, Path]:
    """The runs in `out` that have ended, with their last round or because they diverged, by the hash of their
    configuration in today's keys, whatever their folders are called: runs may come from elsewhere, and from a version
    that had other names for some of its keys. Not those of own code that has changed since."""
    found = {}
    for config in sorted(out.glob("*/config.toml")):
        with suppress(UserError):
            if not (config.with_name("summary.json").is_file() or RunFolder(config.parent).diverged()):
                continue
            recorded = read_toml(config)
            if not lost_settings(recorded):
                made = load_config(in_todays_keys(recorded))
                if changed_code(config.parent, made) is None:
                    found[made.hash()] = config.parent
    return found
