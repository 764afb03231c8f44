"""Drawing: SVG, PDF and PNG of a figure, and its numbers as CSV beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fednoil.errors import UserError
from fednoil.figures.numbers import Line, Triple
from fednoil.files import write_bytes

# Okabe and Ito's colours, which colour-blind readers can tell apart; line styles and markers say it again.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_MARKERS = ["o", "s", "^", "D", "v", "P"]
_MOST_TRIPLES = 30
FORMATS = ("svg", "pdf", "png")


def draw_lines(lines: Sequence[Line], title: str, labels: dict[str, tuple[str, str]], out: Path) -> list[Path]:
    """One panel for each of the lines' panels; `labels`: panel -> (x axis, y axis). Returns the files."""
    plt = _pyplot()
    panels = list(dict.fromkeys(line.panel for line in lines))
    columns = 2 if len(panels) in (2, 4) else len(panels)
    rows = -(-len(panels) // columns)
    size = (4.6 * columns, 3.5 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    explained: list[set[str]] = []
    for axis, panel in zip(axes.flat, panels, strict=False):
        mine = [line for line in lines if line.panel == panel]
        names = list(dict.fromkeys(line.name if not line.r_min else str(line.r_min) for line in mine))
        for line in mine:
            place = names.index(str(line.r_min) if line.r_min else line.name)
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
    files = _save(plt, figure, out)
    rows_of = [
        {"panel": n.panel, "line": n.name, "x": x, "mean": y, "low": low, "high": high, "seeds": n.seeds}
        for n in lines
        for x, y, low, high in zip(n.x.tolist(), n.y.tolist(), n.low.tolist(), n.high.tolist(), strict=True)
    ]
    return [*files, _write_csv(out, rows_of)]


def _without_start(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Limits that leave out a steep climb where it would take more than half of the height: everything after the first
    twentieth of each line is within."""
    rest = [(line.low[len(line.x) // 20 :], line.high[len(line.x) // 20 :]) for line in lines]
    lowest, low = min(line.low.min() for line in lines), min(low.min() for low, _ in rest)
    high = max(high.max() for _, high in rest)
    if high - low > (high - lowest) / 2 or high == low:
        return None
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _style(place: int, line: Line) -> dict[str, Any]:
    """Colour by place; the marker, at few points, tells lines apart without colour."""
    every = max(1, len(line.x) // 6)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": "--" if line.dashed else "-",
        "linewidth": 1.6 if len(line.x) < 60 else 1.0,
        "marker": _MARKERS[place % len(_MARKERS)],
        "markersize": 4,
        "markevery": (place * every // 4, every),
    }


def draw_trade_off(triples: Sequence[Triple], title: str, out: Path) -> list[Path]:
    """Parallel coordinates: rounds, batches (both downwards is more) and accuracy; one line a round."""
    plt = _pyplot()
    panels = list(dict.fromkeys(t.panel for t in triples))
    size = (4.8 * len(panels), 3.9)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=True):
        mine = [t for t in triples if t.panel == panel]
        names = list(dict.fromkeys(t.name for t in mine))
        table = np.array([[t.round, t.batches, t.accuracy] for t in mine])
        low, high = table.min(0), table.max(0)
        shown = (table - low) / np.where(high > low, high - low, 1)
        step = max(1, len(mine) // len(names) // _MOST_TRIPLES)  # all of them would be one grey area; the CSV has them
        for triple, point in zip(mine, shown, strict=True):
            if triple.round % step == 0:
                axis.plot([0, 1, 2], point, color=COLOURS[names.index(triple.name)], alpha=0.4, linewidth=0.9)
        for place, name in enumerate(names):
            last = shown[[i for i, t in enumerate(mine) if t.name == name][-1]]
            thickness = len(names) - place  # the first are thicker, so that lines on one another are all seen
            marker = {"marker": _MARKERS[place], "markersize": 4 + 2 * thickness, "linewidth": 0.8 + thickness}
            axis.plot([0, 1, 2], last, color=COLOURS[place], label=f"{name}, last round", clip_on=False, **marker)
        for place in range(3):
            axis.axvline(place, color="black", linewidth=0.8)
            for number in _ticks(plt, low[place], high[place]):
                share = (number - low[place]) / ((high[place] - low[place]) or 1)
                box = {"fc": "white", "ec": "none", "pad": 0.4}
                axis.text(place + 0.02, share, f"{number:,g}", fontsize=7, va="center", bbox=box)
        axis.set_xticks([0, 1, 2], ["rounds", "training batches", "test accuracy, %"])
        axis.set_xlim(-0.15, 2.3)
        axis.set_yticks([])
        axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
        axis.set_title(panel, fontsize=10, pad=12)
        axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=1)
    figure.suptitle(title, fontsize=11)
    files = _save(plt, figure, out)
    return [*files, _write_csv(out, [vars(t) for t in triples])]


def _ticks(plt: Any, low: float, high: float) -> list[float]:
    """Round numbers within a range, and its two ends where no round number is near."""
    inside = [float(n) for n in plt.MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= n <= high]
    ends = [end for end in (low, high) if all(abs(end - n) > 0.08 * (high - low) for n in inside)]
    return sorted([*inside, *(round(end, 1) for end in ends)])


def require_matplotlib() -> Any:
    """Matplotlib, or what to do about its absence."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("figures need the package matplotlib: pip install 'fednoil[plot]'") from None
    return matplotlib


def _pyplot() -> Any:
    matplotlib = require_matplotlib()
    matplotlib.use("Agg")
    # Text stays text, the same file from the same numbers.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fednoil", "pdf.fonttype": 42})
    import matplotlib.pyplot as plt

    return plt


def _save(plt: Any, figure: Any, out: Path) -> list[Path]:
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


def _write_csv(out: Path, rows: list[dict[str, Any]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})
    path = out.with_name(f"{out.name}.csv")
    write_bytes(path, text.getvalue().encode())
    return path
