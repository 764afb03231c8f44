"""How well wrong labels are found, against cleanlab on one place's data and against local models.

    python experiments/audit/run.py train PRESET... --out DIR        # runs, a folder each; any `fednoil run` will do
    python experiments/audit/run.py collect RUN... --out DIR         # per run one .npz: probabilities and labels;
                                       # --setting and --method: what they are called, if not as in the paper
    python experiments/audit/run.py references NAME... --out DIR     # per setting and seed one .npz: (b) and (c)
    python experiments/audit/run.py compare DIR...                   # needs cleanlab; results.csv, the README's tables

`train`, `collect` and `references` need PyTorch alone and work on a GPU as well; `compare` needs no GPU. `references`
takes presets and run folders, trains its own models and needs no finished run. What is already in DIR stays. The
collected arrays, for N samples of all clients one after another and C classes:

    final  float16 [N, C]  the final model's class probabilities
    mean   float16 [N, C]  those over all rounds, as the evidence has them with the final look
    given, true [N], sizes [K], the run's final accuracy and that on each class [C] (NaN where it is unknown), what it
    is called, the version and commit that made it, and the name of its references

`compare` replaces the rows of these runs in its CSV file and leaves the others.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import table
import torch
from references import file_of, references

from fednoil.audit.cases import load_state
from fednoil.batch.cell import parse_seeds
from fednoil.config import load_config
from fednoil.config.loading import merge, parse_set, read_toml
from fednoil.devices import pick_device
from fednoil.evidence import add_looks, start
from fednoil.experiment import make_experiment
from fednoil.history import RoundRecord
from fednoil.labels import open_truth
from fednoil.report.places import own_place
from fednoil.rounds.final import final_looks, known_accuracy
from fednoil.runner import Silent, run
from fednoil.study import preset
from fednoil.study.places import place_of
from fednoil.tensors import cpu

REFERENCES = "references"


class Lines(Silent):
    """One line per round; needs nothing that a machine with a GPU may lack."""

    def round(self, record: RoundRecord) -> None:
        print(f"round {record.round}: {record.test_accuracy:.2f} %, {record.wall_s:.1f} s", flush=True)

    def finish(self, summary: dict[str, Any], folder: Path | None) -> None:
        print(f"{folder}: {summary['final_accuracy']:.2f} %", flush=True)


def train(names: list[str], out: Path, changes: list[str], device: str, seeds: list[int]) -> None:
    """One run for each preset's name and seed, in a folder of its name with dashes."""
    for name in names:
        for seed in seeds:
            values = merge(preset(name), parse_set([*changes, f"run.device={device}", f"run.seed={seed}"]))
            run(load_config(values), out / f"{name.replace('/', '-')}-seed-{seed}", Lines(), resume=True)


def collect(folder: Path, device: torch.device, setting_name: str | None, method: str | None) -> dict[str, Any]:
    """What a comparison needs of one run."""
    experiment, state = load_state(folder)
    setting, sizes = experiment.setting, experiment.task.sizes
    true = open_truth(setting.truth)
    assert true is not None
    looks = final_looks(experiment, state, device)
    given = [torch.from_numpy(labels) for labels in setting.labels.given]
    before = cpu(state.evidence) or start(given, experiment.task.num_classes)
    values = experiment.config.model_dump(mode="json")
    place = place_of(values) or own_place(values)
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return {
        "final": torch.cat([looks[k] for k in range(len(sizes))]).numpy().astype(np.float16),
        "mean": add_looks(before, sizes, looks)["probabilities"].numpy().astype(np.float16),
        "given": torch.cat(given).numpy().astype(np.int16),
        "true": np.concatenate(true).astype(np.int16),
        "sizes": np.array(sizes),
        "accuracy": known_accuracy(experiment, state)[0],
        "per_class": np.array(
            [np.nan if value is None else value for value in state.final_per_class(experiment.config.run.select)]
        ),
        "setting": setting_name or place.title,
        "method": method or place.method_title,
        "seed": experiment.config.run.seed,
        "version": " ".join(filter(None, (environment["packages"].get("fednoil"), environment.get("commit")))),
        REFERENCES: file_of(experiment, Path()).name,
    }


def collect_all(
    names: list[str], out: Path, device: torch.device, setting: str | None = None, method: str | None = None
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = Path(name)
        called = f"{path.parent.name}-{path.name}" if path.name.startswith("seed-") else path.name
        if not (out / f"{called}.npz").exists():
            np.savez_compressed(out / f"{called}.npz", **collect(path, device, setting, method))
            print(f"wrote {out / called}.npz", flush=True)


def refer_all(names: list[str], out: Path, changes: list[str], device: torch.device, seeds: list[int]) -> None:
    (out / REFERENCES).mkdir(parents=True, exist_ok=True)
    configs = []
    for name in names:
        if (file := Path(name) / "config.toml").is_file():
            configs.append((name, load_config(read_toml(file))))
        else:
            values = merge(preset(name), parse_set(changes))
            configs += [(f"{name}, seed {s}", load_config(merge(values, {"run": {"seed": s}}))) for s in seeds]
    for name, config in configs:
        experiment = make_experiment(config)
        path = file_of(experiment, out / REFERENCES)
        if not path.exists():
            np.savez_compressed(path, **references(experiment, device))
        print(f"{name}: {path}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "collect", "references", "compare"])
    parser.add_argument("names", nargs="+", help="presets, run folders, or files and folders of what was collected")
    parser.add_argument("--out", type=Path, default=Path("runs/audit"))
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--seeds", default="0", help="as 0..4 or 0,3; for presets")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--setting", help="what the setting of these runs is called")
    parser.add_argument("--method", help="what their method is called")
    parser.add_argument("--csv", type=Path, default=table.RESULTS, help="where the rows of a comparison go")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compare")
    options = parser.parse_args()
    device, seeds = pick_device(options.device), parse_seeds(options.seeds)
    if options.what == "train":
        train(options.names, options.out, options.changes, options.device, seeds)
    elif options.what == "collect":
        collect_all(options.names, options.out, device, options.setting, options.method)
    elif options.what == "references":
        refer_all(options.names, options.out, options.changes, device, seeds)
    else:
        from comparison import compare_all  # which needs cleanlab

        rows = compare_all(options.names, options.jobs)
        print(table.table(rows))
        table.add(options.csv, rows)
        table.write_page()


if __name__ == "__main__":
    sys.exit(main())
