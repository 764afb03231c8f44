"""The same federated rounds for all engines that are compared: the work itself, a plain PyTorch loop, and ours.

Three tasks, all FedAvg. `demo`, which suits a CPU: all 20 clients score their 150 images with the global model, six
are drawn by these scores and trained for an epoch with batches of 30; a CNN of 9,098 parameters. `cnn` and `resnet18`,
for a GPU: CIFAR-10, 100 clients of 500 images, ten drawn at random and trained for five epochs with batches of 50. The
models are averaged, and the mean is tested on the whole test set. Optimiser, data and labels are the same objects; the
loop and the peers work on images that are normalised once and lie on the device, ours normalises each batch.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednoil import rounds
from fednoil.config import load_config
from fednoil.data import open_source
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.looks import TEMPERATURE
from floor import PlainCNN, plain_resnet18

Model = dict[str, Tensor]
Round = tuple[float, Sequence[Tensor]]  # test accuracy in percent, and the model
TESTED = 1000  # images of a forward pass of the test


class Style(NamedTuple):
    """How PyTorch computes in the loop and in the peers that let their user choose."""

    half: bool = False  # bfloat16 by autocast, and channels_last
    compiled: bool = False  # by torch.compile, with its CUDA graphs


EAGER = Style()


@dataclass(frozen=True)
class Task:
    """A task's sizes; `made_up`: noise instead of CIFAR-10, of the sizes given here."""

    name: str = "demo"
    clients: int = 20
    selected: int = 6
    samples: int = 150
    epochs: int = 1
    batch: int = 30
    made_up: bool = False

    @property
    def steps(self) -> int:
        """Of all clients in a round."""
        return self.selected * self.epochs * (self.samples // self.batch)

    def values(self) -> dict[str, Any]:
        """Our configuration."""
        demo = self.name == "demo"
        train = {"rounds": 1000, "batch_size": self.batch, "pad": 0, "flip": False}
        return {
            "data": {} if demo else {"name": "cifar10"},
            "partition": {"clients": self.clients},
            "noise": {"kind": "symmetric" if demo else "none"},
            "model": {"name": "peer_work:SmallCNN" if demo else self.name},
            "server": {"name": "fedavg"},
            "sampling": {"name": "score" if demo else "uniform", "fraction": self.selected / self.clients},
            "learner": {"name": "erm"},
            "schedule": {"epochs": self.epochs},
            "train": train if demo else train | {"weight_decay": 0.0},  # which FedJAX doesn't have
        }


SIZES = ("clients", "selected", "samples", "epochs", "batch")
TASKS = {"demo": Task()} | {name: Task(name, 100, 10, 500, 5, 50) for name in ("cnn", "resnet18")}


class SmallCNN(nn.Sequential):
    """9,098 parameters: so little arithmetic that the cost of the engine shows."""

    channels_last = True  # may have its images in that layout; which layout they have is up to the engine

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        blocks: list[nn.Module] = []
        for inputs, outputs in ((image_shape[0], 8), (8, 16)):
            blocks += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(16 * 7 * 7, num_classes))


def task_of(name: str, **sizes: int) -> Task:
    """A task, on noise if it has other numbers of clients or samples, or CIFAR-10 isn't there."""
    lacks = name != "demo" and (sizes.keys() & {"clients", "samples"} or not open_source("cifar10").where())
    return replace(TASKS[name], **sizes, made_up=bool(lacks))


def as_usual(ours: bool = False) -> None:
    """The usual advice for networks with fixed shapes on a GPU: cuDNN tries its algorithms, and float32 is TF32. Ours
    sets what it needs itself."""
    torch.backends.cudnn.benchmark = not ours
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not ours


def experiment_of(task: Task) -> Experiment:
    """Our experiment; noise has the sizes of CIFAR-10's images."""
    if not task.made_up:
        return make_experiment(load_config(task.values()))
    rng, count = np.random.default_rng(0), task.clients * task.samples
    images, labels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 10
    with tempfile.TemporaryDirectory() as folder:
        file, test = Path(folder) / "noise.npz", min(10 * TESTED, count)
        np.savez(file, x_train=images, y_train=labels, x_test=images[:test], y_test=labels[:test])
        return make_experiment(load_config(task.values() | {"data": {"name": f"npz:{file}"}}))


class Work:
    """What a client and the server do in a round, in plain PyTorch: for the loop and for the peers."""

    def __init__(self, task: Task = TASKS["demo"], device: str = "cpu") -> None:
        self.task, self.device = task, device
        self.experiment = experiment_of(task)
        setting, train = self.experiment.setting, self.experiment.config.train
        mean, std = (torch.tensor(v, device=device).view(1, -1, 1, 1) for v in self.experiment.normalisation)

        def ready(images: Any) -> Tensor:
            return (torch.tensor(images).to(device).float() / 255 - mean) / std

        images = ready(setting.dataset.train.images)
        pairs = zip(setting.parts, setting.labels.given, strict=True)
        self.clients = [
            (images[torch.tensor(part).to(device)], torch.tensor(given).to(device)) for part, given in pairs
        ]
        self.test = ready(setting.dataset.test.images), torch.tensor(setting.dataset.test.labels).long().to(device)
        self.sgd = partial(torch.optim.SGD, momentum=train.momentum, weight_decay=train.weight_decay)
        if device == "cuda":
            self.sgd = partial(self.sgd, fused=True)
        self.lr = train.lr
        # The layers of our own networks have kernels of ours on a GPU; the peers have PyTorch's.
        plain = {"cnn": partial(PlainCNN, shape=(3, 32, 32)), "resnet18": plain_resnet18}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = plain[task.name]() if task.name in plain else self.experiment.build_model("model")
        self.model: nn.Module = model.to(device)

    def arithmetic(self, style: Style) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device, torch.bfloat16) if style.half else contextlib.nullcontext()

    def local(self, style: Style = EAGER) -> nn.Module:
        """A model for a client to train."""
        model = copy.deepcopy(self.model)
        return model.to(memory_format=torch.channels_last) if style.half else model

    @torch.no_grad()
    def score(self, model: nn.Module, client: int) -> float:
        """Σ of the confidences in the given labels: what a client sends to the server."""
        images, labels = self.clients[client]
        probs = torch.softmax(model(images) / TEMPERATURE, dim=1)
        return float(probs.gather(1, labels[:, None]).sum())

    def drawn(self, model: nn.Module, number: int, scores: list[float] | None = None) -> list[int]:
        """The clients of a round: distinct ones, in `demo` by their scores."""
        if self.task.name != "demo":
            return torch.randperm(self.task.clients, generator=seeded(number))[: self.task.selected].tolist()
        scores = scores or [self.score(model, k) for k in range(self.task.clients)]
        return torch.multinomial(torch.tensor(scores), self.task.selected, generator=seeded(number)).tolist()

    def orders(self, client: int, number: int) -> Tensor:
        """The samples of a client's steps in a round [steps, batch], on the device."""
        generator, size = seeded(number, client), len(self.clients[client][1])
        orders = [torch.randperm(size, generator=generator) for _ in range(self.task.epochs)]
        return torch.stack(orders).view(-1, self.task.batch).to(self.device)

    def train(self, model: nn.Module, client: int, number: int, style: Style = EAGER, compiled: Any = None) -> None:
        """A client's epochs in a round; `compiled` shares the parameters of `model`."""
        images, labels = self.clients[client]
        if style.half:
            images = images.contiguous(memory_format=torch.channels_last)
        sgd, forward = self.sgd(model.parameters(), lr=self.lr), compiled or model
        model.train()
        for chosen in self.orders(client, number):
            sgd.zero_grad()
            with self.arithmetic(style):
                loss = F.cross_entropy(forward(images[chosen]), labels[chosen])
            loss.backward()
            sgd.step()

    @torch.no_grad()
    def accuracy(self, model: nn.Module, style: Style = EAGER) -> float:
        images, labels = self.test
        model.eval()
        with self.arithmetic(style):
            parts = zip(images.split(TESTED), labels.split(TESTED), strict=True)
            right = [(model(x).argmax(1) == y).sum() for x, y in parts]
        return 100 * float(torch.stack(right).sum()) / len(labels)


def seeded(*numbers: int) -> torch.Generator:
    """A generator for these numbers alone: no engine's draws depend on another's."""
    seed = int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(seed % 2**63)


def mean_of(models: list[Model]) -> Model:
    """All clients have as many images; BatchNorm's counters are the same for all."""
    return {
        name: torch.stack([m[name] for m in models]).mean(0) if first.is_floating_point() else first
        for name, first in models[0].items()
    }


def plain_rounds(work: Work, style: Style = EAGER) -> Iterator[Round]:
    """The plain loop."""
    server, local, number = work.local(style), work.local(style), 0
    compiled = torch.compile(local, mode="reduce-overhead") if style.compiled else None
    while True:
        models, number = [], number + 1
        for client in work.drawn(server, number):
            local.load_state_dict(server.state_dict())
            work.train(local, client, number, style, compiled)
            models.append({name: t.clone() for name, t in local.state_dict().items()})
        server.load_state_dict(mean_of(models))
        yield work.accuracy(server, style), list(server.state_dict().values())


def our_rounds(experiment: Experiment, device: str = "cpu") -> Iterator[Round]:
    """The executor of that device."""
    place = torch.device(device)
    executor = make_executor(experiment, place)
    state = rounds.placed(rounds.start(experiment), place)
    while True:
        state, record = rounds.play(experiment, executor, state)
        assert record.test_accuracy is not None
        yield record.test_accuracy, list(state.server.tensors.values())
