"""`fednoil run --seeds`: the same experiment with several seeds, one after another or side by side."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fednoil.cli.stopping import Stopped
from fednoil.config import Config
from fednoil.errors import UserError
from fednoil.records.files import read_json
from fednoil.records.folder import RunFolder
from fednoil.report.places import place_of
from fednoil.reproduce.plan import Cell, parse_seeds


@dataclass(frozen=True)
class _Seeded(Cell):
    """A run that is told from its neighbours by its seed alone."""

    @property
    def title(self) -> str:
        return f"seed {self.config.run.seed}"

    @property
    def folder(self) -> str:
        return f"seed-{self.config.run.seed}"


def usual_jobs(device: str, runs: int) -> int:
    """Runs side by side: one a core on a CPU, where a run uses one core best; four on a GPU.

    Between steps a run keeps the host busy: four in processes of their own took 0.6 of the time of four one after
    another on an H200 with 16 cores (Fashion-MNIST, the paper's CNN, an earlier and slower version).
    """
    from fednoil.experiment import pick_device
    from fednoil.reproduce.workers import cores

    most = min(cores(), 8) if pick_device(device).type == "cpu" else min(cores() // 2, 4)
    return max(1, min(most, runs))


def run_seeds(
    config: Config,
    out: Path,
    seeds: str,
    jobs: int | None,
    data_dir: Path | None,
    resume: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Run the experiment once for each seed under `out`/seed-N, and tell the mean."""
    from fednoil.cli.progress import Bars, Lines
    from fednoil.reproduce.workers import run_here, run_in_processes

    numbers = parse_seeds(seeds)
    cells = [_seeded(config, number) for number in numbers]
    for cell in cells:
        if (out / cell.folder).exists() and not resume and not force:
            raise UserError(f"{out / cell.folder} is there already; go on with --resume, or start over with --force")
    if force:
        for cell in cells:
            _clear(RunFolder(out / cell.folder))
    out.mkdir(parents=True, exist_ok=True)
    console = Console(quiet=quiet)
    waiting = [cell for cell in cells if not cell.is_done(out)]
    side_by_side = jobs or usual_jobs(config.run.device, len(waiting))
    shown: Any = Bars if console.is_terminal and not quiet else Lines
    try:
        with shown(console, out, len(waiting), *([quiet] if shown is Lines else [])) as view:
            if side_by_side == 1:
                outcomes = run_here(waiting, out, data_dir, view)
            else:
                outcomes = run_in_processes(waiting, out, data_dir, view, side_by_side)
    except Stopped as stop:
        stop.hint = "run the same command with --resume to go on"
        raise
    failed = [outcome for outcome in outcomes if outcome.reason]
    if failed:
        told = "; ".join(f"{outcome.cell.title}: {outcome.reason}" for outcome in failed)
        Console(stderr=True).print(f"fednoil: {len(failed)} of {len(cells)} runs failed: {told}", soft_wrap=True)
        raise typer.Exit(1)
    console.print(_mean([read_json(out / cell.folder / "summary.json") for cell in cells]), highlight=False)


def _clear(folder: RunFolder) -> None:
    folder.check(resume=False, force=True)
    if folder.path.exists():
        with folder.locked():
            folder.clear()


def _seeded(config: Config, seed: int) -> Cell:
    changed = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
    return _Seeded(changed, place_of(changed.model_dump(mode="json")))


def _mean(summaries: list[dict[str, Any]]) -> str:
    finals = [summary["final_accuracy"] for summary in summaries]
    spread = f" ± {statistics.stdev(finals):.2f}" if len(finals) > 1 else ""
    return f"final accuracy {statistics.mean(finals):.2f}{spread} % over {len(finals)} seeds"
