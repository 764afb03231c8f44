"""`fednoil compare`: runs side by side on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

COLUMNS = {
    "run": "run",
    "method": "method",
    "setting": "setting",
    "keys": "differs in",
    "seed": "seed",
    "rounds": "rounds",
    "final_accuracy": "final",
    "best_accuracy": "best",
    "last10_accuracy": "last 10",
    "converged": "conv.",
    "train_batches": "batches",
    "wall_s": "s",
}


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show runs side by side."""
    from fednoil.cli.tables import show
    from fednoil.records.compare import describe, short_names

    rows = [describe(path) for path in runs]
    for row, keys in zip(rows, _keys_that_differ(rows), strict=True):
        row["keys"] = keys if as_json else ", ".join(keys)
    if not as_json:
        names = short_names(runs)
        for row, name in zip(rows, names, strict=True):
            row["run"] = name if row["finished"] else f"{name} (unfinished)"
    # What all runs have in common goes into the title, so that the rest fits a terminal.
    common = {k: rows[0][k] for k in ("setting", "seed", "rounds") if len({row[k] for row in rows}) == 1}
    shared = [str(value) if key == "setting" else f"{key} {value}" for key, value in common.items()]
    title = "Test accuracy in percent" + "".join(f", {part}" for part in shared)
    left_out = {*common, *([] if any(row["keys"] for row in rows) else ["keys"])}
    show(rows, {k: v for k, v in COLUMNS.items() if k not in left_out}, title, as_json)


def _keys_that_differ(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Of each run the `section.key=value` that tell it from others of the same method's or setting's name."""
    from fednoil.report.places import METHOD_SECTIONS, SETTING_SECTIONS, differing, picked
    from fednoil.report.runs import read_config

    configs = [read_config(Path(row["run"])) for row in rows]
    found: list[list[str]] = [[] for _ in rows]
    for name, sections in (("method", METHOD_SECTIONS), ("setting", (*SETTING_SECTIONS, "run", "federation"))):
        for row, config, keys in zip(rows, configs, found, strict=True):
            alike = [c for c, other in zip(configs, rows, strict=True) if other[name] == row[name]]
            keys += picked(config, sections, differing(alike, sections) - {"run.seed"})
    return found
