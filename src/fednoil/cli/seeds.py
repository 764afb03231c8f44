"""`fednoil run --seeds`: the same experiment with several seeds, together on a GPU or side by side in processes."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from fednoil.api.running import Resolved
from fednoil.batch.cell import Cell, parse_seeds
from fednoil.cli.resolving import how_to_go_on
from fednoil.cli.stopping import Stopped
from fednoil.errors import UserError
from fednoil.history import ACCURACY
from fednoil.records.beginning import check
from fednoil.records.files import read_json
from fednoil.records.folder import RunFolder
from fednoil.terminal import output


def usual_jobs(device: str, runs: int) -> int:
    """Runs side by side: one per core on a CPU, where a run is most efficient on one core; four on a GPU.

    A GPU run also keeps the host busy: four in separate processes took 0.66 of the time of four one after another on an
    H200 with 16 cores, 0.47 with the GPU's multi-process service (Fashion-MNIST, the paper's CNN).
    """
    from fednoil.batch.workers import cores
    from fednoil.devices import pick_device

    most = min(cores(), 8) if pick_device(device).type == "cpu" else min(cores() // 2, 4)
    return max(1, min(most, runs))


def run_seeds(
    made: Resolved,
    out: Path,
    seeds: str,
    jobs: int | None,
    data_dir: Path | None,
    resume: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Run the experiment once for each seed under `out`/seed-N, and print the mean."""
    from fednoil.batch.together import run_cells
    from fednoil.cli.progress import PlanBars, PlanLines

    cells = [_seeded(made, number) for number in parse_seeds(seeds)]
    waiting = _checked(cells, out, data_dir, resume, force)
    side_by_side = jobs or usual_jobs(made.config.run.device, len(waiting))
    if force:
        for cell in cells:
            _clear(RunFolder(out / cell.folder))
    out.mkdir(parents=True, exist_ok=True)
    console = output(quiet=quiet)
    shown: Any = PlanBars if console.is_terminal and not quiet else PlanLines
    try:
        with shown(console, out, len(waiting), *([quiet] if shown is PlanLines else [])) as view:
            outcomes = run_cells(waiting, out, data_dir, view, side_by_side, together=jobs is None)
    except Stopped as stop:
        stop.hint = how_to_go_on(out, seeds)
        raise
    failed = [outcome for outcome in outcomes if outcome.reason]
    if failed:
        # The reasons were printed when the runs ended, unless --quiet.
        listed = [f"{outcome.cell.title}: {outcome.reason}" if quiet else outcome.cell.title for outcome in failed]
        raise UserError(f"{len(failed)} of {len(cells)} runs failed: {'; '.join(listed)}")
    mean = _mean([read_json(out / cell.folder / "summary.json") for cell in cells])
    console.print(f"{mean}; results in {out}", markup=False, highlight=False, soft_wrap=True)


def _checked(cells: list[Cell], out: Path, data_dir: Path | None, resume: bool, force: bool) -> list[Cell]:
    """The cells that must run; what would make all of them fail is reported once, before anything is created."""
    from fednoil.devices import pick_device
    from fednoil.experiment import make_experiment

    if RunFolder(out).is_run():
        raise UserError(f"{out} is itself a run; choose another folder for the seeds' runs with --out")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; give a folder")
    for cell in cells:
        check(RunFolder(out / cell.folder), cell.config, resume=resume, force=force)
    waiting = [cell for cell in cells if force or not cell.is_done(out)]
    if waiting:
        pick_device(waiting[0].config.run.device)
        make_experiment(waiting[0].config, data_dir)
    return waiting


def _clear(folder: RunFolder) -> None:
    if folder.path.exists():
        with folder.locked():
            folder.clear()


def _seeded(made: Resolved, seed: int) -> Cell:
    config = made.config
    changed = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
    return Cell(changed, f"seed {seed}", f"seed-{seed}", f"seed {seed}", origin=made.origin)


def _mean(summaries: list[dict[str, Any]]) -> str:
    measure = summaries[0].get("measure", ACCURACY)
    finals = [summary["final_accuracy"] for summary in summaries if summary["final_accuracy"] is not None]
    if not finals:
        return f"final {measure} not known"
    spread = f" ± {statistics.stdev(finals):.2f}" if len(finals) > 1 else ""
    seeds = "1 seed" if len(finals) == 1 else f"{len(finals)} seeds"
    return f"final {measure} {statistics.mean(finals):.2f}{spread} % over {seeds}"
