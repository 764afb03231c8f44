"""README.md's tables and curves, from results.csv and curves.csv; `study.py table` calls it."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from variants import GROUPS, PLACES, composed

HERE = Path(__file__).resolve().parent
RESULTS, CURVES = HERE / "results.csv", HERE / "curves.csv"
Row = dict[str, str]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LEVELS = (0, 20, 40, 60, 80)


def mean(rows: list[Row], name: str) -> str:
    """Mean over seeds, with the standard deviation where there is more than one; – where it is not known."""
    values = [float(row[name]) for row in rows if row[name]]
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def together(results: list[Row], setting: str, full: str) -> dict[tuple[str, str], list[Row]]:
    """The runs of a setting by variant and planned rounds, those with the best agreement first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in results:
        if (row["setting"], row["full"]) == (setting, full):
            found.setdefault((row["variant"], row["planned"]), []).append(row)
    order = "test_accuracy" if full == "True" else "val_accuracy"
    return dict(sorted(found.items(), key=lambda item: -statistics.fmean(float(r[order] or 0) for r in item[1])))


def screening(results: list[Row], setting: str, full: str = "False") -> str:
    """The table of one setting: a line for each variant."""
    heads = ("variant", "`--set`", "seeds", "rounds", "validation", "test", "final test")
    heads += ("D^x right", "pseudo right (used)", "s a run")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (variant, planned), rows in together(results, setting, full).items():
        least = min(int(row["rounds"]) for row in rows)
        rounds = planned if least == int(planned) else f"{least} of {planned}"
        rounds += " (given up)" if any(row["given_up"] for row in rows) else ""
        sets = " ".join(f"`{one}`" for one in composed(variant).sets) or "–"
        used = f"{mean(rows, 'pseudo_accuracy')} ({mean(rows, 'pseudo_accept')})"
        figures = [mean(rows, name) for name in ("val_accuracy", "test_accuracy", "final_test", "label_precision")]
        cells = [variant, sets, str(len(rows)), rounds, *figures, used, mean(rows, "seconds")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else "Not run yet."


def levels(results: list[Row], prefix: str) -> str:
    """Test accuracy, and validation in brackets, by variant and noise level."""
    lines = [f"| variant | seeds | {' | '.join(f'noise {n} %' for n in LEVELS)} |", f"|---|---|{'---|' * len(LEVELS)}"]
    names = dict.fromkeys(row["variant"] for row in results if row["setting"].startswith(f"{prefix}noise-"))
    order = [v.name for group in GROUPS.values() for v in group]
    for variant in sorted(names, key=lambda n: order.index(n) if n in order else len(order)):
        cells, seeds = [], set()
        for level in LEVELS:
            mine = [r for r in results if (r["setting"], r["variant"]) == (f"{prefix}noise-{level}", variant)]
            whole = [r for r in mine if r["rounds"] == r["planned"]]
            seeds |= {len(whole)} if whole else set()
            cells.append(f"{mean(whole, 'final_test')} ({mean(whole, 'val_accuracy')})" if whole else "–")
        many = "–".join(dict.fromkeys(str(n) for n in (min(seeds), max(seeds)))) if seeds else "0"
        lines.append(f"| {variant} | {many} | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else "Not run yet."


def parts(results: list[Row]) -> dict[str, str]:
    """What stands between `<!-- NAME -->` and `<!-- end -->` in README.md."""
    found = {setting: screening(results, setting) for setting in PLACES if "noise-" not in setting}
    found |= {"levels": levels(results, ""), "small-levels": levels(results, "small-")}
    whole = [f"**{s}**\n\n{screening(results, s, 'True')}" for s in PLACES if together(results, s, "True")]
    tried = [row for row in results if not row["setting"].startswith("small")]
    counts = f"{len({row['variant'] for row in tried})} variants, {len(tried)} runs, "
    return found | {
        "full": "\n\n".join(whole) or "Not run yet.",
        "count": counts + f"{sum(float(row['seconds']) for row in tried) / 60:.0f} minutes of rounds on CIFAR so far.",
    }


def fill(text: str, parts: dict[str, str]) -> str:
    """The text with every part in its place; a setting that has no place must have no runs."""
    for name, part in parts.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        text, count = place.subn(lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text)
        if count != 1 and part != "Not run yet.":
            raise ValueError(f"README.md has {count} places for '{name}', not one")
    return text


def draw(results: list[Row], curves: list[Row], setting: str, path: Path) -> bool:
    """Validation agreement and test accuracy over rounds, of `published` and the six best variants with the most
    rounds that were planned; the mean over seeds. Says whether there is anything to draw."""
    grouped = together(results, setting, "False")
    if not grouped:
        return False
    names = [key[0] for key in grouped]
    shown = [key for key in grouped if key[0] == "published"][:1]
    shown += [key for key in grouped if key[0] != "published"][: len(COLOURS) - len(shown)]
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    for axis, (name, label) in zip(
        axes,
        (("val_accuracy", "agreement with validation labels, %"), ("test_accuracy", "test accuracy, %")),
        strict=True,
    ):
        for (variant, planned), colour in zip(shown, COLOURS, strict=False):
            by_round: dict[int, list[float]] = {}
            runs = {row["run"] for row in grouped[variant, planned]}
            for row in curves:
                if row["run"] in runs and row[name]:
                    by_round.setdefault(int(row["round"]), []).append(float(row[name]))
            line = sorted((r, statistics.fmean(v)) for r, v in by_round.items())
            text = f"{variant} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"
            axis.plot([r for r, _ in line], [v for _, v in line], color=colour, label=text, lw=1.6)
        axis.set(xlabel="round", ylabel=label)
        axis.grid(axis="y", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"{setting}: published and the best of {len(set(names))} variants by validation", fontsize=11)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def draw_levels(results: list[Row], prefix: str, path: Path) -> bool:
    """Final test accuracy over the share of wrong labels: FedAvg, FedNoiL and ours, the mean over seeds. Says whether
    there is anything to draw."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for variant in ("fedavg", "published", "auto", "plus"):
        for level in LEVELS:
            mine = [r for r in results if (r["setting"], r["variant"]) == (f"{prefix}noise-{level}", variant)]
            whole = [float(r["final_test"]) for r in mine if r["rounds"] == r["planned"]]
            if whole:
                lines.setdefault(variant, []).append((level, statistics.fmean(whole)))
    if not lines:
        return False
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for (variant, line), colour, marker in zip(lines.items(), COLOURS, "so^D", strict=False):
        axis.plot([x for x, _ in line], [y for _, y in line], color=colour, marker=marker, label=variant, lw=1.6)
    axis.set(xlabel="wrong labels, %", ylabel="final test accuracy, %", xticks=LEVELS, ylim=(0, 100))
    axis.grid(axis="y", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def write_page(results: list[Row], curves: list[Row]) -> None:
    """README.md with its tables as the records are, and a picture for each setting with runs."""
    readme = HERE / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8"), parts(results)), encoding="utf-8")
    for setting in PLACES:
        path = HERE / f"{setting}.png"
        if "noise-" not in setting and draw(results, curves, setting, path):
            print(path.name)
    for prefix in ("", "small-"):
        path = HERE / f"{prefix}levels.png"
        if draw_levels(results, prefix, path):
            print(path.name)
