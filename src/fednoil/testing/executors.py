"""Clients must learn the same side by side, as on a GPU, as one after another: a run's turns are played again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from fednoil import rounds
from fednoil.config.loading import load_config
from fednoil.config.schema import Config
from fednoil.errors import Slower
from fednoil.executors.base import Job, Result
from fednoil.executors.cuda import CudaGraphs
from fednoil.executors.sequential import Sequential
from fednoil.experiment import Experiment, assemble, make_bench, make_executor
from fednoil.learners.capabilities import EvensBatches, capability
from fednoil.tensors import Numbers, Tensors
from fednoil.testing.federation import NotConforming, Trace, plain_model, tiny_setting

_PLAIN = f"{plain_model.__module__}:{plain_model.__name__}"
_FAR = 1e-3  # allowed difference of a tensor, relative to its length: sums in another order, over the steps of one turn


def check_side_by_side(config: Config, trace: Trace, device: torch.device) -> str | None:
    """Play every round of a run, with what its clients received and kept, on the GPU's executor.

    On a CPU that executor does the same without graphs. A learner that can't be stacked runs client after client, which
    is allowed; returns the reason.
    """
    experiment = assemble(config, tiny_setting(config))
    slower = _compare_rounds(experiment, zip(trace.jobs, trace.results, strict=True), device)
    for round_idx, asked in trace.asked.items():
        found = {r.client: r for r in _stacked(experiment, device).review([_moved(job, device) for job in asked])}
        for wanted in trace.answers[round_idx]:
            _compare(found[wanted.client], wanted, round_idx)
    if capability(experiment.learner, EvensBatches):  # which networks with batch statistics don't allow
        plain = config.model_copy(update={"model": load_config({"model": {"name": _PLAIN}}).model})
        experiment = assemble(plain, tiny_setting(plain))
        executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
        jobs = [rounds.make_job(experiment, state, k, 2) for k in range(experiment.setting.num_clients)]
        slower = _compare_rounds(experiment, [(jobs, executor.train(jobs))], device) or slower
    return slower


def _compare_rounds(
    experiment: Experiment, played: Iterable[tuple[Sequence[Job], Sequence[Result]]], device: torch.device
) -> str | None:
    executor = _stacked(experiment, device)
    for jobs, results in played:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Slower)
            found = {r.client: r for r in executor.train([_moved(job, device) for job in jobs])}
        for wanted in results:
            _compare(found[wanted.client], wanted, jobs[0].turn.round_idx)
    return executor.slower


def _stacked(experiment: Experiment, device: torch.device) -> CudaGraphs:
    executor = make_executor(experiment, device)
    if isinstance(executor, CudaGraphs):
        return executor
    assert isinstance(executor, Sequential)
    seats = experiment.sampling.count(experiment.setting.num_clients)
    return CudaGraphs(lambda: make_bench(experiment, device), executor.clients, executor.test_images, seats)


def _moved(job: Job, device: torch.device) -> Job:
    looked = None if job.looked is None else job.looked.to(device)
    received, keep = ({n: t.to(device) for n, t in tensors.items()} for tensors in (job.received, job.keep))
    return replace(job, received=received, keep=keep, looked=looked)


def _compare(got: Result, wanted: Result, round_idx: int) -> None:
    who = f"client {wanted.client} in round {round_idx}, trained side by side with others as on a GPU,"
    if not _close(got.numbers, wanted.numbers):
        raise NotConforming(f"{who} sends {got.numbers}, not {wanted.numbers}")
    for name, far in _differences((got.tensors, got.keep), (wanted.tensors, wanted.keep)):
        if not far <= _FAR:
            raise NotConforming(
                f"{who} ends with a different '{name}', by {far:.1g} of its length; what belongs to a client must be "
                "in its state and batch, and `evened` must not change a loss"
            )


def _close(got: Numbers, wanted: Numbers) -> bool:
    """Counts must be equal; what is computed from networks may differ a little."""
    same = all(got.get(name) == wanted.get(name) for name in ("samples", "steps"))
    return (
        same
        and got.keys() == wanted.keys()
        and all(math.isclose(v, wanted[n], rel_tol=_FAR, abs_tol=_FAR) for n, v in got.items())
    )


def _differences(got: Sequence[Tensors], wanted: Sequence[Tensors]) -> Iterator[tuple[str, float]]:
    """Each tensor's difference relative to its length; infinite if it is missing."""
    for mine, theirs in zip(got, wanted, strict=True):
        for name in mine.keys() | theirs.keys():
            if name not in mine or name not in theirs:
                yield name, torch.inf
                continue
            a, b = mine[name].cpu().double(), theirs[name].double()
            yield name, float((a - b).norm() / b.norm().clamp_min(1e-3))
