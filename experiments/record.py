"""Results of a study as a CSV file, one line a run: add runs to it, and make the table of its page from it.

    python experiments/record.py add demo "50 to 80 % wrong" fedavg runs/demo-fedavg-0 runs/demo-fedavg-1
    python experiments/record.py pages

`add` takes the study's folder, a setting and a method as its table calls them (`TABLES`), and run folders. A run takes
the place of an earlier one with the same setting, method and seed. `pages` writes every table from the CSV files.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import re
import statistics
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fednoil.history import RoundRecord
from fednoil.pages.marked import fill
from fednoil.records.folder import RunFolder
from fednoil.study.paper import DATASET_NAMES, noise_name
from fednoil.study.paper import printed as printed_numbers

HERE = Path(__file__).parent
FIELDS = (
    *("setting", "method", "changes", "seed", "rounds", "planned", "final", "best", "chosen", "last10", "validation"),
    *("label_precision", "pseudo_accuracy", "seconds", "device", "version", "batches"),  # the last since 0.2.0
)
SCREEN = ", half held out"  # ends the settings of runs that no table has
Row = dict[str, str]


@dataclass(frozen=True)
class Table:
    """A page's table: methods down and settings across, by their names in the record and on the page."""

    methods: dict[str, str]
    settings: dict[str, str]
    figures: tuple[str, ...] = ("final",)
    paper: tuple[str, ...] = ()  # the paper's methods whose printed values stand below
    data: dict[str, str] = field(default_factory=lambda: {"": ""})  # what settings and titles begin with, by dataset

    def text(self, rows: list[Row]) -> str:
        """In Markdown: mean ± standard deviation, the number of seeds if not one, and where one stopped early."""
        lines = [["", *self.settings.values()]]
        for (start, data), (name, title) in itertools.product(self.data.items(), self.methods.items()):
            cells = [self._cell(rows, start + setting, name) for setting in self.settings]
            lines += [[data + title, *cells]] if {*cells} != {"–"} else []
        lines += [[f"paper, {name}", *(printed(setting, name) for setting in self.settings)] for name in self.paper]
        marked = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([marked[0], "|---" * len(lines[0]) + "|", *marked[1:]])

    def _cell(self, rows: list[Row], setting: str, method: str) -> str:
        found = [row for row in rows if (row["setting"], row["method"]) == (setting, method)]
        if not found:
            return "–"
        rounds, planned = int(found[0]["rounds"]), int(found[0]["planned"])
        seeds = f" ({len(found)})" if len(found) > 1 else f" (round {rounds})" if rounds < planned - 1 else ""
        return ", ".join(spread([float(row[f]) for row in found if row[f]]) for f in self.figures) + seeds


def printed(setting: str, method: str) -> str:
    """The accuracy that the paper prints for `cifar10 iid symmetric-high`, say."""
    dataset, clients, noise = setting.split()
    for cell in printed_numbers():
        where = (DATASET_NAMES[cell.dataset], cell.setting, noise_name(cell.noise, cell.mode))
        if (*where, cell.method, cell.metric) == (dataset, clients, noise, method, "accuracy"):
            return str(cell)
    return "–"


def spread(values: list[float]) -> str:
    """`75.5 ± 0.7`, without a deviation where there is one value, and `–` where there is none."""
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


_RECIPE = "strong views, weight decay 2e-3"
TABLES = {
    "cifar": Table(
        {
            "published": "as published, our reading",
            "total+x-strong+penalties": "*total* sizes, strong views, SemiNLL's penalties, no pseudo-labels",
            "total+x-strong+penalties+ssl": "the same with pseudo-labels",
            "no-ssl+x-strong+wd-2e-3": f"{_RECIPE}, no pseudo-labels",
            "x-strong+wd-2e-3+ssl-160": f"{_RECIPE}, pseudo-labels from round 161",
            "x-strong+wd-2e-3+ssl-160+by-class": "the same, D^x drawn class by class: **the recipe**",
            "mixup+x-strong+wd-2e-3+ssl-160+by-class+average": "the recipe with mixup and an averaged model",
            "plus+aside-0.1+explore-0+x-strong+wd-2e-3+ssl-160+by-class+average": "the same, share of D^x estimated",
        },
        {
            "cifar10 iid symmetric-high": "symmetric-high",
            "cifar10 iid symmetric-low": "symmetric-low",
            "cifar10 iid pair-high": "pair-high",
            "cifar10 iid pair-low": "pair-low",
            "cifar10 non-iid symmetric-high": "β = 1, symmetric-high",
            "cifar10 non-iid symmetric-low": "β = 1, symmetric-low",
            "cifar10 non-iid pair-high": "β = 1, pair-high",
            "cifar10 non-iid pair-low": "β = 1, pair-low",
            "cifar100 iid symmetric-high": "CIFAR-100 symmetric-high",
        },
        paper=("FedNoiL(Logarithm)", "FedNoiL†"),
    ),
    "levels": Table(
        {
            "fedavg": "FedAvg",
            "published": "FedNoiL, share of correct labels known",
            "default": "**the default**",
            "auto": 'FedNoiL, `frac = "auto"`',
        },
        {f"{level} %": f"{level} % wrong" for level in (0, 20, 40, 60, 80)},
        ("final", "chosen"),
        data={"": "Fashion-MNIST, ", "cifar10 ": "CIFAR-10, "},
    ),
    "human": Table(
        {"fedavg": "FedAvg", "published": "FedNoiL, told a share of 0.55", "default": "**the default**"},
        {"worst iid": "*worst*, IID", "worst non-iid": "*worst*, β = 1", "aggregate iid": "*aggregate*, IID"},
        ("final", "best"),
        data={"resnet18 ": "ResNet18, ", "cnn ": "CNN, "},
    ),
    "protocols": Table(
        {
            "fednoil-plus": "`fednoil-plus`",
            "fednoil-plus-9": "`fednoil-plus`, nine epochs",
            "fednoil-plus-9-both": "the same, half of the views strong",
            "fedlsr": "FedLSR",
            "gce": "GCE",
            "fednoil": 'FedNoiL, `frac = "auto"`',
            "elr": "ELR",
            "fedcorr": "FedCorr",
            "fedelc": "FedELC",
            "fedavg": "FedAvg",
        },
        {"fnbench/cifar10": "FNBench", "fedcorr/cifar10": "FedCorr's"},
        ("last10", "best"),
    ),
    "demo": Table(
        {
            "fedavg": "FedAvg",
            "fednoil": "FedNoiL, `frac` set by hand",
            "auto": 'FedNoiL, `frac = "auto"`',
            "default": "the default, `fednoil-plus`",
        },
        {
            "50 to 80 % wrong": "50 to 80 % wrong",
            "50 to 80 % wrong, pad 4": "the same, 4-pixel shifts",
            "30 to 60 % wrong": "30 to 60 % wrong",
            "clean": "clean",
        },
    ),
}


def read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["setting"], row["method"], int(row["seed"]))))


def row_of(folder: Path, setting: str, method: str, commit: str = "") -> Row:
    """What the record says of a run; `commit` is that of one which doesn't know it."""
    records, values = RunFolder(folder).records(), tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    accuracy = [record.test_accuracy for record in records]
    late = records[-10:] if len(records) >= 40 else records[-max(1, len(records) // 4) :]
    found: dict[str, Any] = {
        "setting": setting,
        "method": method,
        "changes": " ".join(re.sub("=.*/", "=", word) for word in environment.get("origin", {}).get("set", [])),
        "seed": values["run"]["seed"],
        "rounds": len(records),
        "planned": values["train"]["rounds"],
        "final": accuracy[-1],
        "best": max(accuracy),
        "chosen": chosen(records),
        "last10": statistics.mean(accuracy[-10:]),
        "seconds": sum(record.wall_s for record in records),
        "device": environment["device"],
        "version": " ".join(
            filter(None, (environment["packages"].get("fednoil"), environment.get("commit") or commit))
        ),
        "batches": records[-1].train_batches,
    }
    for name, key in (("validation", "val_accuracy"), *((k, k) for k in ("label_precision", "pseudo_accuracy"))):
        known = [getattr(record, key) for record in late if getattr(record, key) is not None]
        found[name] = statistics.mean(known) if known else None
    return {f: _text(found[f]) for f in FIELDS}


def chosen(records: list[RoundRecord]) -> float | None:
    """Test accuracy in the round whose model agrees best with held-out given labels, the first of equals."""
    known = [(record.val_accuracy, record.test_accuracy) for record in records if record.val_accuracy is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def add(study: Path, setting: str, method: str, folders: list[Path], commit: str = "") -> None:
    table = TABLES[study.name]
    settings = [start + name for start in table.data for name in table.settings]
    screen = setting.endswith(SCREEN)
    if setting.removesuffix(SCREEN) not in settings or not (screen or method in table.methods):
        raise SystemExit(f"settings: {', '.join(settings)}; methods: {', '.join(table.methods)}")
    key = ("setting", "method", "seed", *(("planned", "changes", "version") if screen else ()))
    path, rows = study / "results.csv", [row_of(folder, setting, method, commit) for folder in folders]
    found = {tuple(row[name] for name in key): row for row in rows}
    write(path, [*(row for row in read(path) if tuple(row[name] for name in key) not in found), *found.values()])


def page(study: str) -> tuple[Path, str]:
    """A study's page, and its text as the record has it."""
    path = HERE / study / "README.md"
    rows = read(HERE / study / "results.csv")
    return path, fill(path.read_text(encoding="utf-8"), {"results": TABLES[study].text(rows)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("study", choices=list(TABLES))
    adding.add_argument("setting")
    adding.add_argument("method")
    adding.add_argument("runs", nargs="+", type=Path)
    adding.add_argument("--commit", default="", help="of the package that made the runs, where they don't say it")
    commands.add_parser("pages")
    options = parser.parse_args()
    if options.what == "add":
        add(HERE / options.study, options.setting, options.method, options.runs, options.commit)
    for study in TABLES:
        path, text = page(study)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
