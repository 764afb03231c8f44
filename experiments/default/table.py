"""The record of this study, one line a run, and the tables of its page; `tried.py` has those of the other page.

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
from pathlib import Path
from typing import Any

from fednoil.pages.marked import fill
from fednoil.study.paper import DATASET_NAMES, noise_name, printed

HERE = Path(__file__).parent
PAGE, RESULTS = HERE / "README.md", HERE / "results.csv"
PUBLISHED = HERE.parent / "paper/results.csv"  # FedAvg, and FedNoiL with IID clients
READINGS = HERE.parent / "readings/results.csv"  # FedNoiL with β = 1
KEY = ("dataset", "split", "noise", "variant", "seed")
LATE = ("val_accuracy", "label_precision", "label_recall", "pseudo_accuracy")  # means of the last ten rounds
FIELDS = (*KEY, "rounds", "planned", "final", "last10", *LATE, "batches", "megabytes", "seconds", "device", "commit")
SPLITS = {"iid": "IID", "b1": "β = 1", "b.1": "β = 0.1"}
NOISES = {"clean": "clean", "symmetric-low": "low", "symmetric-high": "high", "pair-high": "pair-high"}
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
        "megabytes": round(sum(r["bytes_down"] + r["bytes_up"] for r in rounds) / 1e6),
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
    setting = {ours: paper for paper, ours in SETTINGS.items()}.get(split)
    wanted, names = (f"{dataset} {setting} {noise}", method, "True"), ("setting", "method", "finished")
    found = [row for row in table(PUBLISHED) if tuple(row[name] for name in names) == wanted]
    if found or split != "b1" or method != METHODS["whole-fednoil"]:
        return found
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


def cost(rows: list[Row]) -> str:
    """Steps and bytes of the three methods in the cells of this record that have them all, as means a run."""
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if row["variant"] in METHODS and row["seed"] == "0" and row["rounds"] == row["planned"]:
            found.setdefault(tuple(row[name] for name in KEY[:3]), {})[row["variant"]] = row
    cells = [cell for cell in found.values() if cell.keys() == METHODS.keys()]
    said = []
    for variant, title in zip(METHODS, ("FedAvg", "FedNoiL", "the default"), strict=True):
        steps, size = (statistics.fmean(int(cell[variant][n]) for cell in cells) for n in ("batches", "megabytes"))
        said.append(f"{title} {steps / 1000:.0f},000 steps and {size / 1e3:.1f} GB")
    return f"Means of a run in the {len(cells)} cells in which this record has all three: {', '.join(said)}."


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
        ours = known[dataset, split, "symmetric-high", "default", "0"]
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
    parts = {"results": results(rows), "cost": cost(rows), "networks": networks(rows)}
    return fill(PAGE.read_text(encoding="utf-8"), parts | {"oracle": oracle(rows), "mixing": mixing(rows)})


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


if __name__ == "__main__":
    main()
