"""Many simulated clients, of which few train: time and memory of a round against a run with 100 clients.

    python benchmarks/many_clients.py [--device cpu] [--rounds 12] [--json benchmarks/results/many-clients-cpu.json]

20 noise images a client, a CNN of width 8, one epoch. Ten clients train in a round, of 100, 1,000 and 10,000; and 1 %
of 10,000. Without scores a round should not depend on those who are silent: fails if ten of 10,000 take more than 1.2
times as long as ten of 100, or if their records or checkpoints are larger. With scores everybody is asked, which is
linear in clients and measured. Each case in its own process; the shortest of its rounds counts, on a CPU
in its own seconds, and memory is what its rounds add to the data, at most.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fednoil import rounds
from fednoil.config import load_config
from fednoil.experiment import make_executor, make_experiment
from fednoil.runner import Silent, run
from floor import check_device, device_name
from written import write

GOAL = 1.2
SAMPLES = 20
CASES = ((100, 10, "uniform"), (1_000, 10, "uniform"), (10_000, 10, "uniform"), (10_000, 100, "uniform"),
         (100, 10, "score"), (1_000, 10, "score"), (10_000, 10, "score"))  # fmt: skip


def values_of(clients: int, selected: int, sampling: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The case as a configuration, with its data in `folder`."""
    rng, count = np.random.default_rng(0), clients * SAMPLES
    images, labels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count) % 10
    np.savez(folder / "noise.npz", x_train=images, y_train=labels, x_test=images[:500], y_test=labels[:500])
    return {
        "data": {"name": f"npz:{folder / 'noise.npz'}"},
        "partition": {"clients": clients},
        "noise": {"kind": "symmetric", "ratios": [0.4]},
        "model": {"name": "cnn", "width": 8},
        "sampling": {"name": sampling, "fraction": selected / clients},
        "schedule": {"name": "constant", "epochs": 1},
        "train": {"rounds": args.rounds, "batch_size": 10},
        "run": {"device": args.device, "checkpoint_every": args.rounds},
    }


def measured(clients: int, selected: int, sampling: str, args: argparse.Namespace) -> dict[str, Any]:
    """One case, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(values_of(clients, selected, sampling, args, Path(folder)))
        began, device = time.perf_counter(), torch.device(args.device)
        experiment = make_experiment(config)
        executor = make_executor(experiment, device)
        state = rounds.placed(rounds.start(experiment), device)
        start, seconds = time.perf_counter() - began, []
        clock = time.process_time if device.type == "cpu" else time.perf_counter  # others may use the CPU, too
        gc.collect()
        before = memory(device)
        for _ in range(args.rounds):
            begin = clock()
            state, _ = rounds.play(experiment, executor, state)
            seconds.append(clock() - begin)
        found = {"start_s": round(start, 3), "round_s": min(seconds), "memory_mib": round(memory(device) - before, 1)}
        run(config, Path(folder) / "run", Silent())
        checkpoint = sum(path.stat().st_size for path in (Path(folder) / "run/checkpoint").rglob("*"))
        record = (Path(folder) / "run/rounds.jsonl").stat().st_size / args.rounds
    return {
        "clients": clients,
        "selected": selected,
        "sampling": sampling,
        **found,
        "checkpoint_kib": round(checkpoint / 1024, 1),
        "record_bytes": round(record),
    }


def memory(device: torch.device) -> float:
    """The most that was in use so far, in MiB: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 1024)


def in_process(place: int, args: argparse.Namespace) -> dict[str, Any]:
    words = ["--case", str(place), "--device", args.device, "--rounds", str(args.rounds)]
    done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    check_device(args.device)
    if args.case is not None:
        print(json.dumps(measured(*CASES[args.case], args)))
        return 0
    rows = []
    print("| clients | a round | sampling | start, s | a round, ms | against 100 | MiB | checkpoint, KiB | record, B |")
    print("|---|---|---|---|---|---|---|---|---|")
    for place in range(len(CASES)):
        rows.append(row := in_process(place, args))
        first = next(other for other in rows if other["sampling"] == row["sampling"])
        row["ratio"] = round(row["round_s"] / first["round_s"], 2)
        cells = [row["clients"], row["selected"], row["sampling"], row["start_s"], f"{1000 * row['round_s']:.1f}"]
        cells += [row["ratio"], row["memory_mib"], row["checkpoint_kib"], row["record_bytes"]]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    if args.json:
        write(args.json, {"device": device_name(args.device), "torch": torch.__version__, "rows": rows})
    few, many = rows[0], rows[2]
    larger = [name for name in ("checkpoint_kib", "record_bytes") if many[name] > GOAL * few[name]]
    print(
        f"ten of 10,000 against ten of 100: {many['ratio']} of the time, the goal is {GOAL}; "
        f"larger: {', '.join(larger) or 'nothing'}"
    )
    return 0 if many["ratio"] <= GOAL and not larger else 1


if __name__ == "__main__":
    sys.exit(main())
