"""Our CPU executor, a plain PyTorch loop, pfl and Flower's simulation on the same work: seconds a round, and ratios.

The peers are installed beside this package in a separate environment, `benchmarks/.peers`, so that PyTorch is the same
for all. `benchmarks/peer_work.py` defines a round, `benchmarks/peer_rounds.py` runs there. Rounds of the loop, of ours
and of pfl alternate in one process; Flower, which has its own processes, comes in between. All of it several times.

    python benchmarks/peers.py [--repeats 3] [--rounds 20] [--threads 1] [--json benchmarks/results/peers.json]

Ratios are by the processes' own seconds, which other programs on the machine change little, and by the wall clock.
Flower uses all cores, with one thread on each; what its clients and server compute is added up, Ray's own is not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from written import write

HERE = Path(__file__).resolve().parent
PEERS = ("pfl[pytorch]==0.6.0", "flwr[simulation]==1.41.0")
LIMIT = 1.05


def environment() -> Path:
    """The Python that has the peers; it is installed once and again when the versions change."""
    place, wanted = HERE / ".peers", "\n".join(PEERS)
    python, stamp = place / "bin" / "python", place / "installed.txt"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print("installing", *PEERS, "into", place, flush=True)
        venv.create(place, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "-c", HERE.parent / "constraints.txt"]
        subprocess.run([*install, "-e", HERE.parent, *PEERS], check=True)
        stamp.write_text(wanted)
    return python


def run(python: Path, *options: str) -> dict[str, Any]:
    """What one process of `peer_rounds.py` found, by engine."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = [str(python), str(HERE / "peer_rounds.py"), "--json", str(file), *options]
        env = {**os.environ, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
        found = json.loads(file.read_text())["engines"] if file.is_file() else {}
        if failed := [engine["failed"] for engine in found.values() if "failed" in engine] or done.returncode:
            sys.exit(f"{' '.join(command)} failed: {failed}\n{done.stderr}")
        return found


def gather(python: Path, repeats: int, rounds: int, threads: int) -> dict[str, dict[str, Any]]:
    """All timed rounds of all processes, by engine."""
    found: dict[str, dict[str, Any]] = {}
    for repeat in range(repeats):
        for options in (("--threads", str(threads)), ("--engines", "flower")):
            for name, numbers in run(python, "--rounds", str(rounds), *options).items():
                engine = found.setdefault(name, {"seconds": [], "cpu": [], "accuracy": []})
                engine["seconds"] += numbers["seconds"]
                engine["cpu"] += numbers["cpu"]
                engine["accuracy"].append(numbers["accuracies"][rounds])  # ours has played one round more
        print(f"{repeat + 1} of {repeats} repetitions done", flush=True)
    return found


def table(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """For each engine the best and median seconds of both clocks, and their ratios to the loop's."""
    rows = []
    for name, engine in found.items():
        row: dict[str, Any] = {"engine": name, "accuracy": statistics.mean(engine["accuracy"])}
        for clock, seconds in (("cpu", "cpu"), ("wall", "seconds")):
            for kind, of in (("best", min), ("median", statistics.median)):
                row[f"{clock}_{kind}_s"] = of(engine[seconds])
                row[f"{clock}_{kind}_ratio"] = of(engine[seconds]) / of(found["plain"][seconds])
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    given = parser.parse_args()
    found = gather(environment(), given.repeats, given.rounds, given.threads)
    rows = table(found)
    for row in rows:
        seconds = ", ".join(
            f"{clock} {kind} {row[f'{clock}_{kind}_s']:.3f} s ({row[f'{clock}_{kind}_ratio']:.3f})"
            for clock in ("cpu", "wall")
            for kind in ("best", "median")
        )
        print(f"{row['engine']:8} {seconds}, accuracy {row['accuracy']:.1f} %")
    if given.json:
        counts = {"threads": given.threads, "cores": os.cpu_count(), "repeats": given.repeats, "rounds": given.rounds}
        write(given.json, {**counts, "peers": PEERS, "rows": rows})
    clock = "cpu" if given.threads == 1 else "wall"
    ratio = {row["engine"]: row[f"{clock}_median_ratio"] for row in rows}
    if ratio["fednoil"] > LIMIT or ratio["fednoil"] > min(ratio["pfl"], ratio["flower"]):
        sys.exit(f"slower than {LIMIT} times the plain loop, or than a peer")


if __name__ == "__main__":
    main()
