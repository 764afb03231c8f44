"""Where records come from that were made before runs noted their version: the commit in which each first appears.

    python tools/provenance.py

Fills empty versions in `experiments/*/results.csv`, in the record of the paper's tables and in `benchmarks/results`, as
`0.1.0 before COMMIT`: the version at that commit, which holds the result, so that it or an earlier commit made it.
Needs the whole history; what is filled stays as it is.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "experiments/paper"
# Results of a run that no later change of a file's columns or names has touched.
SAME = (("seed", "final", "best", "batches"), ("seed", "final", "best", "seconds"), ("seed", "accuracy", "auroc"))
Key = tuple[str, ...]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def keys_of(row: dict[str, str]) -> set[Key]:
    """What a row can be recognised by in an older file."""
    return {(names[-1], *(_rounded(row[n]) for n in names)) for names in SAME if all(row.get(n) for n in names)}


def _rounded(value: str) -> str:
    try:
        return f"{float(value):.2f}"
    except ValueError:
        return value


@cache
def first_seen() -> dict[Key, str]:
    """The commit in which each result first appears, of all tables there have been."""
    found: dict[Key, str] = {}
    seen: set[str] = set()
    for commit in git("log", "--reverse", "--format=%h", "--", "*.csv").split():
        for line in git("ls-tree", "-r", commit, "--", "experiments", "docs").splitlines():
            about, path = line.split("\t")
            blob = about.split()[2]
            if not path.endswith(".csv") or blob in seen:
                continue
            seen.add(blob)
            for row in csv.DictReader(io.StringIO(git("cat-file", "-p", blob))):
                for key in keys_of(row):
                    found.setdefault(key, commit)
    return found


@cache
def version_at(commit: str) -> str:
    """`VERSION before COMMIT`."""
    return f"{tomllib.loads(git('show', f'{commit}:pyproject.toml'))['project']['version']} before {commit}"


def source_of(row: dict[str, str]) -> str:
    known = [first_seen()[key] for key in keys_of(row) if key in first_seen()]
    return version_at(known[0]) if known else ""


def fill_table(path: Path) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or "version" not in rows[0] or all(row["version"] for row in rows):
        return
    for row in rows:
        row["version"] = row["version"] or source_of(row)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(path.relative_to(ROOT), sum(not row["version"] for row in rows), "unknown")


def fill_paper() -> None:
    """The record that its table is made from."""
    table = pq.read_table(PAPER / "results.parquet")
    rows = table.to_pylist()
    for row in rows:
        environment, summary = json.loads(row["environment"]), json.loads(row["summary"])
        if environment.get("commit") or environment.get("recorded"):
            continue
        same = {
            "seed": str(json.loads(row["config"])["run"]["seed"]),
            "final": str(summary["final_accuracy"]),
            "best": str(summary["best_accuracy"]),
            "batches": str(summary["train_batches"]),
        }
        environment["recorded"] = source_of(same)
        row["environment"] = json.dumps(environment, sort_keys=True, separators=(",", ":"))
    pq.write_table(pa.Table.from_pylist(rows, table.schema), PAPER / "results.parquet", compression="zstd")


def fill_benchmarks() -> None:
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if not found.get("version") and not found.get("commit"):
            commit = git("log", "-1", "--format=%h", "--", str(path)).strip()
            found = {
                "version": version_at(commit),
                **{k: v for k, v in found.items() if k not in ("version", "commit")},
            }
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    fill_paper()
    for record in sorted((ROOT / "experiments").glob("*/results.csv")):
        if record.parent != PAPER:
            fill_table(record)
    fill_benchmarks()
