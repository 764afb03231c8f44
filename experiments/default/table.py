"""The record of this study, one line a run, and the tables of its two pages.

    python experiments/default/table.py [--commit COMMIT] [RUNS ...]

Given run folders, called dataset--split--noise--variant--seedN, are added to `results.csv`, in place of earlier ones of
the same name.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednoil.pages.marked import fill
from fednoil.study.paper import DATASET_NAMES, noise_name, printed

HERE = Path(__file__).parent
PAGE, TRIED, RESULTS = HERE / "README.md", HERE / "tried.md", HERE / "results.csv"
PUBLISHED = HERE.parent / "paper/results.csv"  # FedAvg and FedNoiL with IID clients
READINGS = HERE.parent / "readings/results.csv"  # FedNoiL with β = 1
KEY = ("dataset", "split", "noise", "variant", "seed")
LATE = ("val_accuracy", "label_precision", "label_recall", "pseudo_accuracy")  # means of the last ten rounds
FIELDS = (*KEY, "rounds", "planned", "final", "last10", *LATE, "batches", "bytes", "seconds", "device", "commit")
SPLITS = {"iid": "IID", "b1": "β = 1", "b.1": "β = 0.1"}
NOISES = {"clean": "clean", "symmetric-low": "low", "symmetric-high": "high", "pair-high": "pair-high"}
CELLS = [(split, noise) for split in SPLITS for noise in NOISES]
CIFAR = [("iid", "symmetric-high"), ("b1", "symmetric-high")]
VARIANTS = {
    "both-t30": "both views, at least 30 epochs",
    "both-t30-100": "both views, at least 30 epochs, first 100 rounds",
    "both-t30-no-mix": "both views, at least 30 epochs, no mixup",
    "both-t30-wd1e-4": "both views, at least 30 epochs, weight decay 1e-4",
    "both-t30-uniform": "both views, at least 30 epochs, clients drawn uniformly",
    "both-t20": "both views, at least 20 epochs",
    "t20": "*base 2*: both views, at least 20 epochs, clients drawn uniformly",
    "t20-memory": "base 2, memory",
    "t20-judge": "base 2, the averaged model judges",
    "t20-sharp": "base 2, memory, sharper draw",
    "t20-correct": "base 2, memory, corrected labels",
    "t20-lr.1": "base 2, learning rate 0.1",
    "t20-lr.2": "base 2, learning rate 0.2",
    "t20-m.9": "base 2, momentum 0.9",
    "t20-fedexp": "base 2, FedExP",
    "t20-min": "**base 2, smaller of two estimates**",
    "t30-min": "at least 30 epochs, smaller of two estimates",
    "log20-min": "100 epochs falling to 20, smaller of two estimates",
    "t20-late": "base 2, smaller of two estimates, late pseudo-labels",
    "odds": "base 2, smaller of two estimates, late odds",
    "belief": "base 2, smaller of two estimates, late beliefs",
    "odds-belief": "base 2, smaller of two estimates, late odds and beliefs",
    "odds-belief-25": "base 2, smaller of two estimates, odds and beliefs from a quarter of the rounds on",
    "w4": "base 2, smaller of two estimates, weight decay 1e-4",
    "w4-weak": "base 2, smaller of two estimates, weight decay 1e-4, weak views",
    "w4-odds": "base 2, smaller of two estimates, weight decay 1e-4, late odds",
    "w4-belief": "base 2, smaller of two estimates, weight decay 1e-4, late beliefs",
    "w4-odds-belief": "base 2, smaller of two estimates, weight decay 1e-4, late odds and beliefs",
    "w4-weak-odds": "*light*: weak views, weight decay 1e-4, late odds",
    "log20-odds-belief": "heavy, 100 epochs falling to 20",
    "const20": "light, 20 epochs in every round",
    "network": "**the default**",
    "local": "the default, classes that a client holds",
    "local-many": "the default, classes that a client holds, clients with many labels",
    "local-10": "the default, classes that a client holds, from a tenth of the rounds on",
    "memory": "the default, memory",
    "power3": "the default, cubed odds",
    "weak-u": "the default, pseudo-labels with weak views",
    "t20-likely": "base 2, labels likelier right than wrong",
    "t20-likely-sharp": "base 2, labels likelier right than wrong, drawn sharply",
    "t20-fedexp-judge": "base 2, FedExP, the averaged model judges",
    "both-t10-wd1e-4": "both views, at least 10 epochs, weight decay 1e-4",
    "both-t10-cosine": "both views, at least 10 epochs, falling rate",
    "both-t10-no-mix": "both views, at least 10 epochs, no mixup",
    "both-t10-uniform": "both views, at least 10 epochs, clients drawn uniformly",
    "weak-t10-cosine": "weak views, at least 10 epochs, falling rate",
    "weak-t10": "weak views, at least 10 epochs",
    "both-t10": "both views, at least 10 epochs",
    "weak": "weak views",
    "log100": "100 epochs falling to 20",
    "no-mix": "no mixup",
    "wd1e-4": "weight decay 1e-4",
    "base": "the candidate",
    "uniform": "clients drawn uniformly",
    "no-aside": "no labels set aside",
    "no-average": "no average over rounds",
    "no-adjust": "no logit adjustment",
    "ssl": "pseudo-labels",
}
Row = dict[str, str]


def row_of(folder: Path, commit: str) -> Row:
    """What the record says of a run."""
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    variant, seed = folder.name.split("--")[3:]
    if seed != f"seed{config['run']['seed']}" or (variant.startswith("whole") and config["data"]["validation"]):
        raise SystemExit(f"{folder.name}: its configuration has another seed, or holds labels out")
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    found: dict[str, Any] = {
        **dict(zip(KEY, folder.name.split("--"), strict=True)),
        "seed": config["run"]["seed"],
        "rounds": len(rounds),
        "planned": config["train"]["rounds"],
        "final": rounds[-1]["test_accuracy"],
        "last10": statistics.fmean(r["test_accuracy"] for r in rounds[-10:]),
        "batches": rounds[-1]["train_batches"],
        "bytes": sum(r["bytes_down"] + r["bytes_up"] for r in rounds),
        "seconds": round(sum(r["wall_s"] for r in rounds)),
        "device": environment["device"].removeprefix("NVIDIA "),
        "commit": short(environment.get("commit") or commit),
    }
    for name in LATE:
        known = [r[name] for r in rounds[-10:] if r.get(name) is not None]
        found[name] = statistics.fmean(known) if known else None
    return {name: _text(found[name]) for name in FIELDS}


def short(commit: str) -> str:
    """Seven digits, and + where the files had been changed."""
    return commit[:7] + "+" * ("+" in commit)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def read() -> list[Row]:
    return table(RESULTS)


def table(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(rows: list[Row]) -> None:
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n", restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: [row[name] for name in KEY]))


def markdown(lines: list[list[str]]) -> str:
    marked = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([marked[0], "|---" * len(lines[0]) + "|", *marked[1:]])


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"


def screen(rows: list[Row]) -> str:
    """Seed 0. Fashion-MNIST, whole runs: each variant's agreement relative to the best of its cell, best first; and
    CIFAR-10 with symmetric-high labels, as far as each run came."""
    own = [row for row in rows if row["seed"] == "0" and row["variant"] in VARIANTS]
    known = {
        (row["variant"], (row["split"], row["noise"])): row
        for row in own
        if row["dataset"] == "fashion-mnist" and row["rounds"] == row["planned"]
    }
    cifar = {(row["variant"], (row["split"], row["noise"])): row for row in own if row["dataset"] == "cifar10"}
    best = {cell: max(float(row["val_accuracy"]) for (_, c), row in known.items() if c == cell) for cell in CELLS}
    found = []
    for variant, title in VARIANTS.items():
        there = {cell: known[variant, cell] for cell in CELLS if (variant, cell) in known}
        share = {cell: 100 * float(row["val_accuracy"]) / best[cell] for cell, row in there.items()}
        whole = len(there) == len(CELLS)

        def mean(of: Callable[[tuple[str, str]], bool], share: dict[tuple[str, str], float] = share) -> str:
            some = [value for cell, value in share.items() if of(cell)]
            return f"{statistics.fmean(some):.1f}" if some else "–"

        line = [title, mean(lambda _: True) if whole else _cells(len(there)) if there else "–"]
        line += [mean(lambda cell, split=split: cell[0] == split) for split in SPLITS]
        line += [mean(lambda cell, noise=noise: cell[1] == noise) for noise in NOISES]
        line.append(f"{statistics.fmean(int(r['batches']) for r in there.values()) / 1000:.0f}" if there else "–")
        high = [there.get((split, "symmetric-high")) for split in SPLITS]
        line.append(" / ".join("–" if row is None else f"{float(row['final']):.1f}" for row in high) if there else "–")
        line += [_cifar(cifar.get((variant, cell))) for cell in CIFAR]
        if there or any((variant, cell) in cifar for cell in CIFAR):
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


def networks(rows: list[Row]) -> str:
    """Step 17: agreement (and test accuracy) of each network on each dataset, heavy and light."""
    known = {(row["dataset"], row["variant"]): row for row in rows if row["variant"] in ("heavy", "light")}
    found = []
    for dataset, title in (
        ("fashion-mnist-resnet18", "ResNet18 on Fashion-MNIST"),
        ("cifar10-cnn", "the CNN on CIFAR-10"),
    ):
        both = [known[dataset, variant] for variant in ("heavy", "light")]
        heavy, light = (f"{float(row['val_accuracy']):.1f} ({float(row['last10']):.1f})" for row in both)
        found.append(f"{title} heavy {heavy}, light {light}")
    return f"Agreement (test accuracy): {'; '.join(found)}."


GOALS = {  # of the last round's test accuracy
    ("fashion-mnist", "iid", "symmetric-high"): "86.7",
    ("fashion-mnist", "b1", "symmetric-high"): "85.1",
    ("fashion-mnist", "b.1", "symmetric-high"): "78",
    ("fashion-mnist", "iid", "pair-high"): "87",
    ("cifar10", "iid", "symmetric-high"): "80",
    ("cifar10", "b1", "symmetric-high"): "71.1",
    ("cifar100", "iid", "symmetric-high"): "44.9",
}
METHODS = {"whole-fedavg": "Vanilla FedAvg", "whole-fednoil": "FedNoiL(Logarithm)", "whole": ""}
SETTINGS = {"iid": "iid", "non-iid": "b1"}  # of the paper, whose non-IID clients we take to have β = 1
OTHERS = {"clients100": "100 clients of 120", "uneven": "uneven sizes"}
DATASETS = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def elsewhere(dataset: str, split: str, noise: str, method: str) -> list[Row]:
    """Whole runs of a method that other studies have recorded in the same cell."""
    if split == "iid":
        wanted = (f"{dataset} iid {noise}", method, "True")
        names = ("setting", "method", "finished")
        return [row for row in table(PUBLISHED) if tuple(row[name] for name in names) == wanted]
    if split != "b1" or method != METHODS["whole-fednoil"]:
        return []
    where = (dataset, "non-iid-1", noise, "fednoil-logarithm", "each")
    return [
        row
        for row in table(READINGS)
        if tuple(row[name] for name in ("dataset", "setting", "noise", "method", "reading")) == where
        and not row["changes"]
        and row["rounds"] == row["planned"]
    ]


def accuracy(rows: list[Row]) -> str:
    """Mean and deviation of the last round's test accuracy over seeds, and the steps."""
    if not rows:
        return "–"
    whole = [row for row in rows if row.get("planned", row["rounds"]) == row["rounds"]]
    own = whole or rows[:1]
    values = [float(row["final"]) for row in own]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    steps = f"{statistics.fmean(int(row['batches']) for row in own) / 1000:.0f}"
    count = f"{len(values)}" if whole else f"stopped at round {own[0]['rounds']}"
    return f"{statistics.fmean(values):.1f}{spread} ({count}; {steps})"


def in_one_place(dataset: str, split: str, noise: str) -> str:
    """What the paper prints for DivideMix with all data in one place, or ""."""
    for cell in printed():
        where = (DATASET_NAMES[cell.dataset], SETTINGS.get(cell.setting), noise_name(cell.noise, cell.mode))
        if (*where, cell.method, cell.metric) == (dataset, split, noise, "DMix (centralized)", "accuracy"):
            return str(cell).split(" ")[0]
    return ""


def results(rows: list[Row]) -> str:
    """The default beside FedAvg, FedNoiL and the goals, cell by cell."""
    cells = [("fashion-mnist", split, noise) for noise in NOISES for split in SPLITS]
    cells += [("fashion-mnist", split, "symmetric-high") for split in OTHERS]
    found = {(row["dataset"], row["split"], row["noise"]) for row in rows if row["variant"] == "whole"}
    order = [*DATASETS], [*NOISES], [*SPLITS]
    more = [cell for cell in found if cell not in cells]
    cells += sorted(more, key=lambda c: (order[0].index(c[0]), order[1].index(c[2]), order[2].index(c[1])))
    lines = [["", "FedAvg", "FedNoiL", "the default", "DivideMix, data in one place", "goal"]]
    for cell in cells:
        dataset, split, noise = cell
        title = f"{DATASETS[dataset]}, {NOISES[noise]}, {SPLITS.get(split) or OTHERS[split]}"
        line = [title]
        for variant, method in METHODS.items():
            own = [row for row in rows if tuple(row[name] for name in KEY[:4]) == (*cell, variant)]
            line.append(accuracy(own or elsewhere(*cell, method)))
        if noise == "clean":
            fedavg = line[1].split(" ")[0]
            goal = f"{float(fedavg) - 0.5:.1f}" if fedavg != "–" else "FedAvg − 0.5"
        else:
            goal = GOALS.get(cell, "")
        lines.append([*line, in_one_place(*cell), goal])
    return markdown(lines)


LEFT = {
    "left-mix": "mixup",
    "left-adjust": "logit adjustment",
    "left-views": "weak views (both instead)",
    "left-decay": "weight decay 1e-4 (2e-3 instead)",
    "left-estimate": "the smaller of two estimates (that of labels set aside instead)",
    "left-average": "the average over rounds",
    "left-odds": "odds (confidence in all rounds instead)",
    "left-aside": "labels set aside",
}
LEFT_CELLS = [*((split, "symmetric-high") for split in SPLITS), ("iid", "pair-high"), ("iid", "clean")]


def left_out(rows: list[Row]) -> str:
    """What each ingredient is worth: agreement lost without it, in percent, and points of test accuracy."""
    known = {
        (row["variant"], (row["split"], row["noise"])): row
        for row in rows
        if row["dataset"] == "fashion-mnist" and row["seed"] == "0" and row["rounds"] == row["planned"]
    }
    lines = [["without", *(f"{NOISES[noise]}, {SPLITS[split]}" for split, noise in LEFT_CELLS)]]
    for variant, title in LEFT.items():
        line = [title]
        for cell in LEFT_CELLS:
            whole, less = known["network", cell], known[variant, cell]
            agreement = 100 * (float(less["val_accuracy"]) / float(whole["val_accuracy"]) - 1)
            points = float(less["last10"]) - float(whole["last10"])
            line.append(f"{agreement:+.1f} % ({points:+.1f})".replace("-", "−"))
        lines.append(line)
    return markdown(lines)


def oracle(rows: list[Row]) -> str:
    """Test accuracy of as many samples as there are clean labels with symmetric-high noise, all clean, and the
    default's."""
    known = {tuple(row[name] for name in KEY): row for row in rows}
    found = []
    for dataset, split, title in (
        ("fashion-mnist", "iid", "Fashion-MNIST IID"),
        ("fashion-mnist", "b1", "Fashion-MNIST β = 1"),
        ("cifar10", "iid", "CIFAR-10 IID"),
    ):
        ours = known[dataset, split, "symmetric-high", "network", "0"]
        clean = known[dataset, split, "clean", "oracle", "0"]
        found.append(f"{title} {float(clean['last10']):.1f} where the default has {float(ours['last10']):.1f}")
    return f"{', '.join(found)}."


def mixing(rows: list[Row]) -> str:
    """The runs of `mixing.py`: agreement over the last ten rounds, and test accuracy of the last, for each seed."""
    found = []
    for variant, title in (("mix", "with mixup"), ("no-mix", "without")):
        own = [row for row in rows if (row["dataset"], row["variant"]) == ("digits", variant)]
        rates = [", ".join(f"{float(r[n]):.1f}" for r in own) for n in ("val_accuracy", "final")]
        found.append(f"{title} {rates[0]} (test {rates[1]})")
    return f"Seeds 0, 1, 2: {', '.join(found)}."


def page(rows: list[Row]) -> str:
    parts = {"results": results(rows), "networks": networks(rows)}
    return fill(PAGE.read_text(encoding="utf-8"), parts | {"oracle": oracle(rows), "mixing": mixing(rows)})


def tried(rows: list[Row]) -> str:
    return fill(TRIED.read_text(encoding="utf-8"), {"screen": screen(rows), "left out": left_out(rows)})


def _longer(row: Row, new: list[Row]) -> bool:
    """Whether a row of the record has more rounds than the new one of the same name."""
    same = next(one for one in new if all(one[name] == row[name] for name in KEY))
    return int(row["rounds"]) > int(same["rounds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--commit", default="", help="of the package that made the runs, where they don't say it")
    parser.add_argument("--replace", action="store_true", help="also runs with more rounds")
    given = parser.parse_args()
    new = [row_of(folder, given.commit) for folder in given.runs]
    names = {tuple(row[name] for name in KEY) for row in new}
    if len(names) < len(new):
        raise SystemExit("two of these runs have the same name")
    longer = [row for row in read() if tuple(row[name] for name in KEY) in names and _longer(row, new)]
    if longer and not given.replace:
        raise SystemExit(
            f"the record has a longer run than {'--'.join(longer[0][n] for n in KEY)}; --replace if you mean it"
        )
    rows = [*(row for row in read() if tuple(row[name] for name in KEY) not in names), *new]
    if new:
        write(rows)
    PAGE.write_text(page(rows), encoding="utf-8")
    TRIED.write_text(tried(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
