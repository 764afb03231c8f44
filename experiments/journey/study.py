"""Does the audit of a few sites find wrong labels as well as one in a single place would?

    python experiments/journey/study.py measure /usr/share [--sets stamps] [--seeds 0..2] [--folds 0]
    python experiments/journey/study.py page

`measure` writes each set as folders of three sites (`sets.py`), runs the preset `demo` on them as a user would, audits
it, and adds a line to results.csv; `--folds 0` audits with the run's own models. The central baseline pools all sites'
data, which nobody may do, and takes one minus the out-of-fold probability of the given label, cleanlab's usual score,
from the same network; how long it is trained is chosen by agreement with given labels. `page` writes the table.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

import fednoil
from fednoil import metrics
from fednoil.experiment import Experiment, assemble, make_experiment
from fednoil.pages.marked import fill
from fednoil.records.environment import environment

HERE = Path(__file__).parent
PAGE, RESULTS = HERE / "README.md", HERE / "results.csv"
FIELDS = ("set", "seed", "what", "folds", "samples", "wrong", "auroc", "noise", "agreement", "version")
WHATS = {"central": "central", "audit": "audit", "plain": "audit, `--folds 0`"}
USUAL_DECAY = 1e-4  # of weights in plain training, better for the baseline than the preset's
KEYS = {"digits": {"train.flip": False, "train.pad": 1}, "stamps": {"data.size": 32}, "emoji": {"data.size": 32}}
Row = dict[str, str]
Truth = dict[str, dict[str, str]]


def beside(path: Path) -> ModuleType:
    """Another script of the experiments as a module."""
    spec = importlib.util.spec_from_file_location(f"journey_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def measure(name: str, seed: int, share: Path, folds: int | None) -> list[Row]:
    """The audit of one set, and its central baseline unless folds are declined."""
    sets = beside(HERE / "sets.py")
    with tempfile.TemporaryDirectory() as folder:
        truth = sets.write(name, seed, share, Path(folder))
        data = {site: f"folder:{folder}/{site}" for site in sets.SITES}
        run = fednoil.run("demo", seed=seed, set={"run.device": "cpu"} | KEYS[name], data=data, progress=False)
        found = run.audit(folds=folds)
        rows = found.table.to_arrow().to_pylist()
        wrong = np.array([truth[row["client"]][row["sample"]] != row["given"] for row in rows])
        noise = [found.noise_ratios[site] for site in sets.SITES]
        chances, used = np.array([row["p_wrong"] for row in rows]), found.summary.get("folds", 0)
        lines = [_row(name, seed, "audit" if folds is None else "plain", used, chances, wrong, noise, run.accuracy)]
        if folds is None:
            lines.append(central(name, seed, make_experiment(run.config), truth))
    return lines


def central(name: str, seed: int, experiment: Experiment, truth: Truth) -> Row:
    setting = experiment.setting
    references = beside(HERE.parent / "audit/references.py")
    train = experiment.config.train.model_copy(update={"weight_decay": USUAL_DECAY})
    usual = assemble(experiment.config.model_copy(update={"train": train}), setting)
    found = references.cross_validated(usual, torch.device("cpu"))
    given, rows = np.concatenate(setting.labels.given), np.concatenate(setting.parts)
    items, classes = setting.dataset.about.items, setting.dataset.class_names
    sites = np.repeat(setting.names, [len(part) for part in setting.parts])
    wrong = [truth[site][items[row]] != classes[label] for site, row, label in zip(sites, rows, given, strict=True)]
    chances, agreed = 1 - found[np.arange(len(given)), given], 100 * float((found.argmax(1) == given).mean())
    return _row(name, seed, "central", references.FOLDS, chances, np.array(wrong), [], agreed)


def _row(
    name: str,
    seed: int,
    what: str,
    folds: int,
    chances: np.ndarray,
    wrong: np.ndarray,
    noise: list[float],
    agreement: float | None,
) -> Row:
    made_with = environment(torch.device("cpu"), "float32")
    return {
        "set": name,
        "seed": str(seed),
        "what": what,
        "folds": str(folds),
        "samples": str(len(wrong)),
        "wrong": str(int(wrong.sum())),
        "auroc": f"{metrics.detection(chances, chances > 0.5, wrong)['auroc']:.4f}",
        "noise": " ".join(f"{ratio:.3f}" for ratio in noise),
        "agreement": "" if agreement is None else f"{agreement:.1f}",
        "version": " ".join(filter(None, (made_with["packages"].get("fednoil"), made_with.get("commit")))),
    }


def read() -> list[Row]:
    if not RESULTS.is_file():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add(new: list[Row]) -> None:
    """Lines take the place of earlier ones of the same set, seed and kind."""
    kept = {tuple(row[field] for field in FIELDS[:3]): row for row in [*read(), *new]}
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept[key] for key in sorted(kept))


def page(rows: list[Row]) -> str:
    """The page with the table as the record has it."""
    lines = ["| set | labels, wrong | " + " | ".join(WHATS.values()) + " |", "|---" * (2 + len(WHATS)) + "|"]
    for name in KEYS:
        some = [row for row in rows if row["set"] == name and row["what"] == "central"]
        cells = [name, f"{some[0]['samples']}, {statistics.mean(int(row['wrong']) for row in some):.0f}"]
        for what in WHATS:
            found = [float(row["auroc"]) for row in rows if (row["set"], row["what"]) == (name, what)]
            each = ", ".join(f"{value:.3f}" for value in found)
            cells.append(f"**{statistics.mean(found):.3f}** ({each})" if found else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return fill(PAGE.read_text(encoding="utf-8"), {"results": "\n".join(lines)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("share", type=Path)
    measuring.add_argument("--sets", default=",".join(KEYS))
    measuring.add_argument("--seeds", default="0..2")
    measuring.add_argument("--folds", type=int, choices=[0], help="0: by the run's own models")
    commands.add_parser("page")
    options = parser.parse_args()
    if options.do == "measure":
        first, _, last = options.seeds.partition("..")
        for seed in range(int(first), int(last or first) + 1):
            for name in options.sets.split(","):
                add(measure(name, seed, options.share, options.folds))
    if PAGE.is_file():
        PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
