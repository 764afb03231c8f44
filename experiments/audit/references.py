"""What the audit is compared with if sharing is allowed or there is no federation: (b) models trained on all clients'
data together, each used on the fold it hasn't seen, and (c) a local model of each client.

Both depend on setting and seed only, not on the run they are compared with, so one file serves all methods.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fednoil.config import load_config
from fednoil.executors.base import Job
from fednoil.experiment import Experiment, assemble, make_bench, make_executor
from fednoil.labels import Labels, Truth
from fednoil.learners.base import Turn
from fednoil.records.store import hashes_of
from fednoil.setting import Sites
from fednoil.tensors import Tensors

FOLDS = 5
STAGES = (5, 5, 10, 20)  # epochs after which a fold's models are looked at: 5, 10, 20, 40
LOCAL_EPOCHS = 20


def file_of(experiment: Experiment, folder: Path) -> Path:
    """Where the references of this setting and seed are kept."""
    config = experiment.config.model_dump(mode="json", include={"model", "train"}, exclude_defaults=True)
    config.get("train", {}).pop("rounds", None)
    hashes = hashes_of(experiment)
    known = {
        "config": config,
        "seed": experiment.config.run.seed,
        **{k: hashes[k] for k in ("data_hash", "noise_hash")},
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return folder / f"{digest[:24]}.npz"


def references(experiment: Experiment, device: torch.device) -> dict[str, Any]:
    """`cv` float16 [N, C]: out-of-fold probabilities; `local` float32 [N]: losses under local models."""
    return {
        "cv": cross_validated(experiment, device).astype(np.float16),
        "local": local_losses(experiment, device).astype(np.float32),
    }


def plain(experiment: Experiment, rows: list[np.ndarray], given: list[np.ndarray]) -> Experiment:
    """The same data and model with cross-entropy, and with `rows` dealt to as many clients."""
    values = experiment.config.model_dump(mode="json", exclude_none=True)
    values |= {"server": {"name": "fedavg"}, "sampling": {"fraction": 1.0}, "learner": {"name": "erm"}}
    labels = Labels(tuple(given))
    setting = replace(experiment.setting, parts=tuple(rows), labels=labels, truth=Truth(None))
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
    assert not isinstance(experiment.setting, Sites)
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
    assert not isinstance(setting, Sites)
    alone = plain(experiment, list(setting.parts), list(setting.labels.given))
    start = {name: tensor.to(device) for name, tensor in alone.initial_model().items()}
    models = trained(alone, [start] * setting.num_clients, LOCAL_EPOCHS, 1, device)
    bench, losses = make_bench(alone, device), []
    for part, given, model in zip(setting.parts, setting.labels.given, models, strict=True):
        logits = bench.logits(model, torch.from_numpy(setting.dataset.train.images[part]).to(device))
        losses.append(F.cross_entropy(logits, torch.from_numpy(given).to(device), reduction="none").cpu().numpy())
    return np.concatenate(losses)
