"""Lines and how they are drawn: SVG, PDF and PNG of a figure, and its numbers as CSV beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fednoil.errors import UserError
from fednoil.files import write_bytes

# Okabe and Ito's colours, which colour-blind readers can distinguish; line styles and markers differ too.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
MARKERS = ["o", "s", "^", "D", "v", "P"]
FORMATS = ("svg", "pdf", "png")


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a panel: `low` and `high` are the smallest and largest over seeds."""

    panel: str
    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int
    like: str = ""  # lines that share it share a colour; else the name
    dashed: bool = False


def draw_lines(lines: Sequence[Line], title: str, labels: dict[str, tuple[str, str]], out: Path) -> list[Path]:
    """One panel for each of the lines' panels; `labels`: panel -> (x axis, y axis). Returns the files."""
    plt = pyplot()
    panels = list(dict.fromkeys(line.panel for line in lines))
    columns = 2 if len(panels) in (2, 4) else len(panels)
    rows = -(-len(panels) // columns)
    size = (4.6 * columns, 3.5 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    explained: list[set[str]] = []
    for axis, panel in zip(axes.flat, panels, strict=False):
        mine = [line for line in lines if line.panel == panel]
        names = list(dict.fromkeys(line.like or line.name for line in mine))
        for line in mine:
            place = names.index(line.like or line.name)
            style = _style(place, line)
            axis.plot(line.x, line.y, label=line.name, **style)
            if line.seeds > 1:
                shade = {"color": COLOURS[place % 6], "alpha": 0.12, "linewidth": 0}
                axis.fill_between(line.x, line.low, line.high, **shade)
        axis.set_title(panel if len(panels) > 1 and panel not in labels[panel] else "", fontsize=10)
        axis.set_xlabel(labels[panel][0])
        axis.set_ylabel(labels[panel][1])
        axis.xaxis.set_major_locator(plt.MaxNLocator(6, integer=True))
        if max(line.x.max() for line in mine) >= 10_000:
            axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
        if (limits := _without_start(mine)) is not None:
            axis.set_ylim(*limits)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        shown = {line.name for line in mine}
        if shown not in explained:  # once is enough for panels with the same lines
            explained.append(shown)
            axis.legend(frameon=False, fontsize=8, ncols=2 if len(mine) > 6 else 1)
    figure.suptitle(title, fontsize=11)
    files = save(plt, figure, out)
    rows_of = [
        {"panel": n.panel, "line": n.name, "x": x, "mean": y, "low": low, "high": high, "seeds": n.seeds}
        for n in lines
        for x, y, low, high in zip(n.x.tolist(), n.y.tolist(), n.low.tolist(), n.high.tolist(), strict=True)
    ]
    return [*files, write_csv(out, rows_of)]


def _without_start(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Limits that cut off a steep initial climb if it would take more than half of the height: everything after the
    first twentieth of each line is inside."""
    rest = [(line.low[len(line.x) // 20 :], line.high[len(line.x) // 20 :]) for line in lines]
    lowest, low = min(line.low.min() for line in lines), min(low.min() for low, _ in rest)
    high = max(high.max() for _, high in rest)
    if high - low > (high - lowest) / 2 or high == low:
        return None
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _style(place: int, line: Line) -> dict[str, Any]:
    """Colour by place; the marker, at a few points, distinguishes lines without colour."""
    every = max(1, len(line.x) // 6)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": "--" if line.dashed else "-",
        "linewidth": 1.6 if len(line.x) < 60 else 1.0,
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 4,
        "markevery": (place * every // 4, every),
    }


def require_matplotlib() -> Any:
    """Matplotlib, or an error that says how to install it."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("figures need the package matplotlib: pip install 'fednoil[plot]'") from None
    return matplotlib


def pyplot() -> Any:
    """Matplotlib's pyplot, set up for files that are the same for the same numbers."""
    matplotlib = require_matplotlib()
    matplotlib.use("Agg")
    # Text stays text, the same file from the same numbers.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fednoil", "pdf.fonttype": 42})
    import matplotlib.pyplot as plt

    return plt


def save(plt: Any, figure: Any, out: Path) -> list[Path]:
    """Write a figure in every format; returns the files."""
    files = []
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    for form in FORMATS:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=160, metadata=dates[form])
        path = out.with_name(f"{out.name}.{form}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, buffer.getvalue())
        files.append(path)
    plt.close(figure)
    return files


def write_csv(out: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a figure's numbers beside it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})
    path = out.with_name(f"{out.name}.csv")
    write_bytes(path, text.getvalue().encode())
    return path
