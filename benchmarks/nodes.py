"""What rounds over real nodes on this machine cost: seconds of the clock and of the CPU, and memory.

`fednoil federation up` starts a SuperLink and the nodes, TLS and keys included; a tiny model makes the rounds a measure
of everything but training. CPU seconds are those of all processes, as Linux counts them; on a machine that does other
things they say more than the clock. Memory is the sum of proportional set sizes: a shared page counts once.

    python benchmarks/nodes.py [--nodes 3 30] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from fednoil.flower.loopback import Loopback
from written import write

TICKS = os.sysconf("SC_CLK_TCK")


def processes(home: str) -> list[Path]:
    """The processes of a federation, by the Flower home in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={home}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(place)
        except OSError:
            continue
    return found


class Watch:
    """CPU seconds and memory of a federation's processes, looked at every second."""

    def __init__(self, home: str) -> None:
        self.home, self.most, self.spent = home, 0.0, dict[str, float]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.look()

    def look(self) -> float:
        """All CPU seconds so far."""
        memory = 0.0
        for place in processes(self.home):
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                lines = (place / "smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            self.spent[f"{place.name} {fields[19]}"] = (int(fields[11]) + int(fields[12])) / TICKS
            memory += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**20
        self.most = max(self.most, memory)
        return sum(self.spent.values())

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self.look()


def measured(count: int, rounds: int, folder: Path) -> dict[str, Any]:
    federation = Loopback(folder / "federation")
    state = federation.folder / "nodes"
    began = time.monotonic()
    try:
        federation.up({f"client-{k}": f'partition-id={k} state="{state}"' for k in range(count)})
        up = time.monotonic() - began
        watch = Watch(str(federation.folder / "home"))
        before = watch.look()
        changes = {
            "partition.clients": count,
            "sampling.name": "score_mean",
            "noise.ratios": "[0.2,0.4,0.7]",
            "train.rounds": rounds,
            "schedule.name": "constant",
            "schedule.epochs": 1,
            "model.width": 4,
            "federation.audit": "false",
        }
        sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "fednoil", "federation", "run", "demo", *sets, "--out", str(folder / "run")]
        subprocess.run([*command, "--federation", str(federation.folder)], check=True, capture_output=True)
        spent = watch.stop() - before
    finally:
        federation.down()
    records = [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]
    return {
        "nodes": count,
        "up_s": round(up, 1),
        "round_s": round(statistics.median(r["wall_s"] for r in records), 2),
        "cpu_s_a_round": round(spent / rounds, 2),
        "memory_gib": round(watch.most, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 30])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for count in options.nodes:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measured(count, options.rounds, Path(folder)))
        print(json.dumps(found[-1]), flush=True)
    if options.json:
        write(options.json, {"rounds": options.rounds, "cores": os.cpu_count(), "rows": found})


if __name__ == "__main__":
    main()
