"""The round loop: state in, state and record out.

`play` is the only place that says what a round is. It knows no device, no file and no terminal, so the same
loop drives a simulation and a real federation.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fednoil import metrics
from fednoil.errors import UserError
from fednoil.executors.base import Executor, Job, Progress, Result
from fednoil.experiment import Experiment
from fednoil.learners.base import Turn
from fednoil.noise import noise_ratios
from fednoil.servers.base import ServerState, Update
from fednoil.servers.sampling import draw_clients, number_selected, shares
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
class Selection:
    """The clients of a round, the shares p_k they were drawn by, and the scores where clients gave them."""

    clients: list[int]
    shares: list[float]
    scores: list[float] | None


def start(experiment: Experiment) -> RunState:
    """The state before round 1."""
    return RunState(0, experiment.server.init(experiment.initial_model()))


def placed(state: RunState, device: torch.device) -> RunState:
    """The same state with its tensors on `device`, where updates will be."""

    def move(tensors: Tensors) -> Tensors:
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    if device.type == "cpu":
        return state
    server = replace(state.server, tensors=move(state.server.tensors))
    return replace(state, server=server, keep={k: move(kept) for k, kept in state.keep.items()})


def play(
    experiment: Experiment, executor: Executor, state: RunState, progress: Progress | None = None
) -> tuple[RunState, dict[str, Any]]:
    """Play one round; returns the next state and the round's record."""
    began = time.perf_counter()
    server, round_idx = experiment.server, state.round_idx + 1
    epochs = experiment.schedule.epochs(round_idx)
    everyone = [_job(experiment, state, k, epochs) for k in range(experiment.setting.num_clients)]
    chosen = _select(experiment, executor, everyone, round_idx)
    jobs = [everyone[k] for k in chosen.clients]
    results = sorted(executor.train(jobs, progress), key=lambda r: r.client)
    updates = [Update(r.client, r.tensors, r.numbers) for r in results]
    next_server = server.aggregate(state.server, round_idx, updates)
    keep = {**state.keep, **{r.client: r.keep for r in results if r.keep}}
    score, beside = _evaluate(experiment, executor, next_server, keep, round_idx)
    after = RunState(
        round_idx=round_idx,
        server=next_server,
        keep=keep,
        train_batches=state.train_batches + sum(int(r.numbers["steps"]) for r in results),
        per_class=score.per_class,
    )
    record: dict[str, Any] = {
        "round": round_idx,
        "test_accuracy": score.accuracy,
        "test_loss": score.loss,
        "train_loss": sum(r.loss for r in results) / len(results),
        "local_epochs": epochs,
        "train_batches": after.train_batches,
        "selected": chosen.clients,
    }
    if experiment.config.noise.kind in ("pair", "manifest"):  # a manifest may hold pair noise
        record["shifted_accuracy"] = score.shifted
    record |= beside | server.notes(next_server) | _figures(experiment, chosen, results, epochs)
    down, up = (0, 0) if server.pools else _traffic(everyone, jobs, results, scored=chosen.scores is not None)
    record |= {"bytes_down": down, "bytes_up": up, "wall_s": round(time.perf_counter() - began, 4)}
    return after, record


def _job(experiment: Experiment, state: RunState, client: int, epochs: int) -> Job:
    round_idx = state.round_idx + 1
    return Job(
        client=client,
        received=experiment.server.model_for(state.server, client),
        keep=state.keep.get(client, {}),
        turn=Turn(round_idx, epochs, experiment.seed.child("round", round_idx, "client", client)),
    )


def _select(experiment: Experiment, executor: Executor, everyone: list[Job], round_idx: int) -> Selection:
    """Draw the clients of this round, by their own scores where the configuration asks for them."""
    config, clients = experiment.server.config, len(everyone)
    scores = None
    if config.sampling != "uniform":
        replies = executor.scores(everyone, config.sampling, config.temperature)
        scores = [replies[k] for k in range(clients)]
    p = shares(scores) if scores is not None else [1 / clients] * clients
    count = number_selected(config.client_fraction, clients)
    return Selection(draw_clients(p, count, experiment.seed.child("round", round_idx, "select")), p, scores)


def _figures(experiment: Experiment, chosen: Selection, results: list[Result], epochs: int) -> dict[str, Any]:
    """What can be told of the selection of clients and of labels; most of it only with true labels."""
    setting = experiment.setting
    ratios = noise_ratios(setting.labels, setting.truth)
    figures: dict[str, Any] = {}
    if ratios is not None:
        figures["noise_ratio"] = metrics.selected_noise(ratios, chosen.clients)
    if chosen.scores is not None:
        figures["client_scores"] = chosen.scores
        figures |= metrics.client_ranking(chosen.shares, ratios)
    with_draws = [r for r in results if "drawn" in r.evidence]
    if with_draws:
        sizes = [float(r.evidence["drawn"].sum()) / (epochs * len(r.evidence["drawn"])) for r in with_draws]
        figures["labelled_share"] = 100.0 * sum(sizes) / len(sizes)
    if setting.truth.labels is not None:
        rows = []
        for r in with_draws:
            drawn, votes = (r.evidence[n].cpu().numpy() if n in r.evidence else None for n in ("drawn", "votes"))
            assert drawn is not None
            given, true = setting.labels.given[r.client], setting.truth.labels[r.client]
            rows.append(metrics.selection(drawn, votes, given, true, epochs))
        figures |= metrics.mean_of(rows)
    return figures


def _traffic(everyone: list[Job], jobs: list[Job], results: list[Result], scored: bool) -> tuple[int, int]:
    """Bytes down and up of one round.

    Scoring sends the model to every client and one number back, and the selected ones have it already when they
    are told to train; without scoring only the selected clients receive it. Each reply is the update.
    """
    orders = {"round": 0.0, "epochs": 0.0}
    up = sum(message_bytes(r.tensors, r.numbers) for r in results)
    if not scored:
        return sum(message_bytes(job.received, orders) for job in jobs), up
    down = sum(message_bytes(job.received, {"round": 0.0}) for job in everyone)
    return down + len(jobs) * message_bytes({}, orders), up + len(everyone) * message_bytes({}, {"score": 0.0})


def _evaluate(
    experiment: Experiment,
    executor: Executor,
    server_state: ServerState,
    keep: dict[int, Tensors],
    round_idx: int,
) -> tuple[metrics.Score, dict[str, float]]:
    """Score the models that the server names on the test set; those without weight are told beside the mean."""
    labels = torch.from_numpy(experiment.setting.dataset.test.labels).long()
    scored = experiment.server.scored(server_state, keep)
    scores = [metrics.score_logits(executor.test_logits(s.tensors), labels) for s in scored]
    counted = [(score, model.weight) for score, model in zip(scores, scored, strict=True) if model.weight > 0]
    score = metrics.mean_score([s for s, _ in counted], [weight for _, weight in counted])
    beside = {f"{m.name}_accuracy": s.accuracy for s, m in zip(scores, scored, strict=True) if m.weight == 0}
    if not math.isfinite(score.loss):
        raise UserError(
            f"training diverged: the test loss is {score.loss} in round {round_idx}; "
            f"lower train.lr (now {experiment.config.train.lr}); the last checkpoint is kept"
        )
    return score, beside
