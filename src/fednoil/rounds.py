"""The round loop: state in, state and record out.

`play` is the only place that says what a round is. It knows no device, no file and no terminal, so the same
loop drives a simulation and a real federation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from fednoil import metrics
from fednoil.errors import UserError
from fednoil.executors.base import Executor, Job, Progress, Result
from fednoil.experiment import Experiment
from fednoil.learners.base import Turn
from fednoil.noise import noise_ratios
from fednoil.servers.base import ServerState, Update
from fednoil.servers.sampling import number_selected, sample_uniform
from fednoil.tensors import Tensors, message_bytes


@dataclass(frozen=True)
class RunState:
    """Everything a run remembers between rounds; a checkpoint is this value."""

    round_idx: int
    server: ServerState
    keep: dict[int, Tensors] = field(default_factory=dict)
    train_batches: int = 0
    per_class: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """Bytes that the protocol sends in one round."""

    down: int = 0
    up: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.down + other.down, self.up + other.up)


def start(experiment: Experiment) -> RunState:
    """The state before round 1."""
    return RunState(0, experiment.server.init(experiment.initial_model()))


def play(
    experiment: Experiment, executor: Executor, state: RunState, progress: Progress | None = None
) -> tuple[RunState, dict[str, Any]]:
    """Play one round; returns the next state and the round's record."""
    began = time.perf_counter()
    server, round_idx = experiment.server, state.round_idx + 1
    seed = experiment.seed.child("round", round_idx)
    epochs = experiment.schedule.epochs(round_idx)
    selected = _select(experiment, round_idx)
    jobs = [
        Job(
            client=k,
            received=server.model_for(state.server, k),
            keep=state.keep.get(k, {}),
            turn=Turn(round_idx, epochs, seed.child("client", k)),
        )
        for k in selected
    ]
    results = sorted(executor.train(jobs, progress), key=lambda r: r.client)
    updates = [Update(r.client, r.tensors, r.numbers) for r in results]
    next_server = server.aggregate(state.server, round_idx, updates)
    keep = {**state.keep, **{r.client: r.keep for r in results if r.keep}}
    score = _evaluate(experiment, executor, next_server, keep, round_idx)
    after = RunState(
        round_idx=round_idx,
        server=next_server,
        keep=keep,
        train_batches=state.train_batches + sum(int(r.numbers["steps"]) for r in results),
        per_class=score.per_class,
    )
    traffic = _training_traffic(jobs, results)
    record: dict[str, Any] = {
        "round": round_idx,
        "test_accuracy": score.accuracy,
        "test_loss": score.loss,
        "train_loss": sum(r.loss for r in results) / len(results),
        "local_epochs": epochs,
        "train_batches": after.train_batches,
        "selected": selected,
    }
    ratios = noise_ratios(experiment.setting.labels, experiment.setting.truth)
    if ratios is not None:
        record["noise_ratio"] = metrics.selected_noise(ratios, selected)
    record |= {"bytes_down": traffic.down, "bytes_up": traffic.up}
    record["wall_s"] = round(time.perf_counter() - began, 4)
    return after, record


def _select(experiment: Experiment, round_idx: int) -> list[int]:
    clients = experiment.setting.num_clients
    count = number_selected(experiment.server.config.client_fraction, clients)
    return sample_uniform(clients, count, experiment.seed.child("round", round_idx, "select"))


def _training_traffic(jobs: list[Job], results: list[Result]) -> Traffic:
    """Each selected client receives a model, its round and its epochs, and replies with its update."""
    down = sum(message_bytes(job.received, {"round": 0.0, "epochs": 0.0}) for job in jobs)
    return Traffic(down, sum(message_bytes(r.tensors, r.numbers) for r in results))


def _evaluate(
    experiment: Experiment,
    executor: Executor,
    server_state: ServerState,
    keep: dict[int, Tensors],
    round_idx: int,
) -> metrics.Score:
    """Score the models that the server names on the test set."""
    labels = torch.from_numpy(experiment.setting.dataset.test.labels).long()
    scored = experiment.server.scored(server_state, keep)
    scores = [metrics.score_logits(executor.test_logits(s.tensors), labels) for s in scored]
    score = metrics.mean_score(scores, [s.weight for s in scored])
    if score.loss != score.loss:
        raise UserError(
            f"training diverged: the test loss is NaN in round {round_idx}; "
            f"lower train.lr (now {experiment.config.train.lr}); the last checkpoint is kept"
        )
    return score
