"""What helps clients that hold classes in different shares, at a tenth of the paper's cost on a CPU.

    python experiments/non-iid/study.py run [NAME …] --seeds 0 1 2 --out runs/non-iid
    python experiments/non-iid/study.py run published frac-0.65 --setting iid --out runs/non-iid
    python experiments/non-iid/study.py collect runs/non-iid

`run` plays each variant in a command of its own and goes on where it was; `collect` writes results.csv and the table of
README.md.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from fednoil.pages.marked import fill
from fednoil.records.folder import RunFolder

HERE = Path(__file__).parent
SETTINGS = ("non-iid", "iid")
LESS = ("train.rounds=40", "schedule.name=constant", "schedule.epochs=5", "model.width=16")
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "published": ("fednoil-logarithm", ()),
    "frac-0.5": ("fednoil-logarithm", ("learner.frac=0.5",)),
    "frac-0.65": ("fednoil-logarithm", ("learner.frac=0.65",)),
    "frac-0.8": ("fednoil-logarithm", ("learner.frac=0.8",)),
    "plus": ("fednoil-plus", ("learner.explore=0.2", "learner.aside=0.0", "server.average=0.0")),  # its first defaults
    "no-ssl": ("fednoil-no-ssl", ()),
    "xi-0.8": ("fednoil-logarithm", ("learner.xi=0.8",)),
    "score-mean": ("fednoil-logarithm", ("server.sampling=score_mean",)),
    "x-strong": ("fednoil-logarithm", ("learner.x_augment=strong",)),
    "by-class": ("fednoil-logarithm", ("learner.draw=class",)),
    "floor": ("fednoil-logarithm", ("learner.draw=floor",)),
    "by-class+frac-0.5": ("fednoil-logarithm", ("learner.draw=class", "learner.frac=0.5")),
}
LAST = 10  # rounds that a figure is the mean of
NAMES = ("setting", "variant", "seed")
FIGURES = ("test_accuracy", "label_precision", "label_recall", "pseudo_accuracy", "pseudo_accept", "lost_classes")


def play(setting: str, names: list[str], seeds: list[int], out: Path) -> None:
    for seed in seeds:
        for name in names or VARIANTS:
            method, sets = VARIANTS[name]
            preset, folder = f"paper/fashion-mnist/{setting}/symmetric-high/{method}", f"{setting}--{name}--{seed}"
            words = [word for one in (*LESS, *sets) for word in ("--set", one)]
            place = ["--out", str(out / folder), "--seed", str(seed), "--resume", "--device", "cpu", "--quiet"]
            print(folder, flush=True)
            subprocess.run([sys.executable, "-m", "fednoil", "run", preset, *words, *place], check=True)


def collect(runs: Path) -> None:
    """Figures of every finished run below `runs`, in place of what was there of it, and the page's table of all."""
    results = HERE / "results.csv"
    found = {}
    if results.is_file():
        with results.open(newline="", encoding="utf-8") as file:
            found = {tuple(row[name] for name in NAMES): row for row in csv.DictReader(file)}
    for path in sorted(runs.glob("*--*--*/summary.json")):
        last = RunFolder(path.parent).records()[-LAST:]
        known = {key: [r[key] for r in last if key in r] for key in FIGURES}  # no guess, no share of right ones
        figures = {key: f"{fmean(values):.2f}" for key, values in known.items() if values}
        name = tuple(path.parent.name.split("--"))
        found[name] = {**dict(zip(NAMES, name, strict=True)), **figures}
    rows = [found[name] for name in sorted(found)]
    with results.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*NAMES, *FIGURES], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    page = HERE / "README.md"
    tables = {setting: table([row for row in rows if row["setting"] == setting]) for setting in SETTINGS}
    page.write_text(fill(page.read_text(encoding="utf-8"), tables), encoding="utf-8")


def table(rows: list[dict[str, str]]) -> str:
    """One line a variant: accuracy by seed, the mean difference from `published`, what was drawn and guessed."""
    seeds = sorted({row["seed"] for row in rows})
    at = {(row["variant"], row["seed"]): row for row in rows}
    lines = [
        f"| variant | changes | {' | '.join(f'seed {seed}' for seed in seeds)} | against published |"
        " precision of D^x | recall | pseudo-labels right | D^u that has one | classes lost |",
        "|---" * (8 + len(seeds)) + "|",
    ]
    for name in (n for n in VARIANTS if any(row["variant"] == n for row in rows)):
        mine = [at.get((name, seed), {}) for seed in seeds]
        pairs = [(m, at.get(("published", s), {})) for m, s in zip(mine, seeds, strict=True)]
        gains = [float(m["test_accuracy"]) - float(p["test_accuracy"]) for m, p in pairs if m and p]
        method, sets = VARIANTS[name]
        own = (method,) if not sets or method != "fednoil-logarithm" else ()
        changes = ", ".join(f"`{one}`" for one in (*own, *sets))
        cells = [f"{float(m['test_accuracy']):.1f}" if m else "–" for m in mine]
        means = [[float(m[key]) for m in mine if m.get(key)] for key in FIGURES[1:]]
        cells += [f"{round(fmean(gains), 1) or 0.0:+.1f}" if gains and name != "published" else "–"]
        cells += [f"{fmean(values):.1f}" if values else "–" for values in means]
        lines.append(f"| {name} | {changes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(VARIANTS)}; all of them")
    run.add_argument("--setting", choices=SETTINGS, default=SETTINGS[0])
    run.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    run.add_argument("--out", type=Path, default=Path("runs/non-iid"))
    commands.add_parser("collect").add_argument("runs", type=Path)
    args = parser.parse_args()
    if args.command == "collect":
        return collect(args.runs)
    if unknown := [name for name in args.names if name not in VARIANTS]:
        parser.error(f"unknown variant '{unknown[0]}'; there are {', '.join(VARIANTS)}")
    return play(args.setting, args.names, args.seeds, args.out)


if __name__ == "__main__":
    main()
