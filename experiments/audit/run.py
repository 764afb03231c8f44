"""How well wrong labels are found, against cleanlab on one place's data and against local models.

    python experiments/audit/run.py train PRESET... --out DIR      # runs, a folder each; any `fednoil run` will do
    python experiments/audit/run.py collect RUN... --out DIR       # per run one .npz: probabilities, labels, references
    python experiments/audit/run.py compare DIR --csv results.csv  # needs cleanlab; prints the table of the README

`train` and `collect` need PyTorch alone and work on a GPU as well; `compare` needs no GPU. What is collected, for N
samples of all clients one after another and C classes:

    final  float16 [N, C]  the final model's class probabilities
    mean   float16 [N, C]  those over all rounds, as the evidence has them with the final look
    cv     float16 [N, C]  out-of-fold probabilities of five models trained on all clients' data together
    local  float32 [N]     loss of each given label under its client's own model, trained on its own data alone
    given, true [N], sizes [K], and the run's final accuracy
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fednoil import metrics, noise
from fednoil.audit import estimate
from fednoil.audit.cases import final_bundle, final_looks, load_run
from fednoil.config import load_config, preset
from fednoil.config.loading import merge, parse_set
from fednoil.executors.base import Job
from fednoil.experiment import Experiment, assemble, make_bench, make_executor, pick_device
from fednoil.learners.base import Turn
from fednoil.records.folder import RunFolder
from fednoil.runner import run
from fednoil.tensors import Tensors

FOLDS = 5
STAGES = (5, 5, 10, 20)  # epochs after which a fold's models are looked at: 5, 10, 20, 40
LOCAL_EPOCHS = 20


class Lines:
    """A line a round; needs nothing that a machine with a GPU may lack."""

    def start(self, *_: Any) -> None: ...

    def local(self, share: float) -> None: ...

    def round(self, record: dict[str, Any]) -> None:
        print(f"round {record['round']}: {record['test_accuracy']:.2f} %, {record['wall_s']:.1f} s", flush=True)

    def finish(self, summary: dict[str, Any], folder: Path) -> None:
        print(f"{folder}: {summary['final_accuracy']:.2f} %", flush=True)


def train(settings: list[str], out: Path, changes: list[str], device: str) -> None:
    """One run for each preset's name, in a folder of its name with dashes."""
    for name in settings:
        values = merge(preset(name), parse_set([*changes, f"run.device={device}"]))
        run(load_config(values), out / name.replace("/", "-"), Lines(), resume=True)


def collect(folder: Path, device: torch.device) -> dict[str, Any]:
    """All that a comparison needs of one run."""
    experiment, state = load_run(folder)
    setting, sizes = experiment.setting, experiment.task.sizes
    assert setting.truth.labels is not None
    looks = final_looks(experiment, state, device)
    return {
        "final": torch.cat([looks[k] for k in range(len(sizes))]).numpy().astype(np.float16),
        "mean": final_bundle(experiment, state, device)["probabilities"].numpy().astype(np.float16),
        "cv": cross_validated(experiment, device).astype(np.float16),
        "local": local_losses(experiment, device).astype(np.float32),
        "given": np.concatenate(setting.labels.given).astype(np.int16),
        "true": np.concatenate(setting.truth.labels).astype(np.int16),
        "sizes": np.array(sizes),
        "accuracy": RunFolder(folder).summary()["final_accuracy"],
    }


def plain(experiment: Experiment, rows: list[np.ndarray], given: list[np.ndarray]) -> Experiment:
    """The same data and model with cross-entropy, and with `rows` dealt to as many clients."""
    values = experiment.config.model_dump(mode="json", exclude_none=True)
    values |= {"server": {"name": "fedavg", "client_fraction": 1.0}, "learner": {"name": "erm"}}
    labels = noise.Labels(tuple(given), (0,) * len(rows))
    setting = replace(experiment.setting, parts=tuple(rows), labels=labels, truth=noise.Truth(None))
    return assemble(load_config(values), setting)


def trained(
    experiment: Experiment, models: list[Tensors], epochs: int, stage: int, device: torch.device
) -> list[Tensors]:
    """Each client's model after so many epochs on its own data."""
    jobs = [
        Job(k, model, {}, Turn(stage, epochs, experiment.seed.child("audit", "stage", stage, "client", k)))
        for k, model in enumerate(models)
    ]
    results = sorted(make_executor(experiment, device).train(jobs), key=lambda r: r.client)
    return [result.tensors for result in results]


def cross_validated(experiment: Experiment, device: torch.device) -> np.ndarray:
    """Out-of-fold probabilities [N, C], after the number of epochs whose predictions agree most with given labels."""
    pooled = experiment.setting.pooled()
    index, given = pooled.parts[0], pooled.labels.given[0]
    fold = experiment.seed.child("audit", "folds").numpy().permutation(len(index)) % FOLDS
    inside = [np.flatnonzero(fold != f) for f in range(FOLDS)]
    folds = plain(experiment, [index[rows] for rows in inside], [given[rows] for rows in inside])
    bench, images = make_bench(folds, device), experiment.setting.dataset.train.images
    start = {name: tensor.to(device) for name, tensor in folds.initial_model().items()}
    models, best, agreed = [start] * FOLDS, np.empty(0), -1.0
    for stage, epochs in enumerate(STAGES, start=1):
        models = trained(folds, models, epochs, stage, device)
        found = np.zeros((len(index), experiment.task.num_classes))
        for f, model in enumerate(models):
            rows = np.flatnonzero(fold == f)
            logits = bench.logits(model, torch.from_numpy(images[index[rows]]).to(device))
            found[rows] = torch.softmax(logits, 1).cpu().numpy()
        agreement = float((found.argmax(1) == given).mean())
        if agreement > agreed:
            best, agreed = found, agreement
    return best


def local_losses(experiment: Experiment, device: torch.device) -> np.ndarray:
    """The loss [N] of each label under a model that its client trained alone."""
    setting = experiment.setting
    alone = plain(experiment, list(setting.parts), list(setting.labels.given))
    start = {name: tensor.to(device) for name, tensor in alone.initial_model().items()}
    models = trained(alone, [start] * setting.num_clients, LOCAL_EPOCHS, 1, device)
    bench, losses = make_bench(alone, device), []
    for part, given, model in zip(setting.parts, setting.labels.given, models, strict=True):
        logits = bench.logits(model, torch.from_numpy(setting.dataset.train.images[part]).to(device))
        losses.append(F.cross_entropy(logits, torch.from_numpy(given).to(device), reduction="none").cpu().numpy())
    return np.concatenate(losses)


def compare(path: Path) -> list[dict[str, Any]]:
    """One row a method: AUROC, average precision and F1 over all samples and as the mean over clients, noise ratios."""
    from fednoil.audit import peer

    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    given, true = data["given"].astype(np.int64), data["true"].astype(np.int64)
    spans = np.split(np.arange(len(given)), np.cumsum(data["sizes"])[:-1])

    def per_client(method: Any, probabilities: np.ndarray) -> list[Any]:
        return [method(probabilities[rows], given[rows], np.random.default_rng(0)) for rows in spans]

    mean, final, cv = (data[name].astype(np.float64) for name in ("mean", "final", "cv"))
    pooled = peer.estimate(cv, given, np.random.default_rng(0))
    found: dict[str, list[Any]] = {
        "ours": per_client(estimate.estimate, mean),
        "ours, final model alone": per_client(estimate.estimate, final),
        "(a) cleanlab, final model": per_client(peer.estimate, final),
    }
    rows = [_measured(name, spans, given != true, parts) for name, parts in found.items()]
    both = [(pooled.p_wrong[s], pooled.flagged[s]) for s in spans]
    rows.append(_measured("(b) cleanlab, 5-fold on pooled data", spans, given != true, both))
    loss = data["local"].astype(np.float64)
    rows.append(_measured("(c) loss of local models", spans, given != true, [(loss[s], None) for s in spans]))
    return [{"run": path.stem, "accuracy": round(float(data["accuracy"]), 2), **row} for row in rows]


def _measured(name: str, spans: list[np.ndarray], wrong: np.ndarray, parts: list[Any]) -> dict[str, Any]:
    scores = [part[0] if isinstance(part, tuple) else part.p_wrong for part in parts]
    flags = [part[1] if isinstance(part, tuple) else part.flagged for part in parts]
    known = flags[0] is not None
    flags = flags if known else [np.zeros(len(s), bool) for s in spans]
    overall = metrics.detection(np.concatenate(scores), np.concatenate(flags), wrong)
    clients = metrics.mean_of([metrics.detection(s, f, wrong[r]) for s, f, r in zip(scores, flags, spans, strict=True)])
    row: dict[str, Any] = {"method": name}
    for figure in ("auroc", "average_precision", "f1"):
        row |= {figure: overall.get(figure), f"{figure}_clients": clients.get(figure)}
    if not known:
        row |= {"f1": None, "f1_clients": None}
    if not isinstance(parts[0], tuple):
        true = np.array([wrong[rows].mean() for rows in spans])
        errors = np.abs(np.array([part.ratio for part in parts]) - true)
        inside = [p.interval[0] <= t <= p.interval[1] for p, t in zip(parts, true, strict=True)]
        row |= {
            "ratio_error": 100 * errors.mean(),
            "ratio_error_largest": 100 * errors.max(),
            "in_interval": sum(inside),
        }
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The README's table."""
    lines = [
        "| run (accuracy) | method | AUROC | of clients | avg. precision | F1 | noise ratio off by, mean (largest) "
        "| clients in their interval |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = f"{row['ratio_error']:.1f} ({row['ratio_error_largest']:.1f})" if "ratio_error" in row else "–"
        inside = row.get("in_interval", "–")
        f1 = f"{row['f1']:.3f}" if row["f1"] is not None else "–"
        lines.append(
            f"| {row['run']} ({row['accuracy']:.1f}) | {row['method']} | {row['auroc']:.4f} "
            f"| {row['auroc_clients']:.4f} | {row['average_precision']:.4f} | {f1} | {ratio} | {inside} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "collect", "compare"])
    parser.add_argument("names", nargs="+", help="presets, run folders, or files and folders of what was collected")
    parser.add_argument("--out", type=Path, default=Path("runs/audit"))
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    if options.what == "train":
        train(options.names, options.out, options.changes, options.device)
    elif options.what == "collect":
        options.out.mkdir(parents=True, exist_ok=True)
        for name in options.names:
            arrays = collect(Path(name), pick_device(options.device))
            np.savez_compressed(options.out / f"{Path(name).name}.npz", **arrays)
            print(f"wrote {options.out / Path(name).name}.npz", flush=True)
    else:
        paths = [
            p
            for name in options.names
            for p in ([Path(name)] if Path(name).is_file() else sorted(Path(name).glob("*.npz")))
        ]
        rows = [row for path in paths for row in compare(path)]
        print(table(rows))
        if options.csv:
            fields = list(dict.fromkeys(key for row in rows for key in row))
            with options.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, fields)
                writer.writeheader()
                writer.writerows(
                    {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()} for row in rows
                )


if __name__ == "__main__":
    sys.exit(main())
