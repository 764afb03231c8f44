"""Several seeds of a preset on one GPU: together in one process against one process each, side by side.

    python benchmarks/many_runs.py [PRESET] [--seeds 0..4] [--repeat 1] [--goal 35] [--set KEY=VALUE] [--together]
                                   [--json benchmarks/results/many-runs-h200.json]

Whole commands, `fednoil run PRESET --seeds 0..4` and the same with `--jobs 5`, after a short one of each that compiles
kernels and decodes images; with `--together` the first alone. Fails if it takes longer than the goal, in seconds.
Beside it: how long the rounds took, how much of that was training, and by how much the accuracies of a seed differ,
which rounding alone decides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fednoil.batch.cell import parse_seeds
from fednoil.records.folder import RunFolder
from floor import check_device, device_name
from written import write

PRESET = "paper/fashion-mnist/iid/symmetric-high/fednoil-logarithm"


def inside(stages: Path, words: list[str]) -> None:
    """`fednoil` with these words in this process; writes how long it trained, and how long all runs took."""
    from fednoil.batch import together
    from fednoil.cli.main import main as fednoil
    from fednoil.executors.joint import Joint

    spent = dict.fromkeys(("training_s", "all_runs_s"), 0.0)

    def timed(owner: Any, name: str, stage: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            begin = time.perf_counter()
            found = real(*arguments)
            spent[stage] += time.perf_counter() - begin
            return found

        setattr(owner, name, call)

    timed(Joint, "train", "training_s")
    timed(together, "run_together", "all_runs_s")
    sys.argv = ["fednoil", *words]
    try:
        fednoil()
    finally:
        stages.write_text(json.dumps(spent))


def command(preset: str, seeds: str, out: Path, sets: list[str]) -> list[str]:
    words = ["run", preset, "--seeds", seeds, "--out", str(out), "--quiet"]
    return [*words, *(word for one in sets for word in ("--set", one))]


def seconds(words: list[str]) -> float:
    """How long a command takes; it has printed why if it fails."""
    begin = time.perf_counter()
    done = subprocess.run(words, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return time.perf_counter() - begin


def measured(args: argparse.Namespace, folder: Path, sets: list[str]) -> dict[str, Any]:
    """One command of each kind."""
    count, stages = len(parse_seeds(args.seeds)), folder / "stages.json"
    folder.mkdir(parents=True)
    words = command(args.preset, args.seeds, folder / "together", sets)
    one = seconds([sys.executable, __file__, "--inside", str(stages), *words])
    found = {"together": accuracies(folder / "together")}
    walls = [record.wall_s for record in RunFolder(next((folder / "together").glob("seed-*"))).records()]
    row: dict[str, Any] = {"together_s": round(one, 2)}
    if not args.together:
        words = [sys.executable, "-m", "fednoil", *command(args.preset, args.seeds, folder / "apart", sets)]
        each = seconds([*words, "--jobs", str(count)])
        found["apart"] = accuracies(folder / "apart")
        pairs = zip(found["together"], found["apart"], strict=True)
        row |= {"processes_s": round(each, 2), "ratio": round(one / each, 3)}
        row |= {"largest_difference": round(max(abs(a - b) for a, b in pairs), 2)}
    row |= {
        "rounds": len(walls),
        "rounds_s": round(sum(walls), 2),
        "last_ten_rounds_ms": round(1000 * statistics.fmean(walls[-10:])),
    }
    row |= {name: round(value, 2) for name, value in json.loads(stages.read_text()).items()}
    row["mean_accuracy"] = {kind: round(statistics.fmean(of), 2) for kind, of in found.items()}
    return row


def accuracies(folder: Path) -> list[float]:
    return [RunFolder(path).summary()["final_accuracy"] for path in sorted(folder.glob("seed-*"))]


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", nargs="?", default=PRESET)
    parser.add_argument("--seeds", default="0..4")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--goal", type=float, default=35.0, help="seconds that all seeds may take together")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE")
    parser.add_argument("--together", action="store_true", help="leave the processes out")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    check_device("cuda")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        measured(args, Path(folder) / "warm", [*args.sets, "train.rounds=2"])
        for number in range(args.repeat):
            rows.append(measured(args, Path(folder) / str(number), args.sets))
            print("; ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    best = min(rows, key=lambda row: row["together_s"])
    if args.json:
        keys = {"device": device_name("cuda"), "torch": torch.__version__, "preset": args.preset, "seeds": args.seeds}
        write(args.json, {**keys, "sets": args.sets, "goal_s": args.goal, "runs": rows})
    kept = best["together_s"] <= args.goal
    print(
        f"{args.seeds} together: {best['together_s']} s, {best.get('ratio', '?')} of the time of one process each; "
        f"the goal of {args.goal:g} s is {'reached' if kept else 'missed'}"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
