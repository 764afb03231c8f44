"""The record of the ranking, one line a run, and the tables of its page.

    python experiments/ranking/table.py [FOLDER]

FOLDER is one of `fednoil bench --scale paper`; its finished runs are added to `results.csv`, in place of earlier ones
of the same setting, method and seed.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fednoil.bench.pages import answer, note, tables, text_of
from fednoil.bench.plan import Grid, cells_of, finished
from fednoil.bench.ranking import RunFigures, figures_of, knows_noise, ranking
from fednoil.bench.settings import settings_of
from fednoil.pages.marked import fill
from fednoil.records.folder import RunFolder

HERE = Path(__file__).parent
PAGE, RECORD = HERE / "README.md", HERE / "results.csv"
KEY = ("setting", "method", "seed")
Row = dict[str, str]


def rows_of(folder: Path) -> list[Row]:
    """What the record says of the finished runs of a ranking."""
    made, found = finished(folder), []
    for cell in cells_of(Grid(scale="paper")):
        if (path := made.get(cell.config.hash())) is None:
            continue
        summary, environment = (
            json.loads((path / name).read_text(encoding="utf-8")) for name in ("summary.json", "environment.json")
        )
        row = {"setting": cell.setting, "method": cell.method, "seed": cell.config.run.seed}
        row |= {
            n: round(v, 4) if isinstance(v, float) else v
            for n, v in asdict(figures_of(RunFolder(path).records())).items()
        }
        row |= {"knows": int(knows_noise(cell.config.model_dump(mode="json"))), "noise": summary["noise_hash"]}
        found.append({name: str(value) for name, value in {**row, "version": environment.get("version", "")}.items()})
    return found


def parts(rows: Sequence[Row]) -> dict[str, str]:
    """The tables of the page."""
    numbers = ("last", "last_ten", "best", "chosen", "seconds")
    runs, knows = {}, {}
    for row in rows:
        knows[row["method"]] = row["knows"] == "1"
        values = {name: float(row[name]) for name in numbers}
        ended = RunFigures(**values, steps=int(row["steps"]), traffic=int(row["traffic"]))
        runs[row["method"], row["setting"], int(row["seed"])] = ended
    settings = [name for name in settings_of("paper") if any(s == name for _, s, _ in runs)]
    ranked = ranking(runs, list(knows), settings, knows)
    first, *by_part, each = tables(ranked, settings)
    return {
        "ranking": "\n\n".join(
            [
                *filter(None, [answer(ranked, settings)]),
                note(len({seed for *_, seed in runs}), len(settings)),
                *map(text_of, [first, *by_part]),
            ]
        ),
        "settings": text_of(each),
    }


def read() -> list[Row]:
    if not RECORD.is_file():
        return []
    with RECORD.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main(folders: Sequence[str]) -> None:
    rows = {tuple(row[k] for k in KEY): row for row in read()}
    for folder in folders:
        rows |= {tuple(row[k] for k in KEY): row for row in rows_of(Path(folder))}
    if not rows:
        return print("there are no runs yet")
    ordered = [rows[key] for key in sorted(rows)]
    with RECORD.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ordered[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(ordered)
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), parts(ordered)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
