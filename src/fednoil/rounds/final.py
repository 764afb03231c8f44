"""What a run's final model says about the samples of all clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fednoil import evidence
from fednoil.experiment import Experiment, make_bench, resident
from fednoil.learners.base import Client
from fednoil.measures import mean_measures, measure
from fednoil.partition.local import local_tests
from fednoil.rounds.state import RunState
from fednoil.setting import Sites
from fednoil.tensors import Tensors, cpu

_COPIED = 1 << 28  # bytes of images that are copied at once


def known_accuracy(experiment: Experiment, state: RunState) -> tuple[float | None, tuple[float | None, ...]]:
    """The accuracy of the final model on the test set, as the mean over its classes and of each class, in percent.

    Not known where the test images were held out of the training images: their labels may be as wrong as the others.
    """
    if experiment.setting.dataset.about.held_out:
        return None, ()
    by_class = state.final_per_class(experiment.config.run.select)
    known = [value for value in by_class if value is not None]
    return sum(known) / len(known) if known else None, by_class


def final_bundle(experiment: Experiment, state: RunState, device: torch.device) -> Tensors:
    """All clients' evidence with the final model's look as the last one, on the host."""
    assert not isinstance(experiment.setting, Sites)
    given = [torch.from_numpy(labels) for labels in experiment.setting.labels.given]
    sizes = experiment.task.sizes
    before = cpu(state.evidence) or evidence.start(given, experiment.task.num_classes)
    return evidence.add_looks(before, sizes, final_looks(experiment, state, device))


def final_looks(experiment: Experiment, state: RunState, device: torch.device) -> dict[int, torch.Tensor]:
    """Class probabilities [n, C] of each client's samples by its final model, by client."""
    return looks_at(experiment, state, device, dict(enumerate(experiment.setting.parts)))


def measured(experiment: Experiment, state: RunState, device: torch.device) -> dict[str, Any]:
    """All measures of the final model: on the test set, and by client on the client's own test samples (those that are
    said to be its own, or a part of the test set with its mix of classes) or, where labels may be wrong, on the given
    labels that it holds out. What can't be measured here is absent."""
    setting, final, bench = (
        experiment.setting,
        state.final(experiment.config.run.select),
        make_bench(experiment, device),
    )
    test, found, tested = setting.dataset.test, dict[str, Any](), dict[int, torch.Tensor]()
    if len(test):
        images, labels = resident(test.images, device), torch.from_numpy(test.labels)
        models = [model for model in experiment.server.scored(final, state.keep) if model.weight > 0]
        tested = {id(model.tensors): bench.logits(model.tensors, images) for model in models}
        each = [measure(tested[id(model.tensors)], labels) for model in models]
        found["test"] = mean_measures(each, [model.weight for model in models]).to_json()
    if isinstance(setting, Sites):
        return found
    images, (what, parts) = setting.dataset, _local(experiment)
    pool = images.test.images if what == "test samples" else images.train.images
    clients = {}
    for k, (rows, labels) in parts.items():
        model = experiment.server.own_model(experiment.server.model_for(final, k), state.keep.get(k, {}))
        if what == "test samples" and id(model) in tested:  # of a model that `models` keeps
            logits = tested[id(model)][torch.from_numpy(rows).to(device)]
        else:
            logits = torch.cat([bench.logits(model, resident(pool[some], device)) for some in _spans(rows, pool)])
        name = setting.names[k] if setting.names else str(k)
        clients[name] = measure(logits, torch.from_numpy(labels)).to_json()
    return found | ({"clients": clients, "clients_on": what} if clients else {})


def _spans(rows: np.ndarray, pool: np.ndarray) -> list[np.ndarray]:
    """Rows by and by: a client's images may be more than fit in memory."""
    step = max(1, _COPIED // max(1, pool[:1].nbytes))
    return [rows[start : start + step] for start in range(0, len(rows), step)]


def _local(experiment: Experiment) -> tuple[str, dict[int, tuple[np.ndarray, np.ndarray]]]:
    """What each client is tested on by itself: rows and labels by client."""
    setting, tested = experiment.setting, experiment.setting.dataset.about.tested
    if tested is not None and tested.names == setting.names:
        labels = setting.dataset.test.labels
        rows = {k: np.flatnonzero(tested.numbers == k) for k in range(setting.num_clients)}
        return "test samples", {k: (own, labels[own]) for k, own in rows.items() if len(own)}
    held, dataset = setting.validation, setting.dataset
    if setting.truth.known and len(dataset.test) and not dataset.about.held_out and setting.num_clients > 1:
        trained, labels = [dataset.train.labels[part] for part in setting.parts], dataset.test.labels
        own = local_tests(trained, labels, dataset.num_classes, experiment.seed)
        return "test samples", {k: (rows, labels[rows]) for k, rows in enumerate(own) if len(rows)}
    if held is None:
        return "", {}
    return "held-out given labels", dict(enumerate(zip(held.parts, held.given, strict=True)))


def looks_at(
    experiment: Experiment, state: RunState, device: torch.device, parts: Mapping[int, np.ndarray]
) -> dict[int, torch.Tensor]:
    """Class probabilities [n, C] of these rows of the training set, by the final model of the client that has them."""
    final = state.final(experiment.config.run.select)
    bench, images, loaded, looks = make_bench(experiment, device), experiment.setting.dataset.train.images, None, {}
    for k, part in parts.items():
        received = experiment.server.model_for(final, k)
        if received is not loaded:
            bench.load(received, {})
            loaded = received
        whole = device.type == "cpu"  # where images stay where they are; a GPU is given one client's at a time
        pool = resident(images if whole else images[part], device)
        index = torch.from_numpy(part.astype(np.int64)) if whole else torch.arange(len(part), device=device)
        logits = bench.look(Client(k, pool, index, index))
        looks[k] = torch.softmax(logits, 1).cpu()
    return looks
