"""Write docs/methods.md from the methods themselves: what each does, its paper, its keys and our readings.

python tools/make_methods_page.py
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

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

Every server also has `server.sampling` (`uniform`, `score`, `score_mean`), `server.client_fraction` and
`server.temperature`. `centralized` has nobody to choose from and refuses the first two.

## Combinations that are refused

None. `tests/test_conformance.py` runs every server with every learner, clients sampled by score (but for `centralized`,
which has one). A client is scored
with what it receives: two networks as an ensemble, under `cfl` its own cluster's model, under `apfl` the common model.
"""


def keys_table(section: str, config: type[Section], common: type[Section]) -> list[str]:
    """The keys that a method adds, with default and meaning."""
    own = {name: f for name, f in config.model_fields.items() if name not in common.model_fields}
    if not own:
        return []
    lines = ["", "| key | default | meaning |", "|---|---|---|"]
    for name, field in own.items():
        default = "–" if field.default is PydanticUndefined else f"`{field.default!r}`"
        lines.append(f"| `{section}.{name}` | {default} | {field.description or ''} |")
    return lines


def chapter(title: str, section: str, table: dict[str, Any], common: type[Section]) -> list[str]:
    lines = ["", f"## {title}"]
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
