"""From a configuration to everything a run needs: data, clients, noise, model, methods."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fednoil import models, schedules
from fednoil import sampling as samplings
from fednoil.augment.vectors import NOISE_DRAWS
from fednoil.config.schema import Config, TrainConfig
from fednoil.data.base import Normalisation
from fednoil.data.given import Given
from fednoil.data.images import Progress
from fednoil.data.vectors import is_vector
from fednoil.devices import be_deterministic, multiply_in_tf32, networks_on, one_by_one, pick_precision
from fednoil.errors import Slower, UserError
from fednoil.executors.base import Executor
from fednoil.executors.cuda import CudaGraphs
from fednoil.executors.local import Workbench
from fednoil.executors.sequential import Sequential
from fednoil.learners import learner_class
from fednoil.learners.base import Client, Learner, Task, chunks
from fednoil.models.backbone import Backbone
from fednoil.models.balance import balanced
from fednoil.models.base import fitting
from fednoil.models.network import Network, fixed_names
from fednoil.sampling import Sampling
from fednoil.scale import is_large
from fednoil.schedules import Schedule
from fednoil.seeds import Seed
from fednoil.servers import server_class
from fednoil.servers.base import Server
from fednoil.setting import Setting, make_setting
from fednoil.tensors import Tensors, digest, read_tensors


@dataclass(frozen=True)
class Experiment:
    """Everything that a run is made of, apart from where it runs and where it is recorded."""

    config: Config
    setting: Setting
    task: Task
    server: Server
    learner: Learner
    schedule: Schedule
    sampling: Sampling
    template: nn.Module
    seed: Seed
    given: Given | None = None  # the data, if a program handed them over

    def initial_model(self) -> Tensors:
        """The tensors of all shared networks that training changes, before round 1.

        Each has different weights; the first has the same under every method, whatever its name.
        """
        changing, _ = self._initial()
        return changing

    def _initial(self) -> tuple[Tensors, Tensors]:
        """The shared networks before round 1: what training changes, and the rest."""
        changing: Tensors = {}
        fixed: Tensors = {}
        shared = [role.name for role in self.learner.roles if role.shared]
        for place, name in enumerate(shared):
            module = self.build_model("model" if place == 0 else f"model {place}")
            net = Network(module, *self.normalisation, torch.device("cpu"))
            changing |= net.dump(name)
            fixed |= net.dump_fixed(name)
        return changing, fixed

    @cached_property
    def fixed(self) -> Tensors:
        """The parts of the shared networks that no client changes, such as frozen parameters; everybody has them, so
        nobody sends them."""
        if not fixed_names(self.template):
            return {}
        _, fixed = self._initial()
        return self._started(fixed)

    def fixed_hash(self) -> str:
        """SHA-256 of `fixed`; empty if there is nothing."""
        return digest(self.fixed) if self.fixed else ""

    def first_model(self) -> Tensors:
        """What round 1 begins with: the initial model, or the file `model.start` with tensors of the same names.

        A file with the names of one network is for all of them.
        """
        return self._started(self.initial_model())

    def _started(self, own: Tensors) -> Tensors:
        """The initial tensors, or those of the same names in the file `model.start`."""
        path = self.config.model.start
        if path is None:
            return own
        try:
            given = read_tensors(Path(path))
        except UserError as error:
            hint = "; safetensors.torch.save_file writes one, pickles are not read" if Path(path).is_file() else ""
            raise UserError(f"model.start: {error}{hint}") from None
        if isinstance(self.template, Backbone):
            given = self.template.fitted(given)
        if given.keys().isdisjoint(own):
            given = {name: given[bare] for name in own if (bare := name.split("/", 1)[1]) in given}
        may_lack = self.template.optional if isinstance(self.template, Backbone) else lambda name: False
        return fitting(own, given, f"model.start = '{path}'", may_lack)

    @property
    def normalisation(self) -> Normalisation:
        """What networks do to their inputs: a pretrained one as it was trained; vectors are scaled already."""
        dataset, asked = self.setting.dataset, self.config.data
        if is_vector(dataset.image_shape):
            return (), ()
        if isinstance(self.template, Backbone) and asked.normalisation is None:
            mean, std = self.template.normalisation
            return mean, std
        return dataset.mean, dataset.std

    @property
    def training(self) -> TrainConfig:
        """The configuration's `train`, with a number for a weight decay that depends on network and clients."""
        return self.config.train.fitted(large=self.task.large, sizes=self.task.sizes)

    def build_model(self, network: str) -> nn.Module:
        """A model with the initial weights that belong to `network`."""
        dataset = self.setting.dataset
        return models.build(
            self.config.model, dataset.image_shape, dataset.num_classes, self.seed.child("model", network)
        )


def make_experiment(
    config: Config, data_dir: Path | None = None, given: Given | None = None, decoding: Progress | None = None
) -> Experiment:
    """Resolve a configuration; everything random depends on `run.seed` alone. `decoding` is called as images are."""
    setting = make_setting(config, data_dir, Seed(config.run.seed), given, decoding)
    return replace(assemble(config, setting), given=given)


def assemble(config: Config, setting: Setting) -> Experiment:
    """Model and methods for a setting that already exists."""
    seed, cls = Seed(config.run.seed), server_class(config.server.name)
    setting = setting.pooled() if cls.pools else setting
    dataset = setting.dataset
    template = models.build(config.model, dataset.image_shape, dataset.num_classes, seed.child("model"))
    if config.train.balance:
        balanced(template, dataset.num_classes)
    vectors, rounds = is_vector(dataset.image_shape), config.train.rounds
    if not vectors and config.train.pad >= (side := min(dataset.image_shape[1:])):
        pad = config.train.pad
        raise UserError(f"train.pad = {pad} moves images of {side} pixels out of view; give less, such as {side // 8}")
    large, sizes = is_large(template), tuple(len(part) for part in setting.parts)
    sampling = samplings.make(config.sampling)
    schedule = schedules.make(config.schedule).fitted(rounds, large=large, sizes=sizes)
    task = Task(
        num_classes=dataset.num_classes,
        image_shape=dataset.image_shape,
        batch_size=config.train.batch_size,
        lr=config.train.lr,
        rounds=rounds,
        pad=(NOISE_DRAWS if config.train.pad else 0) if vectors else config.train.pad,
        flip=config.train.flip and not vectors,
        sizes=sizes,
        parameters=frozenset(name for name, p in template.named_parameters() if p.requires_grad),
        large=large,
        passes=schedule.total(rounds) * sampling.count(len(sizes)) / len(sizes),
    )
    server = cls(config.server, task)
    learner = server.wrap(learner_class(config.learner.name)(config.learner, task))
    experiment = Experiment(config, setting, task, server, learner, schedule, sampling, template, seed)
    _check_privacy(experiment)
    return experiment


def _check_privacy(experiment: Experiment) -> None:
    """Refuse a model or learner that sends more than what is protected."""
    config, sends = experiment.config, (*experiment.learner.sends, *experiment.learner.reports)
    if (config.privacy.sees == "sum" or config.privacy.noise is not None) and sends:
        key = "sees" if config.privacy.sees == "sum" else "noise"
        raise UserError(
            f"privacy.{key} protects updates alone, and learner.name = '{config.learner.name}' under server.name = "
            f"'{config.server.name}' also sends each client's '{sends[0]}'; use another"
        )
    if config.privacy.noise is None:
        return
    others = {name.split("/", 1)[1] for name in experiment.initial_model()} - experiment.task.parameters
    if others:  # with noise a variance may become negative, and the clip doesn't bound them
        raise UserError(
            f"privacy.noise needs a model without BatchNorm or other buffers, but model.name = '{config.model.name}' "
            f"has '{min(others)}'; use another model, or no noise"
        )


def make_bench(experiment: Experiment, device: torch.device) -> Workbench:
    """A place for one client's work."""
    config = experiment.config
    networks = networks_on(config, device)
    half = pick_precision(config.run.precision, networks) == "bfloat16"
    dtype = torch.bfloat16 if half else torch.float32
    made_of = experiment.learner, experiment.template, experiment.normalisation, experiment.training
    return Workbench(*made_of, device, dtype, experiment.fixed, networks)


def make_executor(experiment: Experiment, device: torch.device) -> Executor:
    """Put the data on the device once and make the executor that works there."""
    setting, config = experiment.setting, experiment.config
    clients, validation = make_clients(experiment, resident(setting.dataset.train.images, device))
    slower = one_by_one(networks_on(config, device))
    if device.type == "cuda" and config.run.parallel and slower is None:
        count = experiment.sampling.count(setting.num_clients)
        return make_stack(experiment, device, clients, validation, min(config.run.parallel, count))
    if device.type == "cuda":
        _as_configured(config, device)
    test_images = resident(setting.dataset.test.images, device)
    executor = Sequential(make_bench(experiment, device), clients, test_images, validation)
    if slower and config.run.parallel:
        executor.slower = slower
        warnings.warn(slower, Slower, stacklevel=2)
    return executor


def make_stack(
    experiment: Experiment,
    device: torch.device,
    clients: Mapping[int, Client],
    validation: Mapping[int, Client] | None,
    parallel: int,
) -> CudaGraphs:
    """An executor that trains `parallel` of these clients at once."""
    if device.type == "cuda":
        _as_configured(experiment.config, device)
    test_images = resident(experiment.setting.dataset.test.images, device)
    return CudaGraphs(lambda: make_bench(experiment, device), clients, test_images, parallel, validation)


def make_clients(experiment: Experiment, pool: torch.Tensor) -> tuple[dict[int, Client], dict[int, Client] | None]:
    """The clients with their samples in the resident `pool` and, where they hold some out, with those alone."""

    def clients_of(parts: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[int, Client]:
        pairs = enumerate(zip(parts, labels, strict=True))
        return {k: Client(k, pool, _tensor(part, pool.device), _tensor(own, pool.device)) for k, (part, own) in pairs}

    setting, held = experiment.setting, experiment.setting.validation
    clients = clients_of(setting.parts, setting.labels.given)
    return clients, None if held is None else clients_of(held.parts, held.given)


def _as_configured(config: Config, device: torch.device) -> None:
    """Set PyTorch's switches for a GPU as the run wants them."""
    be_deterministic(config.run.deterministic)
    multiply_in_tf32(pick_precision(config.run.precision, device) == "tf32")


def predicted_labels(experiment: Experiment, device: torch.device, model: Tensors) -> list[np.ndarray]:
    """The classes that a scored model predicts for each client's samples: one int64 array [n] per client."""
    bench, images = make_bench(experiment, device), experiment.setting.dataset.train.images
    like = torch.empty(0, *images.shape[1:], device=device)

    def predicted(part: np.ndarray) -> np.ndarray:
        rows = (resident(images[part[span]], device) for span in chunks(len(part), like))
        return np.concatenate([bench.logits(model, some).argmax(1).cpu().numpy() for some in rows])

    return [predicted(part) for part in experiment.setting.parts]


def resident(images: np.ndarray, device: torch.device) -> torch.Tensor:
    """Images on the device; on a CPU they stay where they are, which may be a memory-mapped file."""
    return (torch.from_numpy(images) if images.flags.writeable else torch.tensor(images)).to(device)


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).astype(np.int64)).to(device)
