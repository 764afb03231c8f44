"""The pictures of README.md, from results.csv and curves.csv; `study.py table` calls it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from table import HERE, LEVELS, SCREENED, TABLES, Group, Row, line_of, paper_values, together

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw_all(results: list[Row], curves: list[Row]) -> list[str]:
    """A picture for each table with runs; their names."""
    shown = {name: together(results, SCREENED, no_ssl=only, started=False) for name, only in TABLES.items()}
    shown["later"] = together(results, SCREENED, started=True)
    title = f"CIFAR-10 IID {SCREENED}"
    found = [name for name, groups in shown.items() if draw(groups, curves, title, HERE / f"{name}.png")]
    if draw_final(together(results, SCREENED, full=True), curves, title, HERE / "full.png"):
        found.append("full")
    return found + [f"{p}levels" for p in ("fashion-", "small-") if draw_levels(results, p, HERE / f"{p}levels.png")]


def _pyplot() -> Any:
    """Matplotlib, which runs don't need."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw(groups: list[Group], curves: list[Row], title: str, path: Path) -> bool:
    """Validation agreement and test accuracy over rounds, of the reference and the six best others; the mean over
    seeds. Says whether there is anything to draw."""
    if not groups:
        return False
    known = [group for group in groups if group.variant in ("published", "no-ssl")][:1]
    shown = [*known, *(group for group in groups if group not in known)][: len(COLOURS)]
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    for axis, (name, label) in zip(
        axes,
        (("val_accuracy", "agreement with validation labels, %"), ("test_accuracy", "test accuracy, %")),
        strict=True,
    ):
        for group, colour in zip(shown, COLOURS, strict=False):
            by_round: dict[int, list[float]] = {}
            runs = {row["run"] for row in group.rows}
            for row in curves:
                if row["run"] in runs and row[name]:
                    by_round.setdefault(int(row["round"]), []).append(float(row[name]))
            line = sorted((r, statistics.fmean(v)) for r, v in by_round.items())
            axis.plot([r for r, _ in line], [v for _, v in line], color=colour, label=group.label, lw=1.6)
        axis.set(xlabel="round", ylabel=label)
        axis.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
        axis.grid(axis="y", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"{title}: {shown[0].variant} and the best by validation of {len(groups)} lines", fontsize=11)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def draw_levels(results: list[Row], prefix: str, path: Path) -> bool:
    """Final test accuracy over the share of wrong labels: FedAvg, FedNoiL and ours, the mean over seeds. Says whether
    there is anything to draw."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for variant in ("fedavg", "published", "auto", "plus", "plus+aside-0.1+explore-0", "plus-now"):
        for level in LEVELS:
            mine = [r for r in results if (r["setting"], line_of(r)) == (f"{prefix}noise-{level}", variant)]
            whole = [float(r["final_test"]) for r in mine if r["rounds"] == r["planned"]]
            if whole:
                lines.setdefault(variant, []).append((level, statistics.fmean(whole)))
    if not lines:
        return False
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for (variant, line), colour, marker in zip(lines.items(), COLOURS, "so^DvP", strict=False):
        axis.plot([x for x, _ in line], [y for _, y in line], color=colour, marker=marker, label=variant, lw=1.6)
    axis.set(xlabel="wrong labels, %", ylabel="final test accuracy, %", xticks=LEVELS, ylim=(0, 100))
    axis.grid(axis="y", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def draw_final(groups: list[Group], curves: list[Row], title: str, path: Path) -> bool:
    """Test accuracy over rounds, a line for each seed, and what the paper has. Says whether there is anything to
    draw."""
    if not groups:
        return False
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(8.4, 4.6), layout="constrained")
    for group, colour in zip(groups, COLOURS, strict=False):
        for place, run in enumerate(sorted(row["run"] for row in group.rows)):
            line = sorted((int(row["round"]), float(row["test_accuracy"])) for row in curves if row["run"] == run)
            label = group.label if place == 0 else None
            axis.plot([r for r, _ in line], [v for _, v in line], color=colour, label=label, lw=1.0, alpha=0.85)
    for (method, value), style in zip(paper_values(SCREENED).items(), (":", "--", "-."), strict=False):
        axis.axhline(value, color="#555555", lw=0.9, ls=style, label=f"paper: {method} {value:.2f}")
    axis.set(xlabel="round", ylabel="test accuracy, %", ylim=(0, 100), title=f"{title}, a line for each seed")
    axis.grid(axis="y", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
