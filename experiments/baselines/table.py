"""The recorded runs next to the paper's values, with time: `python experiments/baselines/table.py [RUNS]`.

A run that isn't finished is told as far as it got; a row of the paper without a run stays empty.
"""

from __future__ import annotations

import sys
from pathlib import Path

from run import NOISES, RECORDS, folder_of

from fednoil.paper import METHODS, cells, noise_name, preset_of
from fednoil.records.compare import describe


def row(preset: str, name: str, paper: str, mean: float, runs: Path) -> str:
    """Method, accuracy of the last round, best round, the paper's cell, the difference to it, and time."""
    folder = folder_of(preset, runs)
    start = f"| {name} | `{preset.rsplit('/', 1)[1]}` |"
    if not (folder / "rounds.jsonl").is_file():
        return f"{start} not run | | {paper} | | | |"
    run = describe(folder)
    final, best = run["final_accuracy"], run["best_accuracy"]
    # A starred cell is the best round of a run that didn't converge.
    ours = best if paper.endswith("*") else final
    done = f"{run['rounds']}{'' if run['finished'] else ' (unfinished)'}"
    times = f"{run['wall_s']:.0f} | {1000 * run['wall_s'] / max(1, run['train_batches']):.2f}"
    return f"{start} {done} | {final:.1f} ({best:.1f}) | {paper} | {ours - mean:+.1f} | {times} |"


def main() -> None:
    runs = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    order = list(METHODS)
    column = [c for c in cells() if c.table == "1" and c.dataset == "fashion-mnist" and c.setting == "iid"]
    for noise in NOISES:
        print(f"\n### Fashion-MNIST, IID, {noise}\n")
        print("| paper's name | preset | rounds | final (best) | paper | difference | s | ms a batch |")
        print("|---|---|---|---|---|---|---|---|")
        inside = [c for c in column if noise_name(c.noise, c.mode) == noise]
        for cell in sorted(inside, key=lambda c: order.index(c.method)):
            print(row(preset_of(cell), cell.method, str(cell), cell.mean, runs))


if __name__ == "__main__":
    main()
