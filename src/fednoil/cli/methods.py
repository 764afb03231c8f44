"""`fednoil methods`: the available choices."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from typing import Any

from fednoil.cli.options import Json


def methods(as_json: Json = False) -> None:
    """List what each section of a configuration can name. There are servers, learners, schedules, noise and more."""
    from fednoil.cli.tables import show_list
    from fednoil.config.axes import AXES

    rows = [
        {"name": name, "side": axis.section, "key": axis.path, **_about(cls)}
        for axes in AXES.values()
        for axis in axes
        for name, cls in axis.table.items()
    ]
    if as_json:
        return print(json.dumps(rows, indent=2, ensure_ascii=False))
    groups: dict[str, list[tuple[str, list[str]]]] = {}
    for row in rows:
        details = "{paper}; keeps {keeps}; sends {sends}; cost\N{NO-BREAK SPACE}{cost}"
        details = details.format_map(row) if "paper" in row else ""
        groups.setdefault(row["key"], []).append((row["name"], [row["title"], details]))
    print("Any choice works with any other; name your own as package.module:Class.")
    print("Listed are what a client keeps between rounds, what it sends, and the cost of")
    print("its work (FedAvg = 1).")
    show_list(groups)


def _about(cls: type) -> dict[str, Any]:
    """A class's own description, otherwise the first sentence of its docstring or of its file's."""
    if about := getattr(cls, "about", None):
        return {key: value for key, value in asdict(about).items() if value}
    text = cls.__doc__ or inspect.getdoc(inspect.getmodule(cls)) or ""
    return {"title": " ".join(text.split("\n\n")[0].split()).split(". ")[0].removesuffix(".")}
