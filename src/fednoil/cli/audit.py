"""`fednoil audit`: which labels of a run's clients, or of one site's own data, are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednoil.cli.audit_shown import show_audit
from fednoil.cli.options import DataDir, Device, Trust
from fednoil.cli.resolving import asked_device
from fednoil.errors import UserError

if TYPE_CHECKING:
    import torch

    from fednoil.audit.cases import Cases


_BUDGET = "budget.csv"
Run = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run folder; or give --data and --model.")]
Client = Annotated[
    str | None,
    typer.Option("--client", metavar="NAME|K", help="Audit only this client of a run, by its name or number."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for the results; default: RUN/audit, RUN/budget or similar, or ./audit."),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="folder:PATH, csv:FILE, npz:FILE, parquet:PATH, hf:PATH, webdataset:PATH, table:FILE or "
        "features:FILE of one site.",
    ),
]
Model = Annotated[Path | None, typer.Option("--model", metavar="MODEL.safetensors", help="The model to use on --data.")]
Select = Annotated[
    str | None,
    typer.Option(
        "--select", metavar="last|best", help="For a RUN: which round's model to use; default: its run.select."
    ),
]
SkipUnknown = Annotated[
    bool, typer.Option("--skip-unknown", help="Leave out samples of classes that the model doesn't know.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="5,10,20",
        help="For a RUN: correct these percentages of each client's labels, the most suspicious or random ones, "
        "and train again.",
    ),
]
Folds = Annotated[
    int | None,
    typer.Option(
        "--folds",
        metavar="K",
        help="For a RUN: repeat it K times, each time without one of K folds, which that run then judges; 0: don't; "
        "default: 5 if the model has memorised labels and there are few, otherwise 0.",
    ),
]


def audit(
    run: Run = None,
    client: Client = None,
    out: Out = None,
    data: Data = None,
    model: Model = None,
    select: Select = None,
    method: Annotated[str, typer.Option("--method", help="channel, or cleanlab if that is installed.")] = "channel",
    resize: Annotated[bool, typer.Option("--resize", help="Scale images of --data to the model's size.")] = False,
    skip_unknown: SkipUnknown = False,
    trust: Trust = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    budget: Budget = None,
    folds: Folds = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the audit or budget in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary, or the budgets, as JSON.")] = False,
) -> None:
    """Find wrong labels, and estimate each client's noise."""
    _check(run, client, data, model, method)
    _check_source(run, {"--resize": resize, "--skip-unknown": skip_unknown, "--trust": trust}, data_dir, select)
    place = asked_device(device)
    _check_again(run, client, budget, folds)
    from fednoil.audit.budget import percentages

    budgets = percentages(budget) if budget is not None else []
    folder = out or _usual_folder(run, client, bool(budgets), folds)
    try:
        _check_folder(folder, data, bool(budgets), force)
    except UserError:
        _check_there(run, client, data_dir, select, data, model)  # another folder wouldn't help
        raise
    from fednoil.audit.site import of_data
    from fednoil.cli.audit_folds import of_run

    if run is not None:
        cases = of_run(run, 0 if budgets else folds, client, data_dir, place, select, as_json)
    else:
        assert data is not None
        assert model is not None
        trusted = tuple(trust or ())
        cases = of_data(data, model, resize=resize, skip_unknown=skip_unknown, trusted=trusted, device=place)
    if budgets:
        assert run is not None
        return _budget(run, cases, budgets, method, folder, data_dir, place, as_json)
    show_audit(_audited(cases, folder, method), folder, as_json)


def _audited(cases: Cases, folder: Path, method: str) -> dict[str, Any]:
    """Write the audit, and return its summary."""
    from fednoil.audit import files, run_audit

    try:
        return run_audit(cases, folder, method)
    except OSError as error:
        half = folder.is_dir() and not (folder / files.SUMMARY).exists()
        hint = f"; the audit in {folder} is incomplete, make it again with --force" if half else ""
        raise UserError(f"{error.filename or folder}: {error.strerror or error}{hint}") from error


def _usual_folder(run: Path | None, client: str | None, budgets: bool, folds: int | None) -> Path:
    """Where results go; one client's audit doesn't replace that of all."""
    from fednoil.data.folder import folder_name

    if run is None:
        return Path("audit")
    usual = "budget" if budgets else f"audit-folds-{folds}" if folds else "audit"
    return run / (usual if client is None else f"{usual}-client-{folder_name(client)}")


def _check_folder(folder: Path, data: str | None, budgets: bool, force: bool) -> None:
    from fednoil.audit import files

    if budgets:
        _check_budget(folder, force)
    else:
        files.check_out(folder, force)
    if data is not None:
        files.check_outside(folder, data)


def _check_there(
    run: Path | None,
    client: str | None,
    data_dir: Path | None,
    select: str | None,
    data: str | None,
    model: Path | None,
) -> None:
    """Refuse a run, client, data or model that isn't there."""
    from fednoil.audit.cases import client_number, load_experiment
    from fednoil.data.sources import open_own

    if run is not None:
        client_number(load_experiment(run, data_dir, select), client, str(run))
    if data is not None:
        open_own(data).files()
    if model is not None and not model.is_file():
        raise UserError(f"{model} is not a file")


def _check_budget(folder: Path, force: bool) -> None:
    """Refuse to overwrite results that took hours."""
    from fednoil.audit.files import check_folder

    check_folder(folder)
    if (folder / _BUDGET).exists() and not force:
        raise UserError(f"{folder / _BUDGET} already exists; add --force to write it again, or choose another --out")


def _budget(
    run: Path,
    cases: Cases,
    budgets: list[float],
    method: str,
    folder: Path,
    data_dir: Path | None,
    device: torch.device,
    as_json: bool,
) -> None:
    """Write budget.csv and the figure: accuracy over the share of labels that are checked."""
    import json
    from dataclasses import asdict

    from fednoil.audit import estimates
    from fednoil.audit.budget import simulate, write_csv
    from fednoil.audit.cases import load_state
    from fednoil.figures import draw_budget

    experiment, _ = load_state(run, data_dir)
    report = (lambda _: None) if as_json else _report
    trainings, results = simulate(experiment, estimates(cases, method), budgets, device, report), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for result in trainings:
            results.append(result)
            write_csv(folder / _BUDGET, results)  # after each training, so that a stopped command keeps what was done
        written = [folder / _BUDGET, *draw_budget(results, folder / "budget-curve")]
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror or error}") from error
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        _report("\n".join(f"wrote {path}" for path in written))


def _report(line: str) -> None:
    print(line, flush=True)


def _check(
    run: Path | None,
    client: str | None,
    data: str | None,
    model: Path | None,
    method: str,
) -> None:
    """Refuse missing or conflicting sources."""
    if method not in ("channel", "cleanlab"):
        raise UserError(f"--method {method} is unknown; choose channel or cleanlab")
    if run is not None and (data is not None or model is not None):
        raise UserError("a RUN has its own data and model: give either RUN, or --data and --model")
    if run is None and (data is None or model is None):
        if data is None and model is None:
            raise UserError("give RUN, or --data and --model: a run folder, or a site's data and a model")
        given, lacking = ("--model", "--data") if data is None else ("--data", "--model")
        raise UserError(f"{given} needs {lacking}, too: a site's data and a model file; or give a run folder alone")
    if run is None and client is not None:
        raise UserError("--client is for a RUN; --data is a single client's")


def _check_source(run: Path | None, of_site: dict[str, Any], data_dir: Path | None, select: str | None) -> None:
    """Refuse options that would be ignored."""
    if run is None and select is not None:
        raise UserError("--select is for a RUN; a model file has one round's model")
    given = [name for name, value in of_site.items() if value]
    if run is not None and given:
        raise UserError(f"{given[0]} is for --data; a run has its own data and code")
    if run is None and data_dir is not None:
        raise UserError(f"--data-dir {data_dir} is for the named dataset of a RUN; --data has its own path")


def _check_again(run: Path | None, client: str | None, budget: str | None, folds: int | None) -> None:
    """Refuse what can't be trained again."""
    if budget is not None and (run is None or client is not None):
        raise UserError("--budget trains all clients of a RUN again; give RUN, without --data and --client")
    if folds and (run is None or budget is not None):
        raise UserError("--folds makes a RUN again, fold by fold; give RUN, without --budget")
