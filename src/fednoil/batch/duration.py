"""How long a plan will take, before it starts: from finished runs of the same kind, or a short measurement.

The unit is one client's pass over one sample in one local epoch. Learners differ by a factor of ten in what they do
with it, so each kind of run (model, server, learner) has a speed of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fednoil import sampling, schedules
from fednoil.batch.cell import Cell
from fednoil.config import Config, load_config, merge
from fednoil.devices import pick_device
from fednoil.errors import UserError, gpu_is_full
from fednoil.executors.base import Job
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.base import Turn
from fednoil.sampling import Scoring
from fednoil.servers import server_class

Kind = tuple[str, ...]
Past = tuple[Config, float]  # a finished run: its configuration and seconds
_SAMPLES = 300  # of a client, in a measurement
_START = 3.0  # seconds that a new process takes to load what it needs
_PATIENCE = 20.0  # seconds of measuring; kinds that are left take the mean of the others


@dataclass(frozen=True)
class Duration:
    """Seconds for all cells together, and what that is based on; None if nothing could be measured."""

    seconds: float | None
    source: str


def expected(cells: Sequence[Cell], past: Iterable[Past], jobs: int, threads: int, data_dir: Path | None) -> Duration:
    """The time that `cells` will take with `jobs` at a time, each with `threads` CPU threads."""
    if not cells:
        return Duration(0.0, "nothing to run")
    speeds = _known(past)
    kinds = dict.fromkeys(kind_of(cell.config) for cell in cells)
    known = sum(kind in speeds for kind in kinds)
    measured = _measure({kind_of(cell.config): cell for cell in reversed(cells)}, speeds, threads, data_dir)
    speeds = {kind: speed for kind, speed in {**measured, **speeds}.items() if kind in kinds}
    if not speeds:
        return Duration(None, "no data or no memory at hand to measure with")
    usual = statistics.mean(speeds.values())
    seconds = sum(work_of(cell.config) * speeds.get(kind_of(cell.config), usual) for cell in cells)
    seconds += _START * len(cells) if jobs > 1 else 0.0
    guessed = len(kinds) - len(speeds)
    source = [f"{known} kind{'s' * (known != 1)} of run from earlier ones"] if known else []
    source += [f"{len(measured)} measured for a moment, so to a factor of two"] if measured else []
    source += [f"{guessed} guessed from the others"] if guessed else []
    return Duration(seconds / max(1, min(jobs, len(cells))), "; ".join(source))


def kind_of(config: Config) -> Kind:
    """What makes two runs equally fast for the same work."""
    return (config.model.name, str(config.model.own_keys()), config.server.name, config.learner.name)


def work_of(config: Config) -> float:
    """Samples that all local epochs of a run go through, before its schedule is fitted to network and clients."""
    partition = config.partition
    selected = sampling.make(config.sampling).count(partition.clients)
    selected = partition.clients if server_class(config.server.name).pools else selected
    return float(schedules.make(config.schedule).total(config.train.rounds) * selected * _samples(config))


def _samples(config: Config) -> int:
    """About how many a client has."""
    return config.partition.samples_per_client or 1000


def _known(past: Iterable[Past]) -> dict[Kind, float]:
    """Seconds per unit of finished runs, by kind: the median."""
    found: dict[Kind, list[float]] = {}
    for config, seconds in past:
        found.setdefault(kind_of(config), []).append(seconds / work_of(config))
    return {kind: statistics.median(speeds) for kind, speeds in found.items()}


def _measure(
    cells: dict[Kind, Cell], known: dict[Kind, float], threads: int, data_dir: Path | None
) -> dict[Kind, float]:
    """Seconds per unit of kinds that aren't known yet, as many as the time for measuring allows."""
    found: dict[Kind, float] = {}
    began, before = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for kind, cell in cells.items():
            if kind in known or time.perf_counter() - began > _PATIENCE:
                continue
            try:
                found[kind] = _speed(cell.config, data_dir)
            except UserError:
                continue  # the cell itself will report what is wrong
            except RuntimeError as error:
                if not gpu_is_full(error):
                    raise
    finally:
        torch.set_num_threads(before)
    return found


def _speed(config: Config, data_dir: Path | None) -> float:
    """Time some epochs of a few clients in the middle of a run, after one to warm up, and one test of the model."""
    values = config.model_dump(mode="json", exclude_none=True)
    at_once = 1 if pick_device(config.run.device).type == "cpu" else 6
    samples = min(config.partition.samples_per_client or _SAMPLES, _SAMPLES)
    few: dict[str, Any] = {"kind": "iid", "clients": 8, "samples_per_client": samples}
    small = load_config(merge(values, {"partition": few}))
    experiment = make_experiment(small, data_dir)
    executor = make_executor(experiment, pick_device(small.run.device))
    middle = config.train.rounds // 2 + 1
    jobs = _jobs(experiment, middle, 1)[:at_once]
    began = time.perf_counter()
    executor.train(jobs)
    # A turn has costs of its own, so time as many epochs as it usually has, unless one takes long already.
    schedule, rounds = schedules.make(config.schedule), config.train.rounds
    total = schedule.fitted(rounds, large=experiment.task.large, sizes=[_samples(config)]).total(rounds)
    usual = round(total / rounds)
    epochs = max(1, min(usual, int(3 / (time.perf_counter() - began))))
    jobs = _jobs(experiment, middle, epochs)[:at_once]
    passed = epochs * sum(experiment.task.sizes[job.client] for job in jobs)
    epoch = min(_time(lambda: executor.train(jobs)) for _ in range(2)) / passed
    tested = _time(lambda: executor.test_logits(experiment.initial_model()))
    per_image = tested / len(experiment.setting.dataset.test.labels)
    # What a round does besides: it tests the model, and scores all clients' samples if they are asked.
    asked = config.partition.clients * samples if isinstance(experiment.sampling, Scoring) else 0
    beside = per_image * (len(experiment.setting.dataset.test.labels) + asked) * rounds
    return epoch * total / schedule.total(rounds) + beside / work_of(config)


def _time(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _jobs(experiment: Experiment, round_idx: int, epochs: int) -> list[Job]:
    state = experiment.server.init(experiment.initial_model())
    return [
        Job(k, experiment.server.model_for(state, k), {}, Turn(round_idx, epochs, experiment.seed.child("estimate", k)))
        for k in range(experiment.setting.num_clients)
    ]
