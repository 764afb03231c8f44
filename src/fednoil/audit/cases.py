"""What an audit examines: each client's given labels, and everything that was recorded about them.

For a run these are the clients of its checkpoint; for a site that has only a model, its own files
(`fednoil.audit.site`). Either way the last look at every sample is the final model's; those of earlier rounds come
before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from fednoil import evidence
from fednoil.audit.pictures import boxed, galleries, original_pictures
from fednoil.config.loading import load_config
from fednoil.config.schema import Config
from fednoil.data import Dataset
from fednoil.data.elsewhere import are_given, at_nodes, own_sites
from fednoil.data.given import Given
from fednoil.data.raw import numbered
from fednoil.data.sources import is_own
from fednoil.errors import UserError
from fednoil.estimation.belief import soft
from fednoil.estimation.temperature import temperatures
from fednoil.experiment import Experiment, make_experiment
from fednoil.labels import open_truth
from fednoil.records.checkpoint import Checkpoints
from fednoil.records.folder import CHECKPOINT, RunFolder
from fednoil.records.older import read_current
from fednoil.records.store import check_best, hashes_of
from fednoil.rounds import RunState
from fednoil.rounds.final import final_bundle, known_accuracy
from fednoil.rounds.memorised import agreements, alike, learnt, memorised
from fednoil.tensors import Tensors

MEMORY = "labels in memory"  # the source of a run without a folder


@dataclass(frozen=True)
class Case:
    """One client's samples: the name of each, its row in the data, its given label, and its evidence.

    `true` [n] is there if true labels are known, only to measure the audit.
    """

    client: str | None
    items: tuple[str, ...]
    index: np.ndarray
    given: np.ndarray
    bundle: Tensors
    true: np.ndarray | None = None
    accuracy: float | None = None  # of the final model on such images, in percent, if known
    per_class: tuple[float | None, ...] = ()  # and on each class
    by_class: bool = False  # whether `accuracy` is the mean over classes
    skipped: tuple[tuple[str, str], ...] = ()
    notices: tuple[str, ...] = ()
    duplicates: tuple[tuple[str, ...], ...] = ()
    others: tuple[float, ...] = ()  # temperatures of `probabilities` that the labels don't speak against

    @property
    def probabilities(self) -> np.ndarray:
        """Class probabilities over all looks: float32 [n, C]."""
        return self.bundle["probabilities"].numpy()


@dataclass(frozen=True)
class Cases:
    """All clients of an audit; `images` returns the picture of a row of the data, uint8 [H, W, C]."""

    data: str
    class_names: tuple[str, ...]
    clients: list[Case]
    images: Callable[[int], np.ndarray] = field(repr=False)
    originals: Callable[[int], np.ndarray] | None = field(default=None, repr=False)  # large enough for people
    source: str | dict[str, str] = (
        ""  # for each site, if sites have data of their own; what `fednoil relabel --data` takes; "": `data`
    )
    folds: int = 0  # each judged by a model that had not seen it; 0: the model was trained on all labels
    memorised: str = ""  # the warning, if the model seems to have memorised labels


def of_run(
    path: Path, client: str | int | None, data_dir: Path | None, device: torch.device, select: str | None = None
) -> Cases:
    """The clients of a run, or one of them, from its last checkpoint; `select` in place of its `run.select`."""
    experiment, state = load_state(path, data_dir, select)
    number = client_number(experiment, client, str(path))
    return replace(of_state(experiment, state, number, device), source=source_of(experiment, path))


def source_of(experiment: Experiment, path: Path | None) -> str | dict[str, str]:
    """What `fednoil relabel` changes: the user's own data, or the manifest of a run that made some labels wrong.

    A program's arrays have a name, but no command can change them, nor the labels of a run without a folder.
    """
    data, names = experiment.config.data, experiment.setting.names
    if are_given(data.name):
        return data.name
    own = experiment.config.noise.kind in ("none", "unknown") and is_own(data.name)
    sites = own_sites(data)
    if own and sites and names and set(names) <= set(sites):
        return {name: sites[name] for name in names}
    if own and not sites:
        return data.name
    return MEMORY if path is None else f"manifest:{path / 'noise.parquet'}"


def of_state(experiment: Experiment, state: RunState, client: int | None, device: torch.device) -> Cases:
    """The clients of an experiment, or one of them, from its state after some rounds."""
    accuracy, by_class = known_accuracy(experiment, state)
    bundle = final_bundle(experiment, state, device)
    shares, held_out = agreements(experiment, state, bundle), experiment.setting.dataset.about.held_out
    warning = memorised(shares, "held-out" if held_out else "test")
    doubt = warning or (learnt(shares) if held_out else "")
    most = min(5, *experiment.task.sizes)  # what the smallest client can be dealt to
    way_out = f"; --folds {most} judges each by a run that has not seen it" if most > 1 else ""
    advice = (doubt + way_out,) if doubt else ()
    notices = (*_unfinished(experiment, state), *advice)
    found = replace(cases_of(experiment, bundle, accuracy, by_class, client, notices), memorised=warning)
    return calibrated(found) if alike(shares) else found


def calibrated(cases: Cases) -> Cases:
    """The cases with probabilities that are as confident as labels show, where no test set shows it."""
    diverged = not all(np.isfinite(case.probabilities).all() for case in cases.clients)  # which estimates refuse
    if diverged or any(case.accuracy is not None for case in cases.clients):
        return cases
    best, *ends = temperatures([(case.probabilities, case.given) for case in cases.clients])

    def at(case: Case) -> Case:
        softer = torch.from_numpy(soft(case.probabilities, best)).float()
        others = tuple(end / best for end in ends if end != best)
        return replace(case, bundle={**case.bundle, "probabilities": softer}, others=others)

    return replace(cases, clients=[at(case) for case in cases.clients])


def client_number(experiment: Experiment, client: str | int | None, where: str) -> int | None:
    """The number of the client that `--client` names, by its name or its number."""
    if client is None:
        return None
    names, count = experiment.setting.names, experiment.setting.num_clients
    if str(client) in names:
        return names.index(str(client))
    if str(client).isdecimal() and int(client) < count:
        return int(client)
    known = f"{', '.join(names[:10])}{' …' if len(names) > 10 else ''}, or " if names else ""
    raise UserError(f"--client {client}: {where} has the clients {known}0 to {count - 1}")


def cases_of(
    experiment: Experiment,
    bundle: Tensors,
    accuracy: float | None,
    per_class: tuple[float | None, ...],
    client: int | None,
    notices: tuple[str, ...] = (),
) -> Cases:
    """All clients of an experiment, or one of them, with their evidence and what is known of the model's accuracy."""
    setting, dataset, items = experiment.setting, experiment.setting.dataset, _items(experiment)
    true, cases = open_truth(setting.truth), []
    for k in range(setting.num_clients) if client is None else [client]:
        index = setting.parts[k]
        names = tuple(items[row] for row in index)
        cases.append(
            Case(
                setting.names[k] if setting.names else str(k),
                names,
                index,
                setting.labels.given[k],
                evidence.of_client(bundle, experiment.task.sizes, k),
                None if true is None else true[k],
                accuracy,
                per_class,
                by_class=True,
                notices=(*notices, *_held_out(experiment, k)),
                duplicates=duplicates(names, [dataset.train.images[row] for row in index]),
            )
        )
    originals = original_pictures(experiment)
    if originals is None:
        images = dataset.train.images
        pictures = galleries(images.__getitem__, dataset.about.columns, dataset.mean, dataset.std)
        return Cases(dataset.name, dataset.class_names, cases, *pictures)
    return Cases(dataset.name, dataset.class_names, cases, lambda row: boxed(originals(row)), originals)


def load_state(path: Path, data_dir: Path | None = None, select: str | None = None) -> tuple[Experiment, RunState]:
    """A run's experiment and the state of its last checkpoint; `select` in place of its `run.select`."""
    experiment = load_experiment(path, data_dir, select)
    checkpoints = checkpoints_of(experiment, path)
    if not checkpoints.exists():
        raise UserError(
            f"{path} has no checkpoint yet; wait until the run has written one (run.checkpoint_every) or has ended"
        )
    state = checkpoints.load(experiment.config)
    check_best(state, experiment, path)
    return experiment, state


def checkpoints_of(experiment: Experiment, path: Path) -> Checkpoints:
    """The checkpoint of a run's folder."""
    return Checkpoints(path / CHECKPOINT, hashes_of(experiment))


def load_experiment(path: Path, data_dir: Path | None = None, select: str | None = None) -> Experiment:
    """A run's experiment."""
    RunFolder(path).check_is_run("; give one that `fednoil run` has written, or --data and --model")
    config = load_config(read_current(path / "config.toml"))
    if at_nodes(config.data):
        raise UserError(
            f"{path} is a federation's run, and its labels stayed with the nodes; each node has its audit in its own "
            f"folder, or can make one with --data and --model; out of folds: fednoil federation audit {path} --folds 5"
        )
    if select is not None:
        config = selecting(config, select)
    given = Given.load(path) if are_given(config.data.name) else None
    return make_experiment(config, data_dir, given)


def selecting(config: Config, select: str) -> Config:
    """The configuration with the model of the `last` or the `best` round."""
    if select not in ("last", "best"):
        raise UserError(f"--select {select} is unknown; choose last or best")
    if select == "best" and not config.data.held_out:
        raise UserError("--select best: the run held out no labels to choose a round by (data.validation)")
    return config.changed(rounds=config.train.rounds, select=select)


def _unfinished(experiment: Experiment, state: RunState) -> tuple[str, ...]:
    played, planned = state.round_idx, experiment.config.train.rounds
    return (
        ()
        if state.over(experiment.config)
        else (f"the run is unfinished: this audit uses round {played} of {planned}",)
    )


def _held_out(experiment: Experiment, client: int) -> tuple[str, ...]:
    held, tested = experiment.setting.validation, experiment.setting.dataset.about.held_out
    lines = []
    if tested:
        lines.append(f"{tested} samples held out for testing are not audited; --data and --model audit all")
    if held is not None:
        count = len(held.parts[client])
        what = "samples held out by data.validation are" if count > 1 else "sample held out by data.validation is"
        lines.append(f"{count} {what} not audited")
    return tuple(lines)


def duplicates(items: Sequence[str], images: Sequence[np.ndarray] | np.ndarray) -> tuple[tuple[str, ...], ...]:
    """Groups of items with identical pixels."""
    groups: dict[bytes, list[str]] = {}
    for item, image in zip(items, images, strict=True):
        groups.setdefault(hashlib.sha256(np.ascontiguousarray(image).data).digest(), []).append(item)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _items(experiment: Experiment) -> list[str]:
    """The names of the training set's rows; samples that a program gave client by client are numbered by client."""
    given, dataset = experiment.given, experiment.setting.dataset
    if given is not None and len(given.sizes) == experiment.setting.num_clients:  # a server may have pooled them
        return [str(place) for size in given.sizes for place in range(size)]
    return item_names(dataset)


def item_names(dataset: Dataset) -> list[str]:
    """The names of the training set's rows: files have their path below the data's root, others a number."""
    return list(dataset.about.items) or numbered(len(dataset.train))
