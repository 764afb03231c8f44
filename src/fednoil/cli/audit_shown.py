"""How `fednoil audit` shows what it has found: a line for each client, and notes about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fednoil.errors import counted

_NAMES = {"auroc": "AUROC", "average_precision": "average precision", "f1": "F1"}


def show_audit(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """Print the summary of the audit in `folder`, or all of it as JSON."""
    from fednoil.audit.files import noticed
    from fednoil.cli.tables import show

    if as_json:
        print(json.dumps(summary))
        return
    rows = []
    for entry in summary["clients"]:
        low, high = entry["interval"]
        most = entry["confused"][0] if entry["confused"] else None
        rows.append(
            {
                "client": entry["client"] or "–",
                "samples": entry["samples"],
                "noise": f"{100 * entry['noise_ratio']:.1f} %",
                "interval": f"{100 * low:.0f}–{100 * high:.0f} %",
                "flagged": entry["flagged"],
                "skipped": len(entry["skipped"]),
                "most": f"{most[0]} → {most[1]} ({most[2]})" if most else None,
            }
        )
    columns = {
        "client": "client",
        "samples": "samples",
        "noise": "labels wrong",
        "interval": "interval",
        "flagged": "flagged",
        "skipped": "skipped",
        "most": "most often",
    }
    show(rows, columns, f"Labels of {summary['data']}", False)
    for line in noticed(summary["clients"]):
        print(line)
    for entry in summary["clients"]:
        for line in _left_out(entry):
            print(line if entry["client"] is None else f"client {entry['client']}: {line}")
    if quality := summary["overall"].get("quality"):
        error = summary["overall"]["ratio_error"]
        measured = ", ".join(f"{_NAMES[name]} {value:.3f}" for name, value in quality.items())
        print(f"against true labels: {measured}; noise ratios off by {100 * error['mean']:.1f} points on average")
    if "folds" in summary:
        print(f"each label was judged by a run that had not seen it, one of {summary['folds']} folds")
    print(f"wrote {folder}; open {folder / 'audit.html'} to review the labels")


def _left_out(entry: dict[str, Any]) -> list[str]:
    """A client's files that were not used, or that occur more than once."""
    lines = []
    if entry["skipped"]:
        item, why = entry["skipped"][0]
        more = f", and {len(entry['skipped']) - 1} more (summary.json lists them)" if len(entry["skipped"]) > 1 else ""
        lines.append(f"skipped: {item} {why}{more}")
    if entry["duplicates"]:
        count = len(entry["duplicates"])
        occur = "occurs" if count == 1 else "occur"
        lines.append(f"{counted(count, 'sample')} {occur} more than once (summary.json lists them)")
    return lines
