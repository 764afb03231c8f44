"""`fednoil bench`: run a grid of methods, settings and seeds, and rank the methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednoil.cli.reproduce import Changes, Jobs, Ray, changed_sections, end, run_plan, usual_jobs_of
from fednoil.errors import UserError, counted
from fednoil.terminal import output

if TYPE_CHECKING:
    from fednoil.bench.plan import BenchCell, Grid
    from fednoil.bench.record import Key, Row

Added = Annotated[
    list[str] | None,
    typer.Option(
        "--add", metavar="METHOD", help="Your own learner, MODULE:CLASS, or any SERVER+LEARNER; may be repeated."
    ),
]
Record = Annotated[
    list[Path] | None,
    typer.Option(
        "--record",
        metavar="RESULTS.csv",
        help="Rank the runs of another ranking, too, without repeating them; may be repeated.",
    ),
]
Many = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this; may be repeated.")]


def bench(
    method: Many = None,
    setting: Many = None,
    add: Added = None,
    record: Record = None,
    seeds: Annotated[str | None, typer.Option("--seeds", metavar="0..2", help="Default: 0..2.")] = None,
    scale: Annotated[str | None, typer.Option("--scale", help="small (default), or paper.")] = None,
    changes: Changes = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the ranking; finished runs in it are kept.")] = Path(
        "runs/bench"
    ),
    jobs: Jobs = None,
    ray: Ray = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or mps.")] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder with datasets.")] = None,
    noise_files: Annotated[
        bool,
        typer.Option("--noise-files", help="Write each setting's split and labels with checksums; run nothing."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run; run nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but failures.")] = False,
) -> None:
    """Rank methods over settings. The same command resumes, and --add puts your own method into a ranking."""
    from fednoil.bench.plan import cells_of, changed, finished, planned, save
    from fednoil.bench.record import OTHERS, collected, counting, write_record

    grid = _grid(out, method, setting, add or [], seeds, scale, changed_sections(changes or [], device))
    cells, done, known = cells_of(grid), finished(out), collected(out, record or [])
    others, remark = counting(known, grid, cells, data_dir)
    if record and not others:
        raise UserError(f"--record {' '.join(map(str, record))}: {remark}")
    open_cells = [cell for cell in cells if cell.config.hash() not in done and cell.key not in others]
    console = output(quiet=quiet)
    if noise_files and not dry_run:
        from fednoil.bench.noise_files import write_noise

        return end(console, write_noise(cells, _made(out), data_dir), [], 0)
    total, to_run, side_by_side = len(cells), len(open_cells), jobs or usual_jobs_of(open_cells)
    for line in (remark, f"{counted(total, 'run')}, {total - to_run} done, {to_run} to run, {side_by_side} at a time"):
        if line:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if dry_run:
        for line in planned(open_cells):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
        return
    save(grid, _made(out))
    if record:
        write_record(out / OTHERS, known.values())
    outcomes = run_plan(open_cells, out, data_dir, console, jobs, ray, total) if open_cells else []
    files = _finish(cells, others, changed(grid), out, quiet)
    end(console, files, [outcome for outcome in outcomes if outcome.reason], to_run)


def _made(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; choose another folder") from None
    return out


def _grid(
    out: Path,
    methods: list[str] | None,
    settings: list[str] | None,
    added: list[str],
    seeds: str | None,
    scale: str | None,
    changes: dict[str, Any],
) -> Grid:
    """The grid that is asked for; what isn't named is as in the folder, or the default."""
    from fednoil.batch.cell import parse_seeds
    from fednoil.bench.plan import Grid, saved, with_added, with_changes

    grid = saved(out) or Grid()
    given: dict[str, Any] = {"methods": methods, "settings": settings, "scale": scale}
    given["seeds"] = parse_seeds(seeds) if seeds else None
    named = replace(grid, **{name: value for name, value in given.items() if value})
    return with_added(with_changes(named, changes), added)


def _finish(cells: list[BenchCell], others: dict[Key, Row], changed: str, out: Path, quiet: bool) -> list[Path]:
    """The ranking of finished runs: on the terminal, as Markdown, LaTeX and a page, next to the report of all runs."""
    from fednoil.bench import pages
    from fednoil.bench.plan import finished
    from fednoil.bench.ranking import mean_curves, ranking, uneven
    from fednoil.bench.record import FILE, figures_in, key_of, row_of, write_record
    from fednoil.cli.report import write_reports
    from fednoil.records.files import write_text
    from fednoil.records.folder import RunFolder
    from fednoil.report.results import load_results

    folders = finished(out)
    done = {cell: folders[cell.config.hash()] for cell in cells if cell.config.hash() in folders}
    if not (done or others):
        return []
    records = {cell.key: RunFolder(folder).records() for cell, folder in done.items()}
    failed = {cell.key for cell, folder in done.items() if RunFolder(folder).diverged()}
    own = [row_of(cell, folder) for cell, folder in done.items()]
    lines = others | {key_of(row): row for row in own}
    runs = {key: figures_in(row) for key, row in lines.items()}
    knows = {method: row["knows"] == "1" for (method, *_), row in lines.items()}
    methods, settings = (list(dict.fromkeys(getattr(c, name) for c in cells)) for name in ("method", "setting"))
    methods += [name for name in dict.fromkeys(method for method, *_ in others) if name not in methods]
    rows = ranking(runs, methods, settings, knows)
    rounds, seeds = {cell.config.train.rounds for cell in cells}, {seed for *_, seed in runs}
    budgets = uneven({key: found for key, found in records.items() if key not in failed})
    said, report = budgets + pages.note(len(seeds), len(settings), rounds) + changed, out / "runs.html"
    begun = [folder for cell, folder in done.items() if records[cell.key]]
    if begun:
        write_reports(load_results(begun), report, None, None, "All runs of the ranking")
    write_record(out / FILE, lines.values())
    texts = {
        "ranking.md": pages.markdown(rows, settings, said),
        "ranking.tex": pages.latex(rows, settings, said),
        "ranking.html": pages.html(rows, settings, said, report.name if begun else "", mean_curves(records)),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    if not quiet:
        print(texts["ranking.md"])
    return [*(out / name for name in (*texts, FILE)), *([report] if begun else [])]
