"""The record of a ranking, one line a run: what is kept of its runs, and how another ranking takes them over.

A newcomer can so be ranked among methods that others have run, with the same configuration (`config`) and on the same
splits and labels (`noise`), of which the record has the hashes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any

from fednoil.bench.plan import BenchCell, Grid, cells_of, is_added
from fednoil.bench.ranking import RunFigures, figures_of, knows_noise
from fednoil.errors import UserError
from fednoil.manifest import class_count
from fednoil.records.files import read_json, write_text
from fednoil.records.folder import RunFolder
from fednoil.seeds import Seed
from fednoil.setting import make_setting

FILE = "results.csv"
OTHERS = "others.csv"  # what a folder has taken over
_RATES, _COSTS = ("last", "last_ten", "best", "chosen"), ("steps", "traffic", "seconds")
FIELDS: tuple[str, ...] = (
    *("setting", "method", "seed", *_RATES, *_COSTS, "diverged", "knows"),
    *("config", "noise", "device", "commit"),
)
_HASH = 8  # characters of a hash
Row = dict[str, str]
Key = tuple[str, str, int]  # method, setting and seed


def key_of(row: Row) -> Key:
    return row["method"], row["setting"], int(row["seed"])


def row_of(cell: BenchCell, path: Path, commit: str = "") -> Row:
    """What the record says of a finished run; `commit` is that of one which doesn't know it."""
    run, environment = RunFolder(path), read_json(path / "environment.json")
    guesses = 100 / class_count(path / "noise.parquet") if run.diverged() else None
    figures = asdict(figures_of(run.records(), guesses))
    found: dict[str, Any] = {"setting": cell.setting, "method": cell.method, "seed": cell.config.run.seed}
    found |= {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
    found["seconds"] = round(found["seconds"], 1)
    found |= {"diverged": int(run.diverged()), "knows": int(knows_noise(cell.config.model_dump(mode="json")))}
    found |= {"config": cell.config.hash()[:_HASH], "noise": environment["noise_hash"][:_HASH]}
    found |= {"device": environment["device"], "commit": (environment.get("commit") or commit)[:7]}
    return {name: "" if found[name] is None else str(found[name]) for name in FIELDS}


def figures_in(row: Row) -> RunFigures:
    """A line's figures. A value that can't be one is a ValueError."""
    rates = {name: float(row[name]) if row[name] or name != "chosen" else None for name in _RATES}
    seconds, whole = float(row["seconds"]), {name: int(row[name]) for name in ("steps", "traffic")}
    if not all(0 <= rate <= 100 for rate in rates.values() if rate is not None) or not isfinite(seconds):
        raise ValueError("no such accuracy or time")
    return RunFigures(**rates, **whole, seconds=seconds)  # pyright: ignore[reportArgumentType]


def read_record(path: Path, said: str = "") -> list[Row]:
    """The lines of a record; a file that is none is refused in one line."""
    said = said or str(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UserError(f"{said}: {why}") from None
    if not rows or not set(FIELDS) <= set(rows[0]):
        raise UserError(f"{said}: not the record of a ranking; give the {FILE} that fednoil bench has written")
    for place, row in enumerate(rows, 2):
        try:
            if None in row or None in row.values():
                raise ValueError("too many or too few fields")
            _ = key_of(row), figures_in(row)
        except (TypeError, ValueError):
            raise UserError(f"{said}: line {place} is damaged") from None
    return rows


def write_record(path: Path, rows: Iterable[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: (row["setting"], row["method"], int(row["seed"]))))
    write_text(path, text.getvalue())


def collected(out: Path, given: Sequence[Path]) -> dict[Key, Row]:
    """All runs of other rankings that a folder knows of: what it has taken over before, and the `given` records."""
    files = [out / OTHERS] if (out / OTHERS).is_file() else []
    read = [*(read_record(path) for path in files), *(read_record(path, f"--record {path}") for path in given)]
    return {key_of(row): row for rows in read for row in rows}


def counting(
    rows: dict[Key, Row], grid: Grid, cells: Sequence[BenchCell], data_dir: Path | None
) -> tuple[dict[Key, Row], str]:
    """Those of the runs that count in a ranking, and a sentence about the rest, or "".

    They must have the configuration and the labels that they would have here, made for this. The code of others has
    none unless the user names it, because no file decides which code runs.
    """
    found = {cell.key: cell.config for cell in cells}
    places = {key[1:]: config for key, config in found.items()}
    for method in {method for method, *_ in rows if "+" in method and ":" not in method}.difference(grid.methods):
        with suppress(UserError):  # of another version
            found |= {cell.key: cell.config for cell in cells_of(replace(grid, methods=[method]))}
    here = {key: row for key, row in rows.items() if key in found or (is_added(key[0]) and key[1:] in places)}
    same = {k: row for k, row in here.items() if k in found and row["config"][:_HASH] == found[k].hash()[:_HASH]}
    made = {
        place: make_setting(places[place], data_dir, Seed(place[1])).manifest_hash()[:_HASH]
        for place in dict.fromkeys(key[1:] for key in same)
    }
    counted = {key: row for key, row in same.items() if row["noise"][:_HASH] == made[key[1:]]}
    if rows and not counted:
        return {}, f"none of the {len(rows)} runs of the record belongs to this ranking (--scale {grid.scale})"
    left, unknown = len(here) - len(counted), ", ".join(sorted({key[0] for key in here.keys() - found.keys()}))
    why = "have other settings or labels" + f", or own code that --add doesn't name ({unknown})," * bool(unknown)
    return counted, f"{left} runs of the record {why} and don't count" if left else ""
