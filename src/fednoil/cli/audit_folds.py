"""The cases of a run for `fednoil audit`: judged by its models, or fold by fold by runs that have not seen them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fednoil.audit import cases
from fednoil.audit.cases import Cases, client_number, of_state, source_of
from fednoil.audit.folds import USUAL, of_folds, why_folds
from fednoil.cli.stopping import Stopped
from fednoil.experiment import Experiment
from fednoil.records.folder import RunFolder
from fednoil.reporters import reporter_for
from fednoil.runner import Reporter


def of_run(
    run: Path,
    folds: int | None,
    client: str | None,
    data_dir: Path | None,
    device: torch.device,
    select: str | None,
    as_json: bool,
) -> Cases:
    """The cases of a run, out of folds if they are asked for, or help and nobody has declined them."""
    if folds:
        experiment = cases.load_experiment(run, data_dir, select)
        cases.checkpoints_of(experiment, run).check(experiment.config)
        found = _folded(experiment, run, folds, client_number(experiment, client, str(run)), device, as_json)
        return replace(found, source=source_of(experiment, run))
    experiment, state = cases.load_state(run, data_dir, select)
    number = client_number(experiment, client, str(run))
    found = of_state(experiment, state, number, device)
    whole = folds is None and state.over(experiment.config) and (run / "summary.json").is_file()
    seconds = RunFolder(run).summary()["wall_s"] if whole else None
    if why := why_folds(experiment, found, seconds):
        if not as_json:
            left = sum(not _made(run, USUAL, fold) for fold in range(USUAL))
            runs = (
                f"{left} run{'s' if left > 1 else ''} of about {seconds:.0f} s; --folds 0 skips them"
                if left
                else "its runs are kept"
            )
            print(f"{why}, so each label is judged by a run that has not seen it ({runs})", flush=True)
        found = _folded(experiment, run, USUAL, number, device, as_json)
    return replace(found, source=source_of(experiment, run))


def _made(run: Path, count: int, fold: int) -> bool:
    """Whether the run without this fold is kept and finished."""
    return (run / f"folds-{count}" / f"fold-{fold + 1}" / "summary.json").is_file()


def _folded(
    experiment: Experiment, run: Path, count: int, number: int | None, device: torch.device, as_json: bool
) -> Cases:
    """The cases of a run that is made once for each fold, in the run's folder; what is there already is kept."""

    def shown(fold: int) -> Reporter:
        if not as_json and not _made(run, count, fold):
            print(f"fold {fold + 1} of {count}: {experiment.config.train.rounds} rounds without it", flush=True)
        return reporter_for(False if as_json else None)

    try:
        return of_folds(experiment, count, number, device, shown, run / f"folds-{count}")
    except Stopped as stop:
        stop.hint = "run the same command again to continue"
        raise
