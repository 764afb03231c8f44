"""`fednoil methods`: what there is to choose from."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

SCHEDULES = {
    "constant": "The same number of local epochs in every round",
    "cosine": "Local epochs fall from t_max to t_min at round r_min: slowly at first",
    "logarithm": "Local epochs fall from t_max to t_min at round r_min: fast at first",
}


def methods(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False) -> None:
    """List servers, learners and schedules."""
    from fednoil.cli.tables import show_list
    from fednoil.learners import LEARNERS
    from fednoil.servers import SERVERS

    rows = [
        {"name": name, "side": side, **(asdict(cls.about) if cls.about else {})}
        for side, table in (("server", SERVERS), ("learner", LEARNERS))
        for name, cls in table.items()
    ]
    rows += [{"name": name, "side": "schedule", "title": title} for name, title in SCHEDULES.items()]
    if as_json:
        return print(json.dumps(rows, indent=2, ensure_ascii=False))
    groups: dict[str, list[tuple[str, list[str]]]] = {}
    for row in rows:
        told = "{paper}; keeps {keeps}; sends {sends}; cost\N{NO-BREAK SPACE}{cost}"
        told = told.format_map(row) if "paper" in row else ""
        groups.setdefault(f"{row['side'].capitalize()}s", []).append((row["name"], [row["title"], told]))
    print("Any server goes with any learner and any schedule. Told is what a client keeps")
    print("between rounds, what it sends, and the cost of its work (FedAvg = 1).")
    show_list(groups)
