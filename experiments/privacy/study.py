"""What noise costs: `python experiments/privacy/study.py`, or `… scores`, `… updates` for one part.

On the embedded data: FedNoiL for each ε of the scores and seed, and FedAvg for each noise on the updates and seed.
Writes results.csv beside this file, and the page's table. `--table` only writes the table.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from fednoil import __version__
from fednoil.config import load_config, merge, preset
from fednoil.history import RoundRecord
from fednoil.pages.marked import fill
from fednoil.records.environment import commit
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent, run

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
EPSILONS = ["none", "10", "3", "1", "0.3", "0.1", "uniform"]
NOISES = ["no clip", "0", "0.1", "0.3", "1", "3"]
WORDS = {"none": "no noise", "uniform": "clients drawn uniformly", "no clip": "no noise, no clip"}
CLIP = 0.25  # near the median length of updates without a clip
SEEDS = (0, 1, 2)
MEASURES = ("accuracy", "rank_correlation", "selected_noise")
COLUMNS = ("part", "level", "seed", "epsilon", *MEASURES, "version")  # level: ε of the scores, or noise on updates
VERSION = " ".join(filter(None, (__version__, commit())))

Row = dict[str, object]
Sections = dict[str, dict[str, object]]


def played(name: str, changes: Sections) -> tuple[dict[str, Any], list[RoundRecord]]:
    """One run: its summary and its rounds."""
    with tempfile.TemporaryDirectory() as folder:
        summary = run(load_config(merge(preset(name), changes)), Path(folder) / "run", Silent())
        return summary, RunFolder(Path(folder) / "run").records()


def noisy_scores(epsilon: str, seed: int) -> Row:
    """One run of ten rounds; the means of ranking and selected noise are over its rounds."""
    changes: Sections = {
        "privacy": {} if epsilon in ("none", "uniform") else {"scores": float(epsilon)},
        "sampling": {"name": "uniform"} if epsilon == "uniform" else {},
        "model": {"width": 6},
        "schedule": {"name": "constant", "epochs": 5},
        "train": {"rounds": 10},
        "run": {"seed": seed, "device": "cpu"},
    }
    summary, records = played("demo/fednoil", changes)
    ranks = [r.rank_correlation for r in records if r.rank_correlation is not None]
    noises = [r.selected_noise for r in records if r.selected_noise is not None]
    return {
        "accuracy": round(summary["final_accuracy"], 2),
        "rank_correlation": round(-statistics.mean(ranks), 4) if ranks else "",
        "selected_noise": round(statistics.mean(noises), 2),
    }


def noisy_updates(noise: str, seed: int) -> Row:
    """One run of twenty rounds."""
    privacy: dict[str, object] = {} if noise == "no clip" else {"clip": CLIP}
    if noise not in ("no clip", "0"):
        privacy["noise"] = float(noise)
    changes: Sections = {
        "partition": {"clients": 200},
        "noise": {"ratios": [0.1, 0.4]},
        "sampling": {"fraction": 0.5},
        "privacy": privacy,
        "model": {"width": 6},
        "schedule": {"name": "constant", "epochs": 2, "extra_rounds": 0},
        "train": {"rounds": 20},
        "run": {"seed": seed, "device": "cpu"},
    }
    summary, _ = played("demo/fedavg", changes)
    epsilon = f"{summary['epsilon']:.4g}" if "epsilon" in summary else ""
    return {"accuracy": round(summary["final_accuracy"], 2), "epsilon": epsilon}


PARTS: dict[str, tuple[Iterable[str], Callable[[str, int], Row]]] = {
    "scores": (EPSILONS, noisy_scores),
    "updates": (NOISES, noisy_updates),
}


def rows(part: str) -> list[dict[str, str]]:
    """The recorded runs of a part."""
    with (HERE / "results.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["part"] == part]


def table() -> str:
    """A line for each level of noise: mean ± standard deviation over the seeds, and ε, which no seed changes."""
    head = ["noise", "ε", "final accuracy", "rank correlation with cleanness", "noise of the selected, %"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for part in PARTS:
        for level in dict.fromkeys(row["level"] for row in rows(part)):
            mine, a_number = [row for row in rows(part) if row["level"] == level], level[0].isdigit()
            epsilon = mine[0]["epsilon"] or (level if part == "scores" and a_number else "–")
            name = f"on {part}" if not a_number or part == "scores" else f"on {part}, z = {level}"
            digits = zip(MEASURES, (1, 2, 1), strict=True)
            cells = [spread([float(row[key]) for row in mine if row[key]], d) for key, d in digits]
            lines.append(f"| {name if a_number else f'{part}: {WORDS[level]}'} | {epsilon} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def page() -> str:
    """The page with the table of the results."""
    return fill(PAGE.read_text(encoding="utf-8"), {"results": table()})


def record(parts: list[str]) -> None:
    """Play the runs of these parts; what is recorded of the others stays."""
    kept = [row for part in PARTS if part not in parts for row in rows(part)]
    with (HERE / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(kept)
        for part in parts:
            levels, measure = PARTS[part]
            for level in levels:
                for seed in SEEDS:
                    name: Row = {"part": part, "level": level, "seed": seed, "version": VERSION}
                    writer.writerow(name | measure(level, seed))
                    file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        torch.set_num_threads(1)
        record([part for part in PARTS if given.part in (None, part)])
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
