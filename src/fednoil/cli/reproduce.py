"""`fednoil reproduce`: run the paper's tables and figures, and compare with the paper's numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fednoil.cli.stopping import Stopped
from fednoil.errors import UserError
from fednoil.terminal import output

Goal = Annotated[
    str,
    typer.Argument(
        metavar="GOAL", help="table1, table2, table3, table4, schedules, efficiency, tradeoff, ablation, clean or all."
    ),
]
Names = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this; may be repeated.")]
Methods = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A preset's method, or the paper's name for it.")
]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="0..4", help="Default: 0..4, or 0..2 if small.")]
Scale = Annotated[str, typer.Option("--scale", help="paper, or small: minutes on a CPU with the embedded data.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key of all runs.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for all runs; finished runs in it are kept.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        help="Runs side by side, each in its own process; default: one per core; on a GPU stacked, or four.",
    ),
]
Ray = Annotated[str | None, typer.Option("--ray", metavar="auto|ADDRESS", help="Spread the runs over a Ray cluster.")]


def reproduce(
    goal: Goal,
    dataset: Names = None,
    setting: Names = None,
    noise: Names = None,
    method: Methods = None,
    seeds: Seeds = None,
    scale: Scale = "paper",
    changes: Changes = None,
    out: Out = Path("runs/reproduce"),
    jobs: Jobs = None,
    ray: Ray = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or mps.")] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder with datasets.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and its estimate; run nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but failures.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan, or how it ended, as JSON.")] = False,
) -> None:
    """Run a table or figure of the paper. The same command continues where it was stopped."""
    from fednoil.batch.cell import parse_seeds
    from fednoil.study.plan import DEFAULT_SEEDS, PlanOptions, make_plan

    sections = changed_sections(changes or [], device)
    numbers = parse_seeds(seeds or DEFAULT_SEEDS.get(scale, "0"))
    wanted = PlanOptions(scale, dataset or [], setting or [], noise or [], method or [], numbers, sections)
    cells = make_plan(goal, wanted)
    open_cells = [cell for cell in cells if not cell.is_done(out)]
    console, side_by_side = output(quiet=quiet or as_json), jobs or usual_jobs_of(open_cells)
    if not dry_run:
        _check_first(goal, open_cells, out, data_dir, ray)
    plan = _describe(goal, cells, open_cells, out, side_by_side, data_dir, measure=dry_run or not quiet)
    if dry_run and as_json:
        print(json.dumps(plan, indent=2, ensure_ascii=False))
    if dry_run or not as_json:
        _show_plan(console, plan)
    if dry_run:
        return
    outcomes = run_plan(open_cells, out, data_dir, console, jobs, ray, len(cells)) if open_cells else []
    failed = [outcome for outcome in outcomes if outcome.reason]
    files = _finish(goal, scale, cells, out, wanted, quiet or as_json)
    if as_json:
        ended = [{"cell": o.cell.title, "folder": o.cell.folder, "reason": o.reason} for o in failed]
        print(json.dumps({**plan, "failed": ended, "files": [str(f) for f in files]}, indent=2, ensure_ascii=False))
    end(console, files, failed, len(open_cells))


def changed_sections(changes: Sequence[str], device: str | None) -> dict[str, Any]:
    """What all runs change in their presets."""
    from fednoil.config import parse_set

    sections = parse_set(changes)
    if device is not None:
        sections.setdefault("run", {})["device"] = device
    if "seed" in sections.get("run", {}):
        raise UserError("--set run.seed: use --seeds instead, for example --seeds 0..4")
    return sections


def usual_jobs_of(cells: Sequence[Any]) -> int:
    """How many of these runs are made at a time unless --jobs says so: in processes, or stacked on a GPU."""
    from fednoil.batch.together import waves
    from fednoil.cli.seeds import usual_jobs

    return max(usual_jobs(cells[0].config.run.device, len(cells)), *map(len, waves(cells)), 1) if cells else 1


def _check_first(goal: str, cells: Sequence[Any], out: Path, data_dir: Path | None, ray: str | None) -> None:
    """Refuse what would fail later, before anything is measured or run, and make the folder."""
    from fednoil.batch.cluster import import_ray
    from fednoil.figures import require_matplotlib
    from fednoil.study.plan import GOALS

    if goal != "all" and not goal.startswith("table") and GOALS[goal].figure:
        require_matplotlib()
    if ray is not None:
        import_ray()
    if ray in (None, "auto"):  # the workers of a remote cluster have their own data
        _check_data(dict.fromkeys(cell.config.data.name for cell in cells), data_dir)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; choose another folder") from None
    if not os.access(out, os.W_OK):
        raise UserError(f"--out {out} can't be written to; choose another folder")


def _check_data(names: Iterable[str], data_dir: Path | None) -> None:
    """Refuse to start without a dataset, and say which cells could be run."""
    from fednoil.data import open_source

    missing: UserError | None = None
    there = []
    for name in names:
        try:
            if open_source(name, data_dir).files() is not None:
                there.append(name)
        except UserError as error:
            missing = missing or error
    if missing is not None:
        choice = f"; or run what is available: {' '.join(f'--dataset {name}' for name in there)}" if there else ""
        raise UserError(f"{missing}{choice}")


def run_plan(
    cells: Sequence[Any],
    out: Path,
    data_dir: Path | None,
    console: Console,
    jobs: int | None,
    ray: str | None,
    total: int,
) -> list[Any]:
    """Make the runs and show their progress; if stopped, say how many are done."""
    from fednoil.batch import together
    from fednoil.batch.cluster import run_on_ray
    from fednoil.cli.progress import PlanBars, PlanLines
    from fednoil.cli.seeds import usual_jobs

    side_by_side = jobs or usual_jobs(cells[0].config.run.device, len(cells))
    bars = console.is_terminal and not console.quiet
    view = PlanBars(console, out, len(cells)) if bars else PlanLines(console, out, len(cells), console.quiet)
    try:
        with view:
            if ray is not None:
                return run_on_ray(cells, out, data_dir, view, ray, side_by_side)
            return together.run_cells(cells, out, data_dir, view, side_by_side, together=jobs is None)
    except Stopped as stop:
        done = total - sum(not cell.is_done(out) for cell in cells)
        stop.hint = f"{done} of {total} runs are done in {out}; run the same command again to continue"
        raise


def _describe(
    goal: str,
    cells: Sequence[Any],
    open_cells: Sequence[Any],
    out: Path,
    jobs: int,
    data_dir: Path | None,
    measure: bool,
) -> dict[str, Any]:
    """The plan as plain values; with `measure` also its estimated time, which takes a moment."""
    from fednoil.batch.duration import Duration, expected
    from fednoil.batch.workers import cores
    from fednoil.records.files import read_json

    done = [cell for cell in cells if cell not in set(open_cells)]
    past = []
    for cell in done:
        try:
            past.append((cell.config, float(read_json(out / cell.folder / "summary.json")["wall_s"])))
        except (UserError, KeyError, TypeError, ValueError):
            continue
    if measure:
        guess = expected(open_cells, past, jobs, max(1, cores() // jobs), data_dir)
    else:
        guess = Duration(None, "not estimated")
    return {
        "goal": goal,
        "cells": [{"title": c.title, "folder": c.folder, "done": c not in set(open_cells)} for c in cells],
        "to_run": len(open_cells),
        "jobs": jobs,
        "out": str(out),
        "estimate_s": None if guess.seconds is None else round(guess.seconds, 1),
        "estimate_from": guess.source,
    }


def _show_plan(console: Console, plan: dict[str, Any]) -> None:
    from fednoil.study.plan import GOALS

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    title = "All tables and figures" if plan["goal"] == "all" else GOALS[plan["goal"]].title
    total, to_run = len(plan["cells"]), plan["to_run"]
    line(f"{title}: {total} run{'s' * (total != 1)}, {total - to_run} done, {to_run} to run, {plan['jobs']} at a time")
    shown = [cell for cell in plan["cells"] if not cell["done"]]
    for cell in shown[:12]:
        line(f"  {cell['title']}")
    if len(shown) > 12:
        line(f"  … and {len(shown) - 12} more (--dry-run --json lists them all)")
    if to_run:
        seconds = plan["estimate_s"]
        text = "no estimate" if seconds is None else f"estimate: about {_duration(seconds)}"
        line(f"{text} ({plan['estimate_from']}); results in {plan['out']}")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def _finish(goal: str, scale: str, cells: Sequence[Any], out: Path, wanted: Any, quiet: bool) -> list[Path]:
    """Tables on the terminal, the page, Markdown and LaTeX, and the figures; returns the files."""
    from fednoil.cli.report import write_reports
    from fednoil.cli.results import show_results
    from fednoil.report.results import load_results
    from fednoil.study.plan import GOALS
    from fednoil.study.report import STUDY

    name = goal if scale == "paper" else f"{goal}-{scale}"
    there = [out / cell.folder for cell in cells if (out / cell.folder / "rounds.jsonl").is_file()]
    results = load_results(there, STUDY) if there else None
    files: list[Path] = []
    if results is not None:
        if not quiet:
            show_results(results)
        title = "FedNoiL: " + ("all tables and figures" if goal == "all" else GOALS[goal].title)
        html, markdown, latex = (out / f"{name}.{ending}" for ending in ("html", "md", "tex"))
        files += write_reports(results, html, markdown, latex, title)
    return files + _figures(goal, scale, results, out / "figures", wanted)


def _figures(goal: str, scale: str, results: Any, folder: Path, wanted: Any) -> list[Path]:
    from fednoil.study.figures import FIGURES
    from fednoil.study.places import values_of
    from fednoil.study.plan import GOALS

    dataset = (wanted.datasets or GOALS["schedules"].datasets)[0]
    planned = values_of(scale, dataset, "iid", "clean", "fedavg")["train"]["rounds"]
    rounds = (wanted.changes or {}).get("train", {}).get("rounds", planned)
    chosen = dict.fromkeys(g.figure for name, g in GOALS.items() if goal in (name, "all") and g.figure)
    return [path for name in chosen for path in FIGURES[name].make(results, folder, rounds, scale == "small")]


def end(console: Console, files: Sequence[Path], failed: Sequence[Any], total: int) -> None:
    for path in files:
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        errors = Console(stderr=True)
        errors.print(f"fednoil: {len(failed)} of {total} runs failed:", markup=False, highlight=False)
        for outcome in failed:
            line = f"  {outcome.cell.title}: {outcome.reason}"
            errors.print(line, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)
