"""The model file: weights with all that `fednoil predict` needs to use them, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

from fednoil import __version__, models
from fednoil.config.axes import own_code
from fednoil.config.loading import load_config
from fednoil.config.schema import Config
from fednoil.data.base import Normalisation
from fednoil.data.vectors import is_vector, scaled
from fednoil.errors import UserError
from fednoil.executors.local import Workbench
from fednoil.experiment import Experiment
from fednoil.learners import learner_class
from fednoil.learners.base import Task
from fednoil.records.files import write_tensors
from fednoil.records.older import in_todays_keys
from fednoil.seeds import Seed
from fednoil.servers import server_class
from fednoil.tensors import Tensors, read_tensors

_KEY = "fednoil"
FORMAT = 1
_READ = ("model", "server", "learner", "train")  # sections of its run's configuration that make a model's networks


@dataclass(frozen=True)
class LoadedModel:
    """A trained model ready to run, with the names of its classes."""

    bench: Workbench
    tensors: Tensors
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    normalisation: Normalisation  # mean and std a channel, or a column of vectors
    accuracy: float | None = None  # on its run's test set, in percent
    per_class: tuple[float | None, ...] = ()  # and on each class's images there, None if it had none
    columns: tuple[str, ...] = ()  # of vectors

    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """Class probabilities for uint8 images [N, C, H, W], or vectors [N, D] as the data have them, on the host like
        these: float32 [N, classes]."""
        if is_vector(self.image_shape):
            images = torch.from_numpy(scaled(images.numpy(), *self.normalisation))
        return torch.softmax(self.bench.logits(self.tensors, images.to(self.bench.device)), dim=1).cpu()


def save_model(
    path: Path,
    experiment: Experiment,
    tensors: Tensors,
    accuracy: float | None = None,
    per_class: Sequence[float | None] = (),
) -> None:
    """Write the model, frozen parameters included, with its accuracy in percent and that of each class where they are
    known.

    With a single network its tensors have the names of the module's state_dict.
    """
    dataset = experiment.setting.dataset
    vectors = is_vector(dataset.image_shape)
    mean, std = (dataset.mean, dataset.std) if vectors else experiment.normalisation
    networks = [role.name for role in experiment.learner.roles if role.shared]
    about = {
        "format": FORMAT,
        "version": __version__,
        "config": experiment.config.model_dump(mode="json"),
        "config_hash": experiment.config.hash(),
        "data_hash": dataset.hash,
        "architecture": experiment.config.model.model_dump(mode="json", exclude={"start"}),
        "networks": networks,
        "class_names": list(dataset.class_names),
        "image_shape": list(dataset.image_shape),
        "mean": list(mean),
        "std": list(std),
        **({"columns": list(dataset.about.columns)} if vectors else {}),
        "test_accuracy": accuracy,
        "per_class_accuracy": list(per_class),
    }
    tensors = {**experiment.fixed, **tensors}
    if len(networks) == 1:
        tensors = {name.removeprefix(f"{networks[0]}/"): t for name, t in tensors.items()}
    write_tensors(path, tensors, {_KEY: json.dumps(about)})


def load_model(path: Path, trusted: tuple[str, ...] = (), device: torch.device | None = None) -> LoadedModel:
    """Read a model file, to run on `device`, else on the CPU. Code is imported only for import paths named in
    `trusted`, never because the file says so."""
    about = _metadata(path)
    try:
        values = {s: dict(about["config"].get(s, {})) for s in _READ}
        _check_trust(values, trusted, path)
        values = {s: {k: v for k, v in keys.items() if v is not None} for s, keys in values.items()}
        image_shape = tuple(int(n) for n in about["image_shape"])
        class_names = tuple(str(n) for n in about["class_names"])
        normalisation = (tuple(map(float, about["mean"])), tuple(map(float, about["std"])))
        networks, columns = [str(n) for n in about["networks"]], tuple(map(str, about.get("columns", ())))
        known = about.get("test_accuracy")
        accuracy = None if known is None else float(known)
        per_class = tuple(None if value is None else float(value) for value in about.get("per_class_accuracy", ()))
        if (
            len(image_shape) not in (1, 3)
            or len(columns) not in (0, image_shape[0])
            or len(set(class_names)) < max(2, len(class_names))
        ):
            raise ValueError("image_shape or class_names is wrong")
        if {len(values) for values in normalisation} != {image_shape[0]} or not min(normalisation[1]) > 0:
            raise ValueError("mean or std is wrong")
        if not all(map(math.isfinite, sum(normalisation, ()))):
            raise ValueError("mean or std is not a finite number")
        if not all(0 <= value <= 100 for value in (accuracy, *per_class) if value is not None):
            raise ValueError("test_accuracy or per_class_accuracy is not a percentage")
        if len(per_class) not in (0, len(class_names)):
            raise ValueError("per_class_accuracy is not one for each class")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}: its metadata is damaged: {error!r}") from None
    try:
        bench = _bench(
            load_config(in_todays_keys(values)), image_shape, class_names, normalisation, device or torch.device("cpu")
        )
    except UserError as error:
        raise UserError(f"{path}: its metadata is damaged or of another version: {error}") from None
    tensors = read_tensors(path)
    if len(networks) == 1:
        tensors = {f"{networks[0]}/{name}": t for name, t in tensors.items()}
    _check_shapes(path, bench, tensors)
    bench.fix(tensors)
    return LoadedModel(bench, tensors, class_names, image_shape, normalisation, accuracy, per_class, columns)


def class_names(path: Path) -> tuple[str, ...]:
    """The names of a model's classes, by its metadata alone."""
    names = _metadata(path).get("class_names")
    if not isinstance(names, list) or len(set(map(str, names))) < max(2, len(names)):
        raise UserError(f"{path}: its metadata is damaged: class_names is wrong")
    return tuple(map(str, names))


def _check_trust(config: dict[str, Any], trusted: tuple[str, ...], path: Path) -> None:
    """Refuse to import code that only the file asks for."""
    for key, name in own_code(config).items():
        if name not in trusted:
            raise UserError(f"{path} was made with the code '{name}' ({key}); if you trust it, name it: --trust {name}")


def _metadata(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file, such as model.safetensors in a run's folder")
    if not path.is_file():
        stopped = (path.parent / "config.toml").is_file() and not (path.parent / "summary.json").is_file()
        why = f"{path.parent} is a run that has not ended; continue it with --resume" if stopped else "no such file"
        raise UserError(f"cannot read {path}: {why}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            raw = (file.metadata() or {}).get(_KEY)
        about = json.loads(raw) if raw else None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (safetensors.SafetensorError, ValueError, RecursionError):
        raise UserError(
            f"{path} is damaged or not a safetensors file; give a model that fednoil has written, such as "
            "model.safetensors in a run's folder"
        ) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UserError(f"{path} is not a model that fednoil has written (format {FORMAT})")
    return about


def _bench(
    config: Config,
    image_shape: tuple[int, ...],
    class_names: tuple[str, ...],
    normalisation: Normalisation,
    device: torch.device,
) -> Workbench:
    train = config.train
    task = Task(len(class_names), image_shape, train.batch_size, train.lr, train.rounds)
    learner = learner_class(config.learner.name)(config.learner, task)
    learner = server_class(config.server.name)(config.server, task).wrap(learner)
    template = models.build(config.model, image_shape, len(class_names), Seed(0))
    return Workbench(learner, template, ((), ()) if is_vector(image_shape) else normalisation, train, device)


def _check_shapes(path: Path, bench: Workbench, tensors: Tensors) -> None:
    for role in bench.learner.roles:
        net = bench.nets[role.name]
        for name, own in {**net.dump(role.name), **net.dump_fixed(role.name)}.items():
            if role.shared and (name not in tensors or tensors[name].shape != own.shape):
                raise UserError(f"{path}: tensor '{name}' is missing or does not fit the architecture")
            if role.shared and not bool(torch.isfinite(tensors[name]).all()):
                raise UserError(f"{path}: tensor '{name}' holds values that are not finite")
