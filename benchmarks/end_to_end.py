"""How long a whole command takes: `fednoil run PRESET` in its own process, from start to end.

    python benchmarks/end_to_end.py paper/fashion-mnist/iid/symmetric-high/fednoil-logarithm [--repeat 2] [--json FILE]
                                    [--out DIR]

Absolute times, for a GPU that nothing else uses. The first run compiles kernels if the cache has none; its rounds, the
first one and the mean of the last ten are taken from its record. `--set` goes to the runs; `--out` keeps them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from fednoil.records.folder import RunFolder
from written import write


def timed(preset: str, sets: list[str], folder: Path) -> dict[str, Any]:
    """One run; what it took, in seconds."""
    before = _compiled()
    command = [sys.executable, "-m", "fednoil", "run", preset, "--out", str(folder), "--quiet"]
    begin = time.perf_counter()
    done = subprocess.run([*command, *(word for one in sets for word in ("--set", one))], check=False)
    if done.returncode:
        sys.exit(done.returncode)  # the command has printed the reason
    whole = time.perf_counter() - begin
    records = RunFolder(folder).records()
    walls = [record.wall_s for record in records]
    return {
        "command": " ".join(["fednoil run", preset, *(f"--set {one}" for one in sets)]),
        "rounds": len(walls),
        "client_steps": records[-1].train_batches,
        "rounds_s": round(sum(walls), 2),
        "first_round_s": walls[0],
        "last_ten_rounds_ms": round(1000 * fmean(walls[-10:]), 1),
        "whole_command_s": round(whole, 2),
        "test_accuracy": records[-1].test_accuracy,
        "kernels": "compiled first" if _compiled() > before else "at hand",
    }


def _compiled() -> int:
    """The entries of Triton's cache."""
    cache = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton/cache"))
    return len(list(cache.iterdir())) if cache.is_dir() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+", metavar="PRESET")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help="where the runs are kept, numbered; else they are deleted")
    args = parser.parse_args()
    rows = []
    print("| command | rounds | the rounds, s | the first, s | of the last ten, ms | the whole command, s | accuracy |")
    print("|---|---|---|---|---|---|---|")
    for preset in args.presets:
        for _ in range(args.repeat):
            with tempfile.TemporaryDirectory() as folder:
                row = timed(preset, args.sets, (args.out or Path(folder)) / str(len(rows)))
            rows.append(row)
            names = ("rounds", "rounds_s", "first_round_s", "last_ten_rounds_ms", "whole_command_s", "test_accuracy")
            print(f"| `{row['command']}` | {' | '.join(str(row[name]) for name in names)} |", flush=True)
    if args.json:
        write(args.json, {"runs": rows})


if __name__ == "__main__":
    main()
