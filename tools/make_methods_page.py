"""Write docs/methods.md from the methods themselves: what each does, its paper, its keys and our readings.

python tools/make_methods_page.py
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fednoil.learners import LEARNERS
from fednoil.learners.base import LearnerConfig
from fednoil.section import Section
from fednoil.servers import SERVERS
from fednoil.servers.base import ServerConfig

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
HEAD = """# Methods

Any server goes with any learner: `fednoil run demo --set server.name=krum --set learner.name=dividemix`. This page is
written by `tools/make_methods_page.py` from the methods' own files; `fednoil methods` prints the short form. Schedules
are told in [FedNoiL in plain words](fednoil.md).

## Combinations that are refused

Of a server and a learner: none. `tests/test_conformance.py` runs every server with every learner, clients sampled by
score (but for `centralized`, which has one). A client is scored with what it receives: two networks as an ensemble,
under `cfl` its own cluster's model, under `apfl` the common model.

Of a server and a key that all servers have, refused in one line before anything runs:

| server | key | why |
|---|---|---|
| `centralized` | `server.sampling`, `server.client_fraction` | all clients are pooled: there is nobody to choose |
| `cfl` | `server.step`, `server.statistics` | each cluster has a model of its own, in rounds of its own |

In a [real federation](federation.md) `centralized` is refused, because data never leave their nodes, and so is
`server.statistics = "measure"`, because nodes send no statistics of their own.
"""


def keys_table(section: str, config: type[Section], common: type[Section]) -> list[str]:
    """The keys that a method adds, with default and meaning."""
    return table_of(section, {n: f for n, f in config.model_fields.items() if n not in common.model_fields})


def table_of(section: str, own: Mapping[str, FieldInfo]) -> list[str]:
    if not own:
        return []
    lines = ["", "| key | default | meaning |", "|---|---|---|"]
    for name, field in own.items():
        default = "–" if field.default is PydanticUndefined else f"`{field.default!r}`"
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        told = f" ({', '.join(f'`{choice}`' for choice in choices)})" if len(choices) > 1 else ""
        lines.append(f"| `{section}.{name}` | {default} | {field.description}{told} |")
    return lines


def chapter(title: str, section: str, table: dict[str, Any], common: type[Section]) -> list[str]:
    lines = ["", f"## {title}"]
    shared = {name: field for name, field in common.model_fields.items() if name != "name"}
    if shared:
        lines += ["", f"Every {section} has these keys, and those below its name.", *table_of(section, shared)]
    for name, cls in table.items():
        about = cls.about
        text = inspect.getdoc(inspect.getmodule(cls)) or ""
        lines += ["", f"### `{name}`", "", f"{about.title} ({about.paper}). Keeps per client: {about.keeps}. Sends: "]
        lines[-1] += f"{about.sends}. Cost of a local update, FedAvg = 1: {about.cost}."
        lines += ["", text]
        lines += keys_table(section, cls.Config, common)
    return lines


def page() -> str:
    lines = [HEAD.rstrip()]
    lines += chapter("Servers", "server", SERVERS, ServerConfig)
    lines += chapter("Learners", "learner", LEARNERS, LearnerConfig)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
