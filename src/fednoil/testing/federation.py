"""A tiny federation in memory, played under circumstances that must not matter, with all messages recorded."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fednoil import noise, partition, rounds
from fednoil.config.loading import load_config
from fednoil.config.schema import Config
from fednoil.data.dataset import Dataset, Split
from fednoil.executors.base import Executor, HeldOut, Job, Look, Progress, Result
from fednoil.experiment import Experiment, assemble, make_executor
from fednoil.history import RoundRecord
from fednoil.labels import Truth, open_truth
from fednoil.records.checkpoint import Checkpoints
from fednoil.sampling import Scoring
from fednoil.seeds import Seed
from fednoil.servers import server_class
from fednoil.setting import Setting
from fednoil.tensors import Tensors

CLASSES = 4
ROUNDS = 3


class NotConforming(AssertionError):
    """A method breaks the contract; the text says how."""


@dataclass(frozen=True)
class Circumstances:
    """What must not change a run's results."""

    generators: int = 0  # state of the process's global random generators
    backwards: bool = False  # the order in which clients train
    checkpoints: bool = False  # saved, loaded and rebuilt after every round
    garbage: bool = False  # true labels replaced by wrong ones


@dataclass
class Trace:
    """A run with all messages: per round the jobs of the trained clients, their results, and more."""

    state: rounds.RunState
    records: list[RoundRecord] = field(default_factory=list)
    jobs: list[list[Job]] = field(default_factory=list)
    results: list[list[Result]] = field(default_factory=list)
    asked: dict[int, list[Job]] = field(
        default_factory=dict
    )  # by round, the jobs of clients that reviewed their labels
    answers: dict[int, list[Result]] = field(default_factory=dict)  # and what they answered


def tiny_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """A convolution with BatchNorm and a linear layer."""
    channels, height, width = image_shape
    conv = nn.Conv2d(channels, 3, 3, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * height * width, num_classes))


def plain_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """A model in which the samples of a batch don't affect each other."""
    channels, height, width = image_shape
    conv = nn.Conv2d(channels, 3, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(3 * height * width, num_classes))


def tiny_config(
    server: dict[str, Any], learner: dict[str, Any], sampling: dict[str, Any] | None = None, *, vectors: bool = False
) -> Config:
    """Four clients of different sizes with half to four fifths of their labels wrong; three trained a round."""
    model = {"name": "mlp", "width": 6} if vectors else {"name": f"{__name__}:tiny_model"}
    pools = server_class(str(server["name"])).pools  # then there are no clients to choose from
    choice = {} if pools else sampling or {"name": "score", "fraction": 0.75}
    return load_config(
        {
            "partition": {"kind": "dirichlet", "clients": 4, "min_size": 9, "beta": 2.0},
            "noise": {"kind": "symmetric", "ratios": [0.5, 0.6, 0.7, 0.8]},
            "model": model,
            "sampling": choice,
            "server": server,
            "learner": learner,
            "schedule": {"name": "constant", "epochs": 1},
            "train": {"rounds": ROUNDS, "batch_size": 8, "lr": 0.02, "pad": 1},
            "run": {
                "device": "cpu",
                "seed": 1,
                "precision": "float32",
            },  # with 1, unlike 0, a client trains, pauses and trains again
        }
    )


def tiny_setting(config: Config) -> Setting:
    """Images of 6×6 with a brightness that shows the class, or vectors for an `mlp`, dealt and with noise as
    configured."""
    rng = np.random.default_rng(0)
    vectors = config.model.name == "mlp"

    def split(count: int) -> Split:
        labels = np.arange(count) % CLASSES
        if vectors:
            rows = rng.normal(size=(count, CLASSES + 1)) + 2 * np.eye(CLASSES, CLASSES + 1)[labels]
            return Split(rows.astype(np.float32), labels.astype(np.int64))
        images = rng.integers(0, 60, size=(count, 1, 6, 6)) + 60 * labels[:, None, None, None]
        return Split(images.astype(np.uint8), labels.astype(np.int64))

    scale = ((0.0,) * (CLASSES + 1), (1.0,) * (CLASSES + 1)) if vectors else ((0.5,), (0.3,))
    dataset = Dataset("tiny", split(64), split(24), tuple("abcd"), *scale)
    seed = Seed(config.run.seed)
    parts = partition.partition(dataset.train.labels, CLASSES, config.partition, seed)
    return Setting(dataset, parts, *noise.apply(dataset, parts, config.noise, seed))


def with_garbage(setting: Setting) -> Setting:
    """The same images and given labels, with every true label of the training set changed."""
    true = open_truth(setting.truth)
    assert true is not None
    train = replace(setting.dataset.train, labels=(setting.dataset.train.labels + 1) % CLASSES)
    truth = Truth(tuple((labels + 1) % CLASSES for labels in true))
    return replace(setting, dataset=replace(setting.dataset, train=train), truth=truth)


class Recording:
    """An executor that records its jobs and results."""

    def __init__(self, inner: Executor, backwards: bool, trace: Trace) -> None:
        self.inner, self.backwards, self.trace = inner, backwards, trace

    @property
    def slower(self) -> str | None:
        return self.inner.slower

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        return self.inner.scores(jobs[::-1] if self.backwards else jobs, sampling)

    def review(self, jobs: Sequence[Job]) -> list[Result]:
        results = self.inner.review(jobs[::-1] if self.backwards else jobs)
        self.trace.asked[jobs[0].turn.round_idx] = list(jobs)
        self.trace.answers[jobs[0].turn.round_idx] = sorted(results, key=lambda r: r.client)
        return results

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        results = self.inner.train(jobs[::-1] if self.backwards else jobs, progress)
        self.trace.jobs.append(list(jobs))
        self.trace.results.append(sorted(results, key=lambda r: r.client))
        return results

    def test_logits(self, model: Tensors) -> Tensor:
        return self.inner.test_logits(model)

    def held_out(self, jobs: Sequence[Job]) -> dict[int, HeldOut]:
        return self.inner.held_out(jobs)


def play(config: Config, circumstances: Circumstances) -> Trace:
    """Three rounds under the given circumstances."""
    setting = tiny_setting(config)
    setting = with_garbage(setting) if circumstances.garbage else setting
    experiment = assemble(config, setting)
    trace = Trace(rounds.start(experiment))
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        _set_generators(circumstances.generators)
        executor = _executor(experiment, circumstances, trace)
        for _ in range(ROUNDS):
            trace.state, record = rounds.play(experiment, executor, trace.state)
            trace.records.append(record)
            if circumstances.checkpoints:
                trace.state = _reloaded(trace.state, Path(folder))
                experiment = assemble(config, setting)  # anything a method hid in its objects is gone
                executor = _executor(experiment, circumstances, trace)
    return trace


def _executor(experiment: Experiment, circumstances: Circumstances, trace: Trace) -> Recording:
    return Recording(make_executor(experiment, torch.device("cpu")), circumstances.backwards, trace)


def _set_generators(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002 (the very generator that a method must not use)
    random.seed(number)


def _reloaded(state: rounds.RunState, folder: Path) -> rounds.RunState:
    Checkpoints(folder, {}).save(state)
    return Checkpoints(folder, {}).load()
