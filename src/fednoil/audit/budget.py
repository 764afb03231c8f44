"""What cleaning gains: correct some of a run's labels, the most suspicious or random ones, and train again."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from fednoil import metrics, rounds
from fednoil.errors import UserError
from fednoil.estimation.wrong import Estimate
from fednoil.experiment import Experiment, assemble, make_executor
from fednoil.files import write_bytes
from fednoil.labels import NO_CLASS, Labels, open_truth

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Bought:
    """One training: the `percent` of each client's labels that were checked, in which `order`, how many of them were
    wrong, and the accuracy in percent after the last round and as the mean of the last ten."""

    order: str
    percent: float
    looked_at: int
    corrected: int
    noise_ratio: float
    final_accuracy: float
    last10_accuracy: float


def percentages(text: str) -> list[float]:
    """The budgets of `--budget 5,10,20`, in percent of a client's labels."""
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not all(0 < value <= 100 for value in found):
        raise UserError(f"--budget {text} must be percentages above 0 and up to 100, such as 5,10,20")
    return found


def simulate(
    experiment: Experiment, found: Sequence[Estimate], budgets: Sequence[float], device: torch.device, report: Progress
) -> Iterator[Bought]:
    """Train with nothing corrected, and for each budget with the most suspicious and with random labels checked.

    Checking a label corrects it, which needs true labels; everything else is as in the run. Data without true labels,
    or without wrong ones, are refused at once; each training starts when its result is requested.
    """
    true = open_truth(experiment.setting.truth)
    if true is None:
        raise UserError("--budget simulates somebody who knows the true labels, but this run's data have none")
    if any((labels == NO_CLASS).any() for labels in true):
        raise UserError("--budget corrects labels, but some of this run's images show none of its classes")
    if all(np.array_equal(*labels) for labels in zip(experiment.setting.labels.given, true, strict=True)):
        raise UserError("--budget corrects wrong labels, but this run has none (noise.kind); nothing would change")
    if not len(experiment.setting.dataset.test):
        raise UserError("--budget measures accuracy on test images, but this run's data have none")
    plans = [("none", 0.0), *((order, b) for b in budgets for order in ("suspicious", "random"))]

    def played(number: int, order: str, percent: float) -> Bought:
        report(f"{number} of {len(plans)}: {order}, {percent:g} %")
        return _trained(experiment, found, order, percent, device)

    return (played(number, *plan) for number, plan in enumerate(plans, start=1))


def write_csv(path: Path, results: Sequence[Bought]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(asdict(results[0])))
    writer.writeheader()
    writer.writerows(asdict(result) for result in results)
    write_bytes(path, buffer.getvalue().encode())


def _trained(
    experiment: Experiment, found: Sequence[Estimate], order: str, percent: float, device: torch.device
) -> Bought:
    setting, looked_at, corrected = experiment.setting, 0, 0
    true = open_truth(setting.truth)
    assert true is not None
    given = []
    for client, rows in enumerate(_chosen(experiment, found, order, percent)):
        labels = setting.labels.given[client].copy()
        looked_at += len(rows)
        corrected += int((labels[rows] != true[client][rows]).sum())
        labels[rows] = true[client][rows]
        given.append(labels)
    fixed = replace(setting, labels=Labels(tuple(given)))
    changed = assemble(experiment.config, fixed)
    executor, state, accuracies = make_executor(changed, device), rounds.start(changed), []
    state = rounds.placed(state, device)
    for _ in range(experiment.config.train.rounds):
        state, record = rounds.play(changed, executor, state)
        assert record.test_accuracy is not None
        accuracies.append(record.test_accuracy)
    ratios = metrics.noise_ratios(fixed.labels, setting.truth)
    assert ratios is not None
    last = accuracies[-10:]
    left = 100.0 * float(np.average(ratios, weights=[len(labels) for labels in given]))
    return Bought(order, percent, looked_at, corrected, round(left, 3), round(accuracies[-1], 3), round(fmean(last), 3))


def _chosen(experiment: Experiment, found: Sequence[Estimate], order: str, percent: float) -> Iterator[np.ndarray]:
    """Which rows of each client are checked."""
    for client, estimate in enumerate(found):
        count = round(percent / 100 * len(estimate.p_wrong))
        if order == "suspicious":
            yield np.argsort(-estimate.p_wrong, kind="stable")[:count]
        else:
            rng = experiment.seed.child("audit", "budget", "client", client).numpy()
            yield rng.permutation(len(estimate.p_wrong))[:count]
