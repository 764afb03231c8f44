"""Curves of run folders: one panel a figure of merit, one line a method (mean over seeds, spread shaded).

python tools/plot_runs.py --out docs/pictures/demo.png --panels test_accuracy "FedAvg=runs/a,runs/b" "FedNoiL=runs/c"
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator
from PIL import Image

from fednoil.records.folder import RunFolder

TITLES = {
    "test_accuracy": "test accuracy, %",
    "selected_noise": "noise of selected clients, %",
    "label_precision": "precision of the labelled set, %",
    "label_recall": "recall of the labelled set, %",
    "labelled_share": "share of samples in the labelled set, %",
    "pseudo_accuracy": "accuracy of accepted pseudo-labels, %",
    "shifted_accuracy": "accuracy against (y + 1) mod C, %",
}
# Okabe and Ito's colours, which colour-blind readers can tell apart; line styles say it again.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
STYLES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1))]


def series(folders: list[Path], key: str, last: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Rounds and values [runs, rounds] of the rounds that all folders have."""
    records = [RunFolder(folder).records()[:last] for folder in folders]
    length = min(len(r) for r in records)
    values = np.array([[getattr(row, key) for row in r[:length]] for r in records], dtype=float)
    return np.arange(1, length + 1), values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="+", metavar="NAME=RUN,RUN,…")
    parser.add_argument("--panels", default="test_accuracy", help=f"of: {', '.join(TITLES)}")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--title", default="")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    panels = args.panels.split(",")
    rows = -(-len(panels) // 2)
    columns = -(-len(panels) // rows)
    size = (4.4 * columns, 3.3 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, key in zip(axes.flat, panels, strict=False):
        for place, line in enumerate(args.lines):
            name, _, paths = line.partition("=")
            rounds, values = series([Path(p) for p in paths.split(",")], key, args.rounds)
            if np.isnan(values).all():
                continue
            style = {"color": COLOURS[place % 6], "linestyle": STYLES[place % 6]}
            mean = values.mean(0)
            axis.plot(rounds, mean, label=name, linewidth=1.8, **style)
            if len(values) > 1:
                axis.fill_between(rounds, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
        axis.set_xlabel("round")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_ylabel(TITLES[key])
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False, fontsize=9)
    figure.suptitle(args.title)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=120)
    Image.open(args.out).convert("RGB").quantize(48).save(args.out, optimize=True)


if __name__ == "__main__":
    main()
