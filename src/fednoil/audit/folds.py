"""An audit in which no model judges labels that it was trained on: the run is made once for each fold, without it.

Each client's samples are dealt to folds by the seed, every given class evenly. A fold's run is the whole experiment
with that fold left out by all clients; its final model looks at the fold. On few images a network remembers what it was
trained on, wrong labels included, and a look from outside is worth the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from fednoil import evidence
from fednoil.audit.cases import Cases, cases_of
from fednoil.config.schema import Config
from fednoil.errors import UserError
from fednoil.experiment import Experiment, assemble
from fednoil.labels import Labels
from fednoil.records.store import InFolder, Store
from fednoil.rounds.final import known_accuracy, looks_at
from fednoil.runner import Reporter, Simulation, carry_out

Folds = tuple[np.ndarray, ...]  # the fold of each sample [n], by client


@dataclass(frozen=True)
class WithoutFold(Simulation):
    """The simulation of an experiment in which every client leaves one fold out."""

    whole: Experiment | None = field(default=None, repr=False)
    dealt: Folds = ()
    fold: int = 0

    def experiment(self, config: Config, out: Path | None, *, going_on: bool) -> Experiment:
        assert self.whole is not None
        setting = self.whole.setting
        kept = [of != self.fold for of in self.dealt]
        return assemble(
            config,
            replace(
                setting,
                parts=tuple(part[keep] for part, keep in zip(setting.parts, kept, strict=True)),
                labels=Labels(tuple(g[keep] for g, keep in zip(setting.labels.given, kept, strict=True))),
                truth=setting.truth.kept(kept),
            ),
        )


def deal(experiment: Experiment, count: int) -> Folds:
    """The fold of each sample: one after another within each given class of a client, in an order drawn by the seed."""
    names = experiment.setting.names
    smallest = min(range(experiment.setting.num_clients), key=lambda k: len(experiment.setting.parts[k]))
    least = len(experiment.setting.parts[smallest])
    if not 2 <= count <= least:
        called = names[smallest] if names else smallest
        raise UserError(
            f"--folds {count}: client {called} has {least} samples to deal to folds; choose 2 to {max(2, least)}"
        )
    found = []
    for k, given in enumerate(experiment.setting.labels.given):
        order = experiment.seed.child("audit", "folds", k).numpy().permutation(len(given))
        order = order[np.argsort(given[order], kind="stable")]
        folds = np.empty(len(given), np.int64)
        folds[order] = np.arange(len(given)) % count
        found.append(folds)
    return tuple(found)


def of_folds(
    experiment: Experiment,
    count: int,
    client: int | None,
    device: torch.device,
    reporter: Callable[[int], Reporter],
    folder: Path | None = None,
) -> Cases:
    """The clients of an experiment, or one of them, each label judged by the run that left it out.

    The runs are kept in `folder`, where one that was stopped goes on; without a folder in memory.
    """
    dealt = deal(experiment, count)
    looks = {k: torch.zeros(len(of), experiment.task.num_classes) for k, of in enumerate(dealt)}
    played = []
    for fold in range(count):
        store = Store() if folder is None else InFolder(folder / f"fold-{fold + 1}", resume=True)
        shown = reporter(fold)
        try:
            carry_out(experiment.config, store, shown, WithoutFold(whole=experiment, dealt=dealt, fold=fold))
        finally:
            shown.close()
        assert store.experiment is not None
        assert store.state is not None
        rows = {k: np.flatnonzero(of == fold) for k, of in enumerate(dealt)}
        left = {k: experiment.setting.parts[k][at] for k, at in rows.items() if len(at)}
        for k, found in looks_at(store.experiment, store.state, device, left).items():
            looks[k][torch.from_numpy(rows[k])] = found
        played.append((store.experiment, store.state))
    given = [torch.from_numpy(labels) for labels in experiment.setting.labels.given]
    bundle = evidence.start(given, experiment.task.num_classes)
    bundle = evidence.add_looks(bundle, [len(labels) for labels in given], looks)
    known = [known_accuracy(one, state) for one, state in played]
    by_class = _means([per_class for _, per_class in known])
    (accuracy,) = _means([(mean,) for mean, _ in known])
    return replace(cases_of(experiment, bundle, accuracy, by_class, client), folds=count)


def _means(rows: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    """The mean of each column; None where a row has none."""
    columns = zip(*rows, strict=True)
    return tuple(None if None in column else sum(v or 0.0 for v in column) / len(column) for column in columns)
