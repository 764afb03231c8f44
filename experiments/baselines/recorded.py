"""What is kept of the runs: `records/rounds.csv`, a line for each round, and `records/runs.json`, what each run was.

    python experiments/baselines/recorded.py RUNS...    # take run folders in, or folders of them, or anew

A run is known by its configuration, not by its folder's name, so those of `fednoil reproduce` do as well as those of
`run.py`. Of a round only what the table, the curves and the text of README.md need is kept, and of a run that can't go
on why, which its environment.json tells in distinction to one that was stopped.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fednoil.config import load_config, read_toml
from fednoil.errors import UserError
from fednoil.records.folder import RunFolder
from fednoil.report.places import place_of
from fednoil.report.runs import find

RECORDS = Path(__file__).resolve().parent / "records"
# Column and digits after the point; a column that a method doesn't have stays empty.
COLUMNS = {
    "test_accuracy": 2,
    "test_loss": 4,
    "train_loss": 4,
    "train_batches": 0,
    "noise_ratio": 2,
    "labelled_share": 2,
    "label_precision": 2,
    "label_recall": 2,
    "global_accuracy": 2,
    "clusters": 0,
    "longest_update": 2,
    "wall_s": 3,
}
CLASSES = 10
HASHES = ("config_hash", "data_hash", "noise_hash")
Rounds = list[dict[str, float]]


def kept(row: dict[str, Any]) -> dict[str, float]:
    """What is kept of a round's record: of CFL's clusters their number and the longest update."""
    if "clusters" in row:
        row = row | {"clusters": len(row["clusters"]), "longest_update": max(norm[1] for norm in row["update_norms"])}
    return {key: row[key] for key in ("round", *COLUMNS) if key in row}


def clusters(folder: Path, members: list[list[int]]) -> list[list[dict[str, float]]]:
    """Clusters of clients, each with its share of wrong labels in percent and by how many classes most are off."""
    table = pq.read_table(folder / "noise.parquet", columns=["client", "given", "true"])
    client, given, true = (np.asarray(table[name]) for name in table.column_names)
    off = (given.astype(int) - true) % CLASSES
    counts = {k: np.bincount(off[client == k], minlength=CLASSES) for group in members for k in group}
    wrong = {k: round(100 * (1 - count[0] / count.sum()), 1) for k, count in counts.items()}
    return [[{"client": k, "wrong": wrong[k], "off": int(counts[k][1:].argmax()) + 1} for k in g] for g in members]


def written(number: float | None, digits: int) -> str:
    """A number without needless digits."""
    if number is None:
        return ""
    return f"{number:.{digits}f}" if abs(number) < 1e6 else f"{number:.{digits}e}"


def load_rounds(records: Path = RECORDS) -> dict[str, Rounds]:
    """The rounds of each run by its name, `setting--noise--method`; absent columns are left out."""
    path, found = records / "rounds.csv", {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found.setdefault(row.pop("run"), []).append({k: float(v) for k, v in row.items() if v})
    return found


def load_runs(records: Path = RECORDS) -> dict[str, dict[str, Any]]:
    """What each run was, by its name: planned rounds, whether it ended, why it can't (`diverged`), hashes, versions."""
    path = records / "runs.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def name_of(folder: Path) -> tuple[str, int]:
    """The name of a run, `setting--noise--method`, and its planned rounds; refuses what this page doesn't show."""
    config = load_config(read_toml(folder / "config.toml"))
    place = place_of(config.model_dump(mode="json"))
    changed = [c for c in (*place.setting_changes, *place.method_changes) if not c.startswith("train.rounds=")]
    if (place.family, place.dataset) != ("paper", "fashion-mnist") or changed:
        raise UserError(f"{folder} is {', '.join([place.title, *changed])}: none of Table 1's runs on Fashion-MNIST")
    if config.run.seed:
        raise UserError(f"{folder} has run.seed = {config.run.seed}; this page is of seed 0")
    return f"{place.setting}--{place.noise}--{place.method}", config.train.rounds


def add(folder: Path, records: Path = RECORDS) -> None:
    """Take a run folder in, in place of what was there of it."""
    name, planned = name_of(folder)
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    rounds, runs = load_rounds(records), load_runs(records)
    all_rounds = RunFolder(folder).records()
    rounds[name] = [kept(row) for row in all_rounds]
    if not rounds[name]:
        raise UserError(f"{folder} has no finished round yet")
    finished = (folder / "summary.json").is_file()
    told = environment.get("diverged", {})
    diverged = not finished and told.get("after_round") == len(rounds[name])
    runs[name] = {
        "planned": planned,
        "finished": finished,
        **({"diverged": told["reason"]} if diverged else {}),
        **{key: environment[key] for key in HASHES},
        "device": environment["device"],
        "torch": environment["packages"]["torch"],
    }
    split = all_rounds[-1].get("clusters", [])
    if "--pair" in name and len(split) > 1:
        runs[name]["clusters"] = clusters(folder, split)
    write(rounds, runs, records)


def write(rounds: dict[str, Rounds], runs: dict[str, dict[str, Any]], records: Path) -> None:
    """Both files, runs in the order of their names."""
    records.mkdir(parents=True, exist_ok=True)
    with (records / "rounds.csv").open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["run", "round", *COLUMNS])
        for key in sorted(rounds):
            for row in rounds[key]:
                cells = [written(row.get(column), digits) for column, digits in COLUMNS.items()]
                lines.writerow([key, int(row["round"]), *cells])
    text = json.dumps(runs, indent=2, sort_keys=True)
    (records / "runs.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or folders of them")
    args = parser.parse_args()
    try:
        folders = list(find(args.runs))
    except UserError as error:
        parser.error(str(error))
    for folder in folders:
        try:
            add(folder)
        except UserError as error:
            print(f"left out: {error}")


if __name__ == "__main__":
    main()
