"""The record of a ranking, one line a run: what is kept of its runs, and how another ranking takes them over.

A newcomer can so be ranked among methods that others have run, on the same splits and labels (`noise` is their hash).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fednoil.bench.plan import BenchCell, Grid, cells_of
from fednoil.bench.ranking import RunFigures, figures_of, knows_noise
from fednoil.errors import UserError
from fednoil.records.files import read_json, write_text
from fednoil.records.folder import RunFolder
from fednoil.seeds import Seed
from fednoil.setting import make_setting

FILE = "results.csv"
OTHERS = "others.csv"  # what a folder has taken over
_FIGURES = ("last", "last_ten", "best", "chosen", "steps", "traffic", "seconds")
FIELDS: tuple[str, ...] = ("setting", "method", "seed", *_FIGURES, "diverged", "knows", "noise", "device", "commit")
_HASH = 12  # characters of the labels' hash
Row = dict[str, str]
Key = tuple[str, str, int]  # method, setting and seed


def key_of(row: Row) -> Key:
    return row["method"], row["setting"], int(row["seed"])


def row_of(cell: BenchCell, path: Path, commit: str = "") -> Row:
    """What the record says of a finished run; `commit` is that of one which doesn't know it."""
    run, environment = RunFolder(path), read_json(path / "environment.json")
    figures = asdict(figures_of(run.records(), diverged=run.diverged()))
    found: dict[str, Any] = {"setting": cell.setting, "method": cell.method, "seed": cell.config.run.seed}
    found |= {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
    found |= {"diverged": int(run.diverged()), "knows": int(knows_noise(cell.config.model_dump(mode="json")))}
    found |= {"noise": environment["noise_hash"][:_HASH], "device": environment["device"]}
    found["commit"] = (environment.get("commit") or commit)[:7]
    return {name: "" if found[name] is None else str(found[name]) for name in FIELDS}


def figures_in(row: Row) -> RunFigures:
    """A line's figures."""
    numbers = {name: float(row[name]) if row[name] else None for name in _FIGURES}
    return RunFigures(**numbers | {name: int(row[name]) for name in ("steps", "traffic")})  # pyright: ignore[reportArgumentType]


def read_record(path: Path) -> list[Row]:
    """The lines of a record; one that is none is refused in one line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"--record {path}: {why}") from None
    if not rows or not set(FIELDS) <= set(rows[0]):
        raise UserError(
            f"--record {path}: it is no record of a ranking; give the {FILE} that fednoil bench has written"
        )
    for place, row in enumerate(rows, 2):
        try:
            _ = key_of(row), figures_in(row)
        except (TypeError, ValueError):
            raise UserError(f"--record {path}: line {place} is damaged") from None
    return rows


def write_record(path: Path, rows: Sequence[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: (row["setting"], row["method"], int(row["seed"]))))
    write_text(path, text.getvalue())


def taken_over(
    grid: Grid, cells: Sequence[BenchCell], out: Path, given: Path | None, data_dir: Path | None
) -> dict[Key, Row]:
    """The runs of another ranking that count in this one: of a `given` record, or of the one that the folder has. They
    must have been made as this ranking makes its own."""
    path, wanted = given or out / OTHERS, {cell.key: cell for cell in cells}
    if not (given or path.is_file()):
        return {}
    rows = {key_of(row): row for row in read_record(path) if key_of(row) in wanted}
    if given and not rows:
        raise UserError(f"--record {given}: none of its runs belongs to this ranking (--scale {grid.scale})")
    if rows and [c.config.hash() for c in cells] != [c.config.hash() for c in cells_of(replace(grid, changes=None))]:
        raise UserError("--record: its runs were made without --set; leave that out, or the record")
    if given:
        first = wanted[next(iter(rows))]
        made = make_setting(first.config, data_dir, Seed(first.config.run.seed)).manifest_hash()
        check_noise(list(rows.values()), {(first.setting, first.config.run.seed): made})
    return rows


def check_noise(rows: Sequence[Row], made: Mapping[tuple[str, int], str]) -> None:
    """Refuse a record whose labels are not those of this ranking: their hashes by setting and seed."""
    for row in rows:
        own = made.get((row["setting"], int(row["seed"])))
        if own is not None and own[:_HASH] != row["noise"]:
            raise UserError(
                f"--record: its runs of {row['setting']}, seed {row['seed']}, have other labels ({row['noise']}) than "
                f"those of this ranking ({own[:_HASH]}); use the scale and the version that it was made with"
            )
