"""The table of README.md from the recorded runs beside it: `python experiments/demo/table.py`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RUNS = Path(__file__).parent / "runs"


def final(noise: str, method: str) -> str:
    """Mean and standard deviation of the final accuracy over the seeds."""
    paths = sorted(RUNS.glob(f"{noise}--{method}--[0-9]"))
    values = [json.loads((path / "summary.json").read_text())["final_accuracy"] for path in paths]
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} ({len(values)})"


def main() -> None:
    print("| labels | FedAvg | FedNoiL, frac set by hand | FedNoiL, frac = auto |")
    print("|---|---|---|---|")
    for noise in ("high", "low", "clean"):
        print(f"| {noise} | " + " | ".join(final(noise, m) for m in ("fedavg", "fednoil", "fednoil-auto")) + " |")


if __name__ == "__main__":
    main()
