"""`fednoil relabel`: decisions about labels, applied to a copy of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fednoil.cli.options import DataDir, Json


def relabel(
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DATA",
            help="folder:PATH, csv:FILE, npz:FILE, parquet:PATH, hf:PATH, webdataset:PATH, table:FILE, "
            "features:FILE or manifest:FILE.",
        ),
    ],
    decisions: Annotated[
        Path, typer.Option("--decisions", metavar="FILE.csv", help="Decisions exported from the audit's page.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the copy goes; must not exist.")],
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", metavar="NAME", help="The data of a manifest (data.name), outside a run's folder."),
    ] = None,
    data_dir: DataDir = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL.safetensors", help="The audit's model, if DATA have no class names."),
    ] = None,
    site: Annotated[
        str | None, typer.Option("--site", metavar="NAME", help="Apply only this client's decisions; DATA are its own.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and count; write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Apply decisions about labels to a copy of the data. The data themselves don't change."""
    import json

    from fednoil.audit.relabel import relabel as apply
    from fednoil.cli.tables import show

    where = {"dataset": dataset, "data_dir": data_dir, "model": model, "site": site}
    outcome = apply(data, decisions, out, **where, dry_run=dry_run)
    pairs: list[tuple[str, str | None, int]] = [(*pair, n) for pair, n in outcome.changed.items()]
    pairs += [(given, None, n) for given, n in outcome.dropped.items()]
    rows = [{"given": given, "new": new, "samples": n} for given, new, n in sorted(pairs, key=lambda p: -p[2])]
    changed, dropped = outcome.changed.total(), outcome.dropped.total()
    if as_json:
        counts = {"changed": changed, "kept": outcome.kept, "dropped": dropped, "undecided": outcome.undecided}
        print(json.dumps({"out": str(out), **counts, "labels": rows}, indent=2, ensure_ascii=False))
        return
    if rows:
        shown = [{**row, "new": row["new"] or "(dropped)"} for row in rows]
        show(shown, {"given": "given", "new": "new", "samples": "samples"}, "Labels that change", False)
    verb = "would write" if dry_run else "wrote"
    print(f"{verb} {out}: {changed} changed, {outcome.kept} kept, {dropped} dropped, {outcome.undecided} not decided")
