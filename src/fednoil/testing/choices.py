"""Checks of a sampling, a schedule, a model and a data source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fednoil import data, models, sampling, schedules
from fednoil.config.loading import load_config
from fednoil.sampling import Sampling, Scoring
from fednoil.schedules import Schedule
from fednoil.seeds import Seed
from fednoil.testing.checks import check_method
from fednoil.testing.federation import NotConforming
from fednoil.testing.setting import path_of, refused, untouched_generators

_SHAPES = ((1, 28, 28), (3, 32, 32))
_ROUNDS = 300


def check_sampling(own: str | type, **keys: Any) -> None:
    """Check a sampling, `my_module:MySampling` or the class itself; `keys` are its own."""
    name = path_of(own)
    made = sampling.make(refused(lambda: load_config({"sampling": {"name": name, **keys}}), name).sampling)
    for clients in (1, 2, 5, 10, 11, 50):
        _check_draws(made, clients, f"{name} with {clients} clients")
    if isinstance(made, Scoring):
        for size in (1, 7, 40):
            _check_score(made, size, f"{name}: the score of {size} confidences")
    check_method({"name": "fedavg"}, {"name": "erm"}, {"fraction": 0.75, **keys, "name": name})


def _check_draws(made: Sampling, clients: int, where: str) -> None:
    count = made.count(clients)
    if not isinstance(count, int) or not 1 <= count <= clients:
        raise NotConforming(f"{where}: `count` gives {count!r}, not a whole number from 1 to {clients}")
    rng = np.random.default_rng(clients)
    for scores in ([1.0] * clients, [0.0] * clients, (rng.random(clients) * 20).tolist()):
        shares = made.shares(scores)
        if len(shares) != clients or not all(share >= 0 for share in shares) or abs(sum(shares) - 1) > 1e-9:
            raise NotConforming(f"{where}: `shares` must give one probability per client, not negative, with sum 1")
        drawn = []
        for number in (0, 1):
            with untouched_generators(number, where):
                drawn.append(made.draw(shares, count, Seed(3).child(clients)))
        if drawn[0] != drawn[1]:
            raise NotConforming(f"{where}: `draw` differs with the same seed; draw from the seed alone")
        if len(drawn[0]) != count or len(set(drawn[0])) != count or not set(drawn[0]) <= set(range(clients)):
            raise NotConforming(f"{where}: `draw` gives {drawn[0]}, not {count} different places below {clients}")


def _check_score(made: Scoring, size: int, where: str) -> None:
    """A score lies between 0 and `largest`, and one sample changes it by no more than `sensitivity` says."""
    least, most = made.scores([torch.zeros(size), torch.ones(size)])
    some = torch.linspace(0, 1, size)
    for score in (least, most, *made.scores([some])):
        if not 0 <= score <= made.largest(size) * (1 + 1e-9):
            raise NotConforming(f"{where} is {score}, which is not in 0..{made.largest(size)} (`largest`)")
    for place in range(size):
        ends = [some.clone(), some.clone()]
        for value, end in enumerate(ends):
            end[place] = value
        low, high = made.scores(ends)
        if abs(high - low) > made.sensitivity(size) * (1 + 1e-9):
            raise NotConforming(
                f"{where} changes by {abs(high - low):g} with one of them, more than `sensitivity`: the noise that "
                "should hide one sample would be too small"
            )


def check_schedule(own: str | type, **keys: Any) -> None:
    """Check a schedule, `my_module:MySchedule` or the class itself; `keys` are its own."""
    name = path_of(own)
    config = refused(lambda: load_config({"schedule": {"name": name, **keys}}), name).schedule
    for rounds, large, size in itertools.product((_ROUNDS, 1), (False, True), (20, 5000)):
        twice = [schedules.make(config).fitted(rounds, large=large, sizes=[size] * 4) for _ in range(2)]
        _check_epochs(twice, rounds, name)


def _check_epochs(twice: Sequence[Schedule], rounds: int, name: str) -> None:
    """Two objects of the same schedule, asked forwards and backwards."""
    first, second = twice
    forwards = [first.epochs(r) for r in range(1, rounds + 1)]
    for round_idx, epochs in enumerate(forwards, start=1):
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise NotConforming(f"{name}: round {round_idx} has {epochs!r} epochs, not a whole number of at least 1")
    if [second.epochs(r) for r in range(rounds, 0, -1)] != forwards[::-1]:
        raise NotConforming(f"{name}: epochs depend on earlier calls; keep nothing on the object")
    if second.total(rounds) != sum(forwards):
        raise NotConforming(f"{name}: `total` is not the sum of all rounds' epochs")


def check_model(own: str | type, shapes: Sequence[tuple[int, int, int]] = _SHAPES, **keys: Any) -> None:
    """Check a model, `my_module:factory` or the class itself, on images of `shapes` (channels, height, width)."""
    name = path_of(own)
    config = refused(lambda: load_config({"model": {"name": name, **keys}}), name).model
    for shape in shapes:
        for classes in (2, 10):
            where = f"{name} on images of shape {shape} and {classes} classes"
            made = []
            for number, seed in enumerate((1, 1, 2)):
                with untouched_generators(number, where):
                    made.append(refused(partial(models.build, config, shape, classes, Seed(seed)), where))
            first, again, other = (list(module.state_dict().values()) for module in made)
            if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
                raise NotConforming(f"{where}: the same seed gives different weights; draw from torch's generator only")
            if all(torch.equal(a, b) for a, b in zip(first, other, strict=True)):
                raise NotConforming(f"{where}: another seed gives the same weights; initialise them at random")
            _check_gradients(made[0], shape, classes, where)


def _check_gradients(module: nn.Module, shape: tuple[int, int, int], classes: int, where: str) -> None:
    images = torch.rand(8, *shape, generator=torch.Generator().manual_seed(0))
    logits = module.train()(images)
    nn.functional.cross_entropy(logits, torch.arange(8) % classes).backward()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (parameter.grad is None or not torch.isfinite(parameter.grad).all()):
            raise NotConforming(
                f"{where}: a step gives '{name}' no finite gradient; use it, or set requires_grad to False"
            )


def check_source(own: str | type, data_dir: Path | None = None, **keys: Any) -> None:
    """Check a data source, `my_module:MySource`, `folder:PATH` or the class itself; `keys` are its own."""
    name = path_of(own)
    config = refused(lambda: load_config({"data": {"name": name, **keys}}), name).data
    found = []
    for number in (0, 1):
        with untouched_generators(number, name):
            source = data.open_source(config, data_dir)
            found.append(refused(lambda source=source: data.load(source.config, data_dir), name))
    if found[0].hash != found[1].hash:
        raise NotConforming(f"{name}: reading it twice gives different images, labels or class names")
    dataset = found[0]
    for part, split in (("training", dataset.train), ("test", dataset.test)):
        form = (split.images.dtype.name, split.images.ndim)
        if form not in (("uint8", 4), ("float32", 2)) or split.labels.dtype != np.int64:
            raise NotConforming(
                f"{name}: {part} images must be uint8 [N, C, H, W] or vectors float32 [N, D], labels int64; return "
                "what `assemble` makes"
            )
    if dataset.about.items and len(set(dataset.about.items)) != len(dataset.train):
        raise NotConforming(f"{name}: `About.items` must give each training image a different name")
    if source.cached and source.files() is None:
        raise NotConforming(f"{name}: `cached` needs `files`, so that a changed file is read again")
    if source.own:
        _check_labelled(source, dataset, name)


def _check_labelled(source: data.Source, dataset: data.Dataset, where: str) -> None:
    """What an audit reads: the training images one by one, each with a label of its classes."""
    raw = refused(source.labelled, where)
    if not len(raw.items) == len(raw.labels) == len(raw.pictures) or len(set(raw.items)) != len(raw.items):
        raise NotConforming(f"{where}: `labelled` must give each image a different item, one label and one picture")
    if len(raw.items) < len(dataset.train) or raw.labels.min() < 0 or raw.labels.max() >= dataset.num_classes:
        raise NotConforming(f"{where}: `labelled` must give the training images with labels of its classes")
