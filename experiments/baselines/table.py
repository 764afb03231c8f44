"""The tables and the pictures of README.md, from `records/`: `python experiments/baselines/table.py`.

A run that isn't finished, or was planned with fewer rounds than the paper's, is told as far as it got, without a
difference to the paper; one that diverged says so, and so does a row without a run. What `records/` lacks, FedNoiL for
one, is taken from seed 0 in the record of `experiments/reproduce`.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from recorded import RECORDS, Rounds, load_rounds, load_runs
from run import NOISES

from fednoil.config import preset
from fednoil.metrics import converged
from fednoil.pages.marked import fill
from fednoil.paper import METHODS, Cell, cells, noise_name, preset_of
from fednoil.report.record import read_record
from fednoil.report.runs import FALL

HERE = Path(__file__).resolve().parent
REPRODUCED = HERE.parent / "reproduce" / "results.parquet"
# Okabe and Ito's colours, which colour-blind readers can tell apart; line styles say it again.
STYLES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"))
PANELS = {
    "FedNoiL and plain federations": ("fednoil-logarithm", "fednoil-cosine", "fedavg", "fedprox"),
    "with DivideMix": ("fedavg+dividemix", "apfl+dividemix", "krum+dividemix", "cfl+dividemix"),
    "with Jo-SRC": ("fedavg+josrc", "apfl+josrc", "krum+josrc", "cfl+josrc"),
    "all data in one place": ("centralized+dividemix", "centralized+josrc"),
}


def column(noise: str) -> dict[str, Cell]:
    """The cells of one column of Table 1, Fashion-MNIST and IID, by the names of the runs and in the paper's order."""
    inside = [c for c in cells() if (c.table, c.dataset, c.setting) == ("1", "fashion-mnist", "iid")]
    inside = [c for c in inside if noise_name(c.noise, c.mode) == noise]
    order = list(METHODS)
    found = sorted(inside, key=lambda c: order.index(c.method))
    return {f"iid--{noise}--{preset_of(c).rsplit('/', 1)[1]}": c for c in found}


def paper_rounds(cell: Cell) -> int:
    return int(preset(preset_of(cell))["train"]["rounds"])


def row(name: str, cell: Cell, rounds: Rounds | None, run: dict[str, Any] | None) -> str:
    """One line of the table; ours by the paper's rule: the last round, or the best of a run that didn't converge."""
    start = f"| {cell.method} | `{name.rsplit('--', 1)[1]}` |"
    if not rounds or run is None:
        return f"{start} not run | | | | {cell} | | |"
    accuracy = [r["test_accuracy"] for r in rounds]
    last, best = accuracy[-1], max(accuracy)
    ours = last if converged(accuracy) else best
    finished = run["finished"] and run["planned"] == paper_rounds(cell)
    done = f"{len(rounds)}" if finished else f"**{len(rounds)} of {paper_rounds(cell)}**"
    done += f" (planned {run['planned']})" if run["planned"] != paper_rounds(cell) else ""
    done += " (diverged)" if "diverged" in run else ""
    settled = "yes" if converged(accuracy) else "no"
    seconds = statistics.median(r["wall_s"] for r in rounds)
    told = [done, f"{last:.2f}", f"{best:.2f} ({accuracy.index(best) + 1})", settled if finished else "–", str(cell)]
    return f"{start} {' | '.join(told)} | {f'{ours - cell.mean:+.1f}' if finished else '–'} | {seconds:.2f} |"


def table(noise: str, rounds: dict[str, Rounds], runs: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| paper's name | preset | rounds | last | best (round) | settled | paper | difference | s a round |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [row(name, cell, rounds.get(name), runs.get(name)) for name, cell in column(noise).items()]
    return "\n".join(lines)


def overview(rounds: dict[str, Rounds], runs: dict[str, dict[str, Any]]) -> str:
    """All columns in one table: ours, the paper's, the difference; and the minutes that a run's rounds took."""
    found = {}
    for noise in NOISES:
        for name, cell in column(noise).items():
            found[noise, cell.method] = (cell, rounds.get(name, []), runs.get(name, {}))
    heads = ["paper's name", *(f"{noise} | paper | difference" for noise in NOISES), "minutes a run"]
    lines = [f"| {' | '.join(heads)} |", "|---" * (2 + 3 * len(NOISES)) + "|"]
    for method in (cell.method for cell in column(NOISES[0]).values()):
        mine = [found[noise, method] for noise in NOISES]
        minutes = [f"{sum(r['wall_s'] for r in known) / 60:.1f}" if known else "–" for _, known, _ in mine]
        lines.append(f"| {method} | {' | '.join(brief(*one) for one in mine)} | {', '.join(minutes)} |")
    return "\n".join(lines)


def brief(cell: Cell, rounds: Rounds, run: dict[str, Any]) -> str:
    """Ours by the paper's rule (* the best round), the paper's value, and the difference."""
    if not rounds:
        return f"not run | {cell} | "
    accuracy = [r["test_accuracy"] for r in rounds]
    if "diverged" in run:
        return f"diverged after round {len(rounds)} (best {max(accuracy):.2f}) | {cell} | "
    if not run["finished"] or run["planned"] != paper_rounds(cell):
        return f"{accuracy[-1]:.2f} at round {len(rounds)} | {cell} | "
    ours = accuracy[-1] if converged(accuracy) else max(accuracy)
    shown = f"{ours:.2f}" if converged(accuracy) else f"{ours:.2f}* (last {accuracy[-1]:.2f})"
    shown += f" (best {max(accuracy):.2f})" if max(accuracy) - ours >= FALL else ""
    return f"{shown} | {cell} | {ours - cell.mean:+.1f}"


def with_reproduction(rounds: dict[str, Rounds], runs: dict[str, dict[str, Any]]) -> None:
    """Add what is lacking from seed 0 of the paper's own cells in the other experiment's record."""
    for run in read_record(REPRODUCED) if REPRODUCED.is_file() else ():
        place = run.place
        name = f"{place.setting}--{place.noise}--{place.method}"
        other = run.seed or place.dataset != "fashion-mnist" or place.setting_changes or place.method_changes
        if other or name in rounds:
            continue
        seconds = run.summary["wall_s"] / run.rounds
        curve = enumerate(run.curves["test_accuracy"].tolist(), start=1)
        rounds[name] = [{"round": r, "test_accuracy": accuracy, "wall_s": seconds} for r, accuracy in curve]
        runs[name] = {"planned": run.values["train"]["rounds"], "finished": run.finished}


def selections(noise: str, rounds: dict[str, Rounds]) -> str:
    """What DivideMix takes as labelled: mean of the last ten rounds there are."""
    lines = [
        "| preset | rounds | labelled, % | of these right, % | of the right ones found, % |",
        "|---|---|---|---|---|",
    ]
    for name in column(noise):
        found = [r for r in rounds.get(name, []) if "label_precision" in r][-10:]
        if "dividemix" in name and found:
            span = f"{found[0]['round']:.0f}–{found[-1]['round']:.0f}"
            keys = ("labelled_share", "label_precision", "label_recall")
            means = [f"{statistics.mean(r[key] for r in found):.1f}" for key in keys]
            lines.append(f"| `{name.rsplit('--', 1)[1]}` | {span} | {' | '.join(means)} |")
    return "\n".join(lines) if len(lines) > 2 else "Not run yet."


def clusters(noise: str, runs: dict[str, dict[str, Any]]) -> str:
    """Who is with whom at the end of a run that has split its clients: wrong labels, and how many classes off."""
    lines = ["| preset | cluster | clients: wrong labels, classes off |", "|---|---|---|"]
    for name in column(noise):
        for number, members in enumerate(runs.get(name, {}).get("clusters", []), start=1):
            told = "; ".join(f"{m['client']}: {m['wrong']:.0f} %, {m['off']}" for m in members)
            lines.append(f"| `{name.rsplit('--', 1)[1]}` | {number} | {told} |")
    return "\n".join(lines) if len(lines) > 2 else "None has been split."


def draw(
    axes: Axes, title: str, methods: tuple[str, ...], noise: str, rounds: dict[str, Rounds], lost: set[str]
) -> None:
    """Accuracy over rounds of some rows, with the paper's value as a diamond (open: starred) at the right edge.

    A cross ends the curve of a run that is `lost`: it diverged.
    """
    named, pooled = column(noise), "centralized" in methods[0]
    end = 300 if pooled else 150
    for method, (colour, style) in zip(methods, STYLES, strict=False):
        name = f"iid--{noise}--{method}"
        found, cell = rounds.get(name, []), named[name]
        reach = f" (to round {len(found)})" if found else " (not run)"
        reach = f" (diverged after round {len(found)})" if name in lost else reach if len(found) < 150 else ""
        numbers, accuracy = [r["round"] for r in found], [r["test_accuracy"] for r in found]
        axes.plot(numbers, accuracy, style, color=colour, label=f"{method}{reach}")
        if name in lost:
            axes.plot(numbers[-1:], accuracy[-1:], "x", color=colour, ms=9, mew=2.5)
        face = colour if cell.converged else "white"
        axes.plot([end * 1.03], [cell.mean], "D", color=colour, mfc=face, ms=6, clip_on=False)
    axes.set(title=title, xlim=(0, end * 1.06), ylim=(0, 90), xlabel="epoch" if pooled else "round")
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False, fontsize=9, handlelength=2.6)


def chart(noise: str, rounds: dict[str, Rounds], runs: dict[str, dict[str, Any]], folder: Path) -> list[Path]:
    """All rows of a column as PNG and SVG."""
    lost = {name for name, run in runs.items() if "diverged" in run}
    figure, panels = plt.subplots(1, len(PANELS), figsize=(15, 5), sharey=True, layout="constrained")
    inside = {name: found for name, found in rounds.items() if name in column(noise)}
    for axes, (title, methods) in zip(panels, PANELS.items(), strict=True):
        draw(axes, title, methods, noise, inside, lost)
    panels[0].set_ylabel("test accuracy, %")
    figure.suptitle(f"Fashion-MNIST, IID, {noise}, one seed; diamonds: the paper's values (open: not converged there)")
    paths = [folder / f"{noise}.{kind}" for kind in ("png", "svg")]
    with plt.rc_context({"svg.hashsalt": noise, "svg.fonttype": "none"}):
        for path in paths:
            figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return paths


def parts(records: Path) -> dict[str, str]:
    """What stands between `<!-- NAME -->` and `<!-- end -->` in README.md."""
    rounds, runs = load_rounds(records), load_runs(records)
    own = set(rounds)
    with_reproduction(rounds, runs)
    found = {"overview": overview(rounds, runs)}
    for noise in NOISES:
        if not own & column(noise).keys():
            found |= {noise: "Not run yet.", f"{noise} selections": "Not run yet."}
            continue
        picture = f"![Accuracy over rounds of Table 1's rows, {noise}, with the paper's values]({noise}.png)"
        found[noise] = f"{table(noise, rounds, runs)}\n\n{picture}"
        found[f"{noise} selections"] = selections(noise, rounds)
    found["pair-high clusters"] = clusters("pair-high", runs)
    return found


def main() -> None:
    readme, rounds, runs = HERE / "README.md", load_rounds(), load_runs()
    own = set(rounds)
    with_reproduction(rounds, runs)
    for noise in NOISES:
        if own & column(noise).keys():
            print(*chart(noise, rounds, runs, HERE))
    readme.write_text(fill(readme.read_text(encoding="utf-8"), parts(RECORDS)), encoding="utf-8")


if __name__ == "__main__":
    main()
