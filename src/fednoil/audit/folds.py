"""An audit in which no model judges labels that it was trained on: the run is made once for each fold, without it.

Each client's samples are dealt to folds by the seed, every given class evenly. A fold's run is the whole experiment
with that fold left out by all clients; its final model looks at the fold. With few images a network memorises what it
was trained on, wrong labels included, so a look by a model that has not seen them is worth the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fednoil import evidence
from fednoil.audit.cases import Cases, calibrated, cases_of
from fednoil.config.schema import Config
from fednoil.experiment import Experiment, assemble
from fednoil.records.store import InFolder, Store
from fednoil.rounds.final import known_accuracy, looks_at
from fednoil.runner import Reporter, Simulation, carry_out

USUAL = 5  # folds
FEW_LABELS = 2000  # labels of all clients; of more, an audit goes out of folds only if asked to
_LONG = 1800  # seconds that this may take unasked


@dataclass(frozen=True)
class WithoutFold(Simulation):
    """The simulation of an experiment whose data are already loaded, without the fold that its configuration names."""

    whole: Experiment | None = field(default=None, repr=False)

    def experiment(self, config: Config, out: Path | None, *, going_on: bool) -> Experiment:
        assert self.whole is not None
        left_out = config.data.left_out
        assert left_out is not None
        return assemble(config, self.whole.setting.without_fold(*left_out, self.whole.seed))


def why_folds(experiment: Experiment, cases: Cases, seconds: float | None) -> str:
    """Why an audit goes out of folds unasked, "" if it doesn't: the model has memorised labels, they are few, and the
    runs will be short.

    `seconds` is how long the run took, None if it isn't finished.
    """
    few = sum(experiment.task.sizes) <= FEW_LABELS and min(experiment.task.sizes) >= USUAL
    return cases.memorised if few and seconds is not None and USUAL * seconds <= _LONG else ""


def of_folds(
    experiment: Experiment,
    count: int,
    client: int | None,
    device: torch.device,
    reporter: Callable[[int], Reporter],
    folder: Path | None = None,
) -> Cases:
    """The clients of an experiment, or one of them, each label judged by the run that left it out.

    The runs are kept in `folder`, where a stopped one continues, or in memory without a folder.
    """
    dealt = experiment.setting.dealt(count, experiment.seed)
    looks = {k: torch.zeros(len(of), experiment.task.num_classes) for k, of in enumerate(dealt)}
    played = []
    for fold in range(count):
        store = Store() if folder is None else InFolder(folder / f"fold-{fold + 1}", resume=True)
        shown = reporter(fold)
        try:
            carry_out(experiment.config.without_fold(fold, count), store, shown, WithoutFold(whole=experiment))
        finally:
            shown.close()
        assert store.experiment is not None
        assert store.state is not None
        left = store.experiment.setting.left
        assert left is not None
        parts = {k: part for k, part in enumerate(left.parts) if len(part)}
        for k, found in looks_at(store.experiment, store.state, device, parts).items():
            looks[k][torch.from_numpy(dealt[k] == fold)] = found
        played.append((store.experiment, store.state))
    given = [torch.from_numpy(labels) for labels in experiment.setting.labels.given]
    bundle = evidence.start(given, experiment.task.num_classes)
    bundle = evidence.add_looks(bundle, [len(labels) for labels in given], looks)
    known = [known_accuracy(one, state) for one, state in played]
    by_class = _means([per_class for _, per_class in known])
    (accuracy,) = _means([(mean,) for mean, _ in known])
    return calibrated(replace(cases_of(experiment, bundle, accuracy, by_class, client), folds=count))


def _means(rows: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    """The mean of each column; None where a row has none."""
    columns = zip(*rows, strict=True)
    return tuple(None if None in column else sum(v or 0.0 for v in column) / len(column) for column in columns)
