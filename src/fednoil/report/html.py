"""One self-contained page: tables as HTML, everything else as compact data that the page draws on demand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from fednoil import __version__, pages
from fednoil.history import ACCURACY
from fednoil.report.chance import CHANCE
from fednoil.report.leads import class_grids, leads, measure_grids, settings_grid
from fednoil.report.results import Results, grouped, paired
from fednoil.report.runs import CURVES, RecordedRun
from fednoil.report.sheets import Column, Entry, sheets

_POINTS = 20_000  # of all curves of one figure together; a single curve has 40 to 200 of them
_SQUARE = 20  # classes up to which the whole matrix of given and predicted labels is embedded


def render(results: Results, title: str, watched: bool = False) -> str:
    """The page as text; one that is `watched` loads itself again, because it will be written again."""
    return pages.render(
        _asset("page.html.j2"),
        title=title,
        version=__version__,
        css=_asset("uPlot.min.css") + pages.style() + _asset("page.css"),
        scripts=[_asset("uPlot.iife.min.js"), pages.script(), _asset("page.js")],
        data=pages.embedded(page_data(results)),
        sheets=(tables := sheets(results)),
        cites=results.study.cites if results.study and any(sheet.table for sheet in tables) else "",
        sections=results.sections(),
        leads=leads(results),
        grids=class_grids(results),
        measures=measure_grids(results),
        differs=settings_grid(results),
        watched=watched,
        pairs=paired_rows(results),
        measure=results.measure,
        warnings=results.warnings,
        runs=len(results.runs),
        seconds=sum(run.summary["wall_s"] for run in results.runs),
        verdict_of=_verdict_of,
    )


def _asset(name: str) -> str:
    return pages.asset("fednoil.report", "page", name)


def _verdict_of(entry: Entry, column: Column) -> str:
    """Which is better in a cell, ours or the printed value; neither if the difference may be chance."""
    if entry.difference is None or entry.printed is None or (entry.p is None and column.metric == "accuracy"):
        return ""
    spread = max(entry.ours.std or 0.0, entry.printed.std or 0.0, 0.5)  # over rounds, for metrics other than accuracy
    if abs(entry.difference) <= spread if entry.p is None else entry.p >= CHANCE:
        return "even"
    return "ahead" if (entry.difference > 0) == column.higher_wins else "behind"


def paired_rows(results: Results) -> list[dict[str, Any]]:
    """In each setting the best method against the others with the same conduct, on the seeds they share."""
    found = []
    finished = [row for row in results.rows if row.finished]
    for _, rows in grouped(finished, lambda row: (row.place.where, row.conduct)):
        best = max(rows, key=lambda row: row.last_round().mean)
        for other in rows:
            pair = paired(best, other) if other is not best else None
            if pair is not None and len(pair.seeds) > 1:
                found.append({"where": best.place.title, "best": best, "other": other, "pair": pair})
    return found


def page_data(results: Results) -> dict[str, Any]:
    """The data of the page's script: runs as short records, and tables of what they share."""
    names = ("settings", "methods", "configs", "environments", "classes")
    shared: dict[str, dict[str, int]] = {name: {} for name in names}

    def index(table: str, value: Any) -> int:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return shared[table].setdefault(text, len(shared[table]))

    length = max(40, min(200, _POINTS // len(results.runs)))
    runs = []
    for run in results.runs:
        config = {section: keys for section, keys in run.values.items() if section != "run"}
        about = {
            k: v for k, v in run.environment.items() if k not in ("started", "command", "resumed") and "hash" not in k
        }
        runs.append(
            {
                "classes": index("classes", run.summary.get("classes") or []),
                "name": run.path.name,
                "path": str(run.path),
                "where": index("settings", run.place.title),
                "method": index("methods", results.title_of(run)),
                "config": index("configs", config),
                "environment": index("environments", about),
                "seed": run.seed,
                "summary": _summary(run),
                "command": _command(run, results),
                "curves": _thinned(run, length),
                "clients": _clients(run),
                "confusion": _confusion(run),
                "tested": _tested(run),
            }
        )
    tables: dict[str, list[Any]] = {name: list(table) for name, table in shared.items()}
    for name in ("configs", "environments", "classes"):
        tables[name] = [json.loads(text) for text in tables[name]]
    curves = CURVES if results.measure == ACCURACY else {**CURVES, "test_accuracy": f"{results.measure}, %"}
    return {"runs": runs, "curves": curves, **tables}


def _summary(run: RecordedRun) -> dict[str, Any]:
    keys = ("final_accuracy", "best_accuracy", "last10_accuracy", "converged", "train_batches", "wall_s")
    keys = (*keys, "bytes_down", "bytes_up", "config_hash", "data_hash", "noise_hash")
    found = {key: run.summary[key] for key in keys if key in run.summary}
    planned = run.values["train"]["rounds"]
    conduct = ", ".join(run.conduct)
    return {**found, "rounds": run.rounds, "planned": planned, "finished": run.finished, "conduct": conduct}


def _command(run: RecordedRun, results: Results) -> str:
    """The command that repeats the run, with its precision and kept round; a federation has its keys in the file."""
    asked = run.environment.get("command") or []
    if asked[1:3] == ["federation", "run"]:  # no configuration says which nodes took part
        return shlex.join(asked)
    conduct = [f"run.precision={run.precision}"] if run.precision in ("float32", "tf32", "bfloat16") else []
    conduct += [f"run.select={select}"] if (select := run.values["run"]["select"]) != "last" else []
    args = None if run.federated or results.study is None else results.study.command(run.values, conduct)
    if args is None:
        verb = "federation run" if run.federated else "run"
        args = [*verb.split(), str(run.path / "config.toml"), "--out", run.path.name]
    return shlex.join(["fednoil", *args])


def _thinned(run: RecordedRun, length: int) -> dict[str, list[float | None]]:
    """Curves at evenly spaced rounds, including the last one; `round` says which."""
    picked = np.unique(np.linspace(0, run.rounds - 1, min(length, run.rounds)).round().astype(int))
    curves: dict[str, list[float | None]] = {"round": (picked + 1).tolist()}
    for key, values in run.curves.items():
        digits = 0 if key in ("local_epochs", "train_batches") else 3 if "loss" in key else 2
        curves[key] = [round(float(v), digits) if np.isfinite(v) else None for v in values[picked]]
    return curves


def _clients(run: RecordedRun) -> dict[str, Any]:
    def short(values: Sequence[float | None] | None) -> list[float | None] | None:
        return None if values is None else [None if v is None else round(v, 1) for v in values]

    clients = run.clients
    return {
        "selected": clients.selected,
        "samples": clients.samples,
        "noise": short(clients.noise),
        "share": short(clients.clean_share),
        "agreement": short(clients.agreement),
        "names": clients.names,
        "held_out": short(clients.held_out),
        "wrong": short(clients.wrong),
        "tested": short(clients.tested),
        "balanced": short(clients.balanced),
    }


def _confusion(run: RecordedRun) -> dict[str, Any] | None:
    """The whole matrix, or with many classes its largest off-diagonal entries: [given, predicted, count]."""
    if run.confusion is None:
        return None
    matrix = np.asarray(run.confusion)
    if len(matrix) <= _SQUARE:
        return {"matrix": matrix.tolist()}
    off = matrix * (1 - np.eye(len(matrix), dtype=matrix.dtype))
    largest = np.argsort(off, axis=None)[::-1][:40]
    pairs = [(int(i // len(matrix)), int(i % len(matrix))) for i in largest]
    return {"classes": len(matrix), "largest": [[g, p, int(off[g, p])] for g, p in pairs if off[g, p]]}


def _tested(run: RecordedRun) -> dict[str, Any] | None:
    """True against predicted classes of the test samples, and measures of each class, unless there are many."""
    test = run.measures.get("test", {})
    matrix, each = test.get("confusion") or [], test.get("per_class", {})
    if not 0 < len(matrix) <= _SQUARE:
        return None
    columns = {key: [None if v is None else round(v, 3 if key == "auroc" else 1) for v in each[key]] for key in each}
    return {"matrix": matrix, "classes": columns}
