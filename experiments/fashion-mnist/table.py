"""The tables of README.md from the recorded runs beside it: `python experiments/fashion-mnist/table.py`."""

from __future__ import annotations

import json
from pathlib import Path

RUNS = Path(__file__).parent / "runs"


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (RUNS / name / "rounds.jsonl").read_text().splitlines()]


def cells(name: str, last: int) -> list[str]:
    """Accuracy at round `last`, best so far, and the selection's quality as the mean of the last ten rounds."""
    log = rows(name)[:last]
    out = [f"{log[-1]['test_accuracy']:.1f}", f"{max(r['test_accuracy'] for r in log):.1f}"]
    for key in ("noise_ratio", "label_precision", "label_recall", "pseudo_accuracy", "labelled_share"):
        known = [r[key] for r in log[-10:] if key in r]
        out.append(f"{sum(known) / len(known):.1f}" if known else "–")
    seconds = sum(r["wall_s"] for r in log)
    return [*out, f"{seconds:.0f}"]


def main() -> None:
    print("| run | round | accuracy | best | noise of S | precision | recall | pseudo-label acc. | \\|D^x\\|/n | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for path in sorted(RUNS.iterdir()):
        length = len(rows(path.name))
        for last in sorted({min(30, length), length}):
            print(f"| {path.name} | {last} | {' | '.join(cells(path.name, last))} |")


if __name__ == "__main__":
    main()
