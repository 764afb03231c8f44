"""`fednoil run`: an experiment, recorded in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednoil.cli.options import Changes, DataDir, Seed, Source, StartOver
from fednoil.cli.resolving import how_to_go_on, resolve
from fednoil.cli.stopping import Stopped, stop_with_standard_input
from fednoil.errors import UserError
from fednoil.terminal import output

if TYPE_CHECKING:
    from fednoil.runner import Reporter

Sites = Annotated[
    list[str] | None,
    typer.Option(
        "--site", metavar="NAME=DATA", help="A client with its own data, such as nord=folder:PATH; may be repeated."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results; default: runs/<preset>, or runs/<preset>-seeds.")
]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="0..4", help="One run per seed, each in --out/seed-N.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it if there is none.")]


def run(
    source: Source = None,
    changes: Changes = None,
    sites: Sites = None,
    data_dir: DataDir = None,
    out: Out = None,
    seed: Seed = None,
    seeds: Seeds = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="With --seeds: runs side by side, each in its own process.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or mps.")] = None,
    resume: Resume = False,
    force: StartOver = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per round.")] = False,
    origin: Annotated[str | None, typer.Option("--origin", hidden=True, help="Where FILE.toml came from.")] = None,
    tied: Annotated[bool, typer.Option("--tied", hidden=True, help="Stop when standard input ends.")] = False,
) -> None:
    """Run an experiment and record it in a folder."""
    if tied:
        stop_with_standard_input()
    from fednoil.api.running import carried_out
    from fednoil.records.store import InFolder

    if resume and force:
        raise UserError("--resume and --force exclude each other: continue the run, or start over")
    if quiet and as_json:
        raise UserError("--quiet and --json exclude each other")
    if jobs is not None and seeds is None:
        raise UserError("--jobs runs several seeds side by side; add for example --seeds 0..4")
    if seeds is not None and (seed is not None or as_json):
        raise UserError("--seeds can't be combined with --seed or --json")
    made, folder = resolve(source, list(changes or []), seed, device, out, resume, seeds is not None, sites or ())
    if origin is not None:
        made = made._replace(origin=json.loads(origin))
    if seeds is not None:
        from fednoil.cli.seeds import run_seeds

        return run_seeds(made, folder, seeds, jobs, data_dir, resume, force, quiet)
    try:
        carried_out(made, InFolder(folder, resume=resume, force=force), data_dir, _reporter(quiet, as_json))
    except Stopped as stop:
        stop.hint = how_to_go_on(folder)
        raise


def _reporter(quiet: bool, as_json: bool) -> Reporter:
    """How the run is shown here."""
    from fednoil.reporters import Bars, JsonLines, Plain
    from fednoil.runner import Silent

    if quiet or as_json:
        return JsonLines() if as_json else Silent()
    console = output()
    return Bars(console) if console.is_terminal else Plain(console)
