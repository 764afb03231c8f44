"""The tables of what was tried on the way to the default, from `results.csv`: `python experiments/default/tried.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from table import NOISES, SPLITS, Row, markdown, read  # beside this file

from fednoil.pages.marked import fill

PAGE = Path(__file__).parent / "tried.md"
Cell = tuple[str, str]  # split, noise
CELLS = [(split, noise) for split in SPLITS for noise in NOISES]
CIFAR = [("iid", "symmetric-high"), ("b1", "symmetric-high"), ("b.1", "symmetric-high")]
STEP20 = "network"
SHORT = {  # step 25
    "default": "the default",
    "no-mix": "without mixup",
    "weak": "with weak views",
    "neither": "with neither",
    "ten": "ten epochs",
    "ten-weak": "ten epochs with weak views",
}
LEFT = {  # what is left out: the run without it, and with it
    "mixup": ("left-mix", STEP20),
    "logit adjustment": ("left-adjust", STEP20),
    "weak views (both instead)": ("left-views", STEP20),
    "weight decay 1e-4 (2e-3 instead)": ("left-decay", STEP20),
    "the average over rounds": ("left-average", STEP20),
    "odds (confidence in all rounds instead)": ("aligned-odds", "aligned"),
    "classes that a client holds": ("left-aside", "default"),
}
LEFT_CELLS = [*((split, "symmetric-high") for split in SPLITS), ("iid", "pair-high"), ("iid", "clean")]
VARIANTS = {
    "default": "**the default**",
    "aligned": "the default, labels set aside",
    STEP20: "**step 20**",
    "log20-odds-belief": "*heavy*, 100 epochs falling to 20",
    "odds-belief": "*heavy*: base 2, late odds and beliefs",
}


def known(rows: Sequence[Row], dataset: str = "fashion-mnist") -> dict[tuple[str, Cell], Row]:
    """Runs with seed 0, by variant and cell; those on Fashion-MNIST that came to their end."""
    return {
        (row["variant"], (row["split"], row["noise"])): row
        for row in rows
        if (row["dataset"], row["seed"]) == (dataset, "0")
        and (dataset != "fashion-mnist" or row["rounds"] == row["planned"])
    }


def mean(share: Mapping[Any, float], of: Callable[[Any], bool]) -> str:
    some = [value for cell, value in share.items() if of(cell)]
    return f"{statistics.fmean(some):.1f}" if some else "–"


def groups(share: Mapping[Any, float]) -> list[str]:
    """Means over all cells, those of each split and of each noise."""
    found = [mean(share, lambda _: True)]
    found += [mean(share, lambda cell, split=split: cell[0] == split) for split in SPLITS]
    return [*found, *(mean(share, lambda cell, noise=noise: cell[1] == noise) for noise in NOISES)]


def short(rows: Sequence[Row]) -> str:
    """Step 25: agreement and test accuracy, means of the last ten rounds."""
    runs = {row["variant"]: row for row in rows if row["dataset"] == "cifar10-50"}
    found = [
        f"{title} {float(runs[v]['val_accuracy']):.1f} ({float(runs[v]['last10']):.1f})" for v, title in SHORT.items()
    ]
    return f"Agreement (test accuracy): {', '.join(found)}."


def left_out(rows: Sequence[Row]) -> str:
    """What each ingredient is worth: agreement lost without it, in percent, and points of test accuracy."""
    runs = known(rows)
    lines = [["without", *(f"{NOISES[noise]}, {SPLITS[split]}" for split, noise in LEFT_CELLS)]]
    for title, (without, whole) in LEFT.items():
        line = [title]
        for cell in LEFT_CELLS:
            less, all_of_it = runs[without, cell], runs[whole, cell]
            agreement = 100 * (float(less["val_accuracy"]) / float(all_of_it["val_accuracy"]) - 1)
            points = float(less["last10"]) - float(all_of_it["last10"])
            line.append(f"{agreement:+.1f} % ({points:+.1f})".replace("-", "−"))
        lines.append(line)
    return markdown(lines)


def screen(rows: Sequence[Row]) -> str:
    """Each variant's agreement relative to the best of its cell, best first; and CIFAR-10 with symmetric-high labels,
    as far as each run came."""
    runs, cifar = known(rows), known(rows, "cifar10")
    shown = {key: row for key, row in runs.items() if key[0] in VARIANTS}
    best = {cell: max(float(row["val_accuracy"]) for (_, c), row in shown.items() if c == cell) for cell in CELLS}
    found = []
    for variant, title in VARIANTS.items():
        there = {cell: runs[variant, cell] for cell in CELLS if (variant, cell) in runs}
        share = {cell: 100 * float(row["val_accuracy"]) / best[cell] for cell, row in there.items()}
        whole, count = len(there) == len(CELLS), f"{len(there)} cell" + "s" * (len(there) > 1)
        every, *parts = groups(share)
        line = [title, every if whole else count if there else "–", *parts]
        line.append(f"{statistics.fmean(int(r['batches']) for r in there.values()) / 1000:.0f}" if there else "–")
        high = [there.get((split, "symmetric-high")) for split in SPLITS]
        line.append(" / ".join("–" if row is None else f"{float(row['final']):.1f}" for row in high) if there else "–")
        line += [_cifar(cifar.get((variant, cell))) for cell in CIFAR]
        found.append((whole, bool(there), statistics.fmean(share.values()) if there else 0.0, line))
    head = ["", "all", *SPLITS.values(), *NOISES.values(), "1,000 steps", "test accuracy, high"]
    head += [f"CIFAR-10, {SPLITS[split]}" for split, _ in CIFAR]
    return markdown([head, *(line for *_, line in sorted(found, key=lambda one: one[:3], reverse=True))])


def _cifar(row: Row | None) -> str:
    """Agreement and test accuracy, and after which round and how many steps."""
    if row is None:
        return "–"
    rates = " / ".join(f"{float(row[name]):.1f}" for name in ("val_accuracy", "final"))
    return f"{rates} ({row['rounds']}, {int(row['batches']) / 1000:.0f})"


def page(rows: Sequence[Row]) -> str:
    parts = {"short": short(rows), "left out": left_out(rows), "screen": screen(rows)}
    return fill(PAGE.read_text(encoding="utf-8"), parts)


if __name__ == "__main__":
    PAGE.write_text(page(read()), encoding="utf-8")
