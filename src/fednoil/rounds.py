"""The round loop: state in, state and record out.

`play` is the only place that says what a round is. It knows no device, no file and no terminal, so the same
loop drives a simulation and a real federation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fednoil import evidence, metrics
from fednoil.evaluation import evaluate, validate
from fednoil.executors.base import Executor, Federation, Job, Progress, Result
from fednoil.experiment import Experiment
from fednoil.learners.base import Turn
from fednoil.noise import noise_ratios
from fednoil.seeds import open_uniform
from fednoil.servers.base import ServerState, Update
from fednoil.servers.sampling import draw_clients, number_selected, private_score, shares
from fednoil.tensors import Tensors, message_bytes, weighted_mean


@dataclass(frozen=True)
class RunState:
    """Everything a run remembers between rounds; a checkpoint is this value."""

    round_idx: int
    server: ServerState
    keep: dict[int, Tensors] = field(default_factory=dict)
    train_batches: int = 0
    per_class: tuple[float | None, ...] = ()
    evidence: Tensors = field(default_factory=dict)  # all clients', as `fednoil.evidence` has it; never sent
    average: Tensors = field(default_factory=dict)  # of the server's models over rounds, with `server.average`

    @property
    def final(self) -> ServerState:
        """What is scored and kept: the server's state, or its average over rounds."""
        return replace(self.server, tensors=self.average) if self.average else self.server


@dataclass(frozen=True)
class Selection:
    """The clients of a round, whom they were drawn from and by which shares p_k, and where clients gave scores these
    and the class probabilities [n, C] behind them, as far as they are known here."""

    clients: list[int]
    candidates: list[int]
    shares: list[float]
    scores: list[float] | None
    looks: dict[int, Tensor] = field(default_factory=dict)


def start(experiment: Experiment) -> RunState:
    """The state before round 1."""
    return RunState(0, experiment.server.init(experiment.first_model()))


def placed(state: RunState, device: torch.device) -> RunState:
    """The same state with its tensors on `device`, where updates will be."""

    def move(tensors: Tensors) -> Tensors:
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    if device.type == "cpu":
        return state
    server = replace(state.server, tensors=move(state.server.tensors))
    keep = {k: move(kept) for k, kept in state.keep.items()}
    average = move(state.average)
    return replace(state, server=server, keep=keep, average=average, evidence=evidence.placed(state.evidence, device))


def play(
    experiment: Experiment, executor: Executor, state: RunState, progress: Progress | None = None
) -> tuple[RunState, dict[str, Any]]:
    """Play one round; returns the next state and the round's record.

    In a federation some clients may be missing, or not answer. The round goes on with those who did; with fewer usable
    updates than `federation.min_replies`, or a mean that isn't finite, the model, and its average, stay as they are.
    """
    began = time.perf_counter()
    server, round_idx = experiment.server, state.round_idx + 1
    epochs = experiment.schedule.epochs(round_idx)
    federation = executor if isinstance(executor, Federation) else None
    there = federation.members(round_idx) if federation else range(experiment.setting.num_clients)
    everyone = {k: _job(experiment, state, k, epochs) for k in there}
    chosen = _select(experiment, executor, everyone, round_idx)
    jobs = [everyone[k] for k in chosen.clients]
    results = sorted(executor.train(jobs, progress), key=lambda r: r.client)
    enough = federation is None or len(results) >= experiment.config.federation.min_replies
    updates = [Update(r.client, r.tensors, r.numbers) for r in results]
    next_server = server.aggregate(state.server, round_idx, updates) if enough else state.server
    if federation and not all(bool(t.isfinite().all()) for t in next_server.tensors.values()):
        next_server, enough = state.server, False  # sound numbers whose mean is none
    keep = {**state.keep, **{r.client: r.keep for r in results if r.keep}}
    measured: list[Tensors] = []
    if server.config.statistics == "measure" and federation is None:
        next_server, measured = _with_statistics(experiment, executor, next_server, jobs)

    share = server.config.average
    average = _averaged(share, state, server.models(next_server)) if share and enough else state.average
    after = RunState(round_idx, next_server, keep, average=average)

    def next_job(client: int) -> Job:
        return _job(experiment, replace(after, server=after.final), client, 0)

    evaluation = evaluate(experiment, executor, after.final, keep, round_idx, next_job)
    last: dict[str, float] = {}
    if average and evaluation and federation is None:  # a federation's clients are asked once
        begun = evaluate(experiment, executor, next_server, keep, round_idx, next_job)
        last = {"last_accuracy": begun.accuracy} if begun else {}
    after = replace(
        after,
        evidence=_remembered(experiment, state.evidence, chosen.looks, results, epochs),
        train_batches=state.train_batches + sum(int(r.numbers["steps"]) for r in results),
        per_class=evaluation.per_class if evaluation else state.per_class,
    )
    record: dict[str, Any] = {
        "round": round_idx,
        "test_accuracy": evaluation.accuracy if evaluation else None,
        "test_loss": evaluation.loss if evaluation else None,
    }
    if evaluation and (known := [a for a in evaluation.per_class if a is not None]):
        record["lost_classes"] = known.count(0.0)
    record |= last
    if federation is None:  # a federation's clients keep their losses to themselves
        record["train_loss"] = sum(r.loss for r in results) / len(results)
    record |= {"local_epochs": epochs, "train_batches": after.train_batches, "selected": chosen.clients}
    if evaluation and evaluation.shifted is not None and experiment.config.noise.kind in ("pair", "manifest"):
        record["shifted_accuracy"] = evaluation.shifted  # a manifest may hold pair noise
    record |= validate(experiment, executor, next_job) | (evaluation.beside if evaluation else {})
    record |= server.notes(next_server, keep) | _figures(experiment, chosen, results, epochs)
    if federation:
        record |= _happened(federation, chosen, results, enough, list(there))
    else:
        scored = chosen.scores is not None
        down, up = (0, 0) if server.pools else _traffic(list(everyone.values()), jobs, results, scored, measured)
        record |= {"bytes_down": down, "bytes_up": up}
    return after, record | {"wall_s": round(time.perf_counter() - began, 4)}


def _happened(
    federation: Federation, chosen: Selection, results: list[Result], enough: bool, there: list[int]
) -> dict[str, Any]:
    """Who was there, what they answered, who failed or was refused and why: all by the clients' own names."""
    account = federation.account()
    told: dict[str, Any] = {"nodes": [federation.name(k) for k in there]}
    if chosen.scores is not None:
        told["scores"] = {federation.name(k): s for k, s in zip(chosen.candidates, chosen.scores, strict=True)}
    told["trained"] = [federation.name(r.client) for r in results]
    told["failed"] = {federation.name(k): why for k, why in sorted(account.failed.items())}
    told["refused"] = account.refused
    if not enough:
        told["kept"] = True
    return told | {"bytes_down": account.bytes_down, "bytes_up": account.bytes_up}


def audited(experiment: Experiment, federation: Federation, state: RunState) -> dict[str, float]:
    """After the last round: the nodes audit their labels with the final model, and tell their noise ratios, by name."""
    state = replace(state, server=state.final)
    jobs = [_job(experiment, state, k, 0) for k in federation.members(state.round_idx)]
    found = federation.noise_ratios(jobs)
    return {federation.name(k): ratio for k, ratio in sorted(found.items())}


def _job(experiment: Experiment, state: RunState, client: int, epochs: int) -> Job:
    round_idx = state.round_idx + 1
    return Job(
        client=client,
        received=experiment.server.model_for(state.server, client),
        keep=state.keep.get(client, {}),
        turn=Turn(round_idx, epochs, experiment.seed.child("round", round_idx, "client", client)),
    )


def _select(experiment: Experiment, executor: Executor, everyone: dict[int, Job], round_idx: int) -> Selection:
    """Draw the clients of this round from those who can be asked, or who have told their scores where the
    configuration asks for them."""
    config = experiment.server.config
    candidates, scores, looks = list(everyone), None, {}
    if config.sampling != "uniform":
        found = executor.scores(list(everyone.values()), config.sampling, config.temperature)
        replies = {k: look.score for k, look in found.items()}
        looks = {k: look.probabilities for k, look in found.items() if look.probabilities is not None}
        if config.score_epsilon is not None and not isinstance(executor, Federation):
            replies = {k: _noised(experiment, everyone[k], score) for k, score in replies.items()}
        candidates = [k for k in everyone if k in replies]
        scores = [replies[k] for k in candidates]
    if not candidates:
        return Selection([], [], [], scores)
    p = shares(scores) if scores is not None else [1 / len(candidates)] * len(candidates)
    count = min(number_selected(config.client_fraction, len(everyone)), len(candidates))
    drawn = draw_clients(p, count, experiment.seed.child("round", round_idx, "select"))
    return Selection([candidates[place] for place in drawn], candidates, p, scores, looks)


def _remembered(
    experiment: Experiment, before: Tensors, looks: dict[int, Tensor], results: list[Result], epochs: int
) -> Tensors:
    """The clients' evidence after a round: of all that were scored, else of those whose learner looked when it began.

    In a federation both are empty here, because the nodes keep theirs.
    """
    sizes = experiment.task.sizes
    looks = looks or {r.client: r.evidence["probabilities"] for r in results if "probabilities" in r.evidence}
    drawn = {r.client: r.evidence["drawn"] for r in results if "drawn" in r.evidence}
    if not looks and not drawn:
        return before
    if not before:
        device = next(iter((looks or drawn).values())).device
        given = [torch.from_numpy(labels).to(device) for labels in experiment.setting.labels.given]
        before = evidence.start(given, experiment.task.num_classes)
    after = evidence.add_looks(before, sizes, looks) if looks else before
    return evidence.add_draws(after, sizes, drawn, epochs)


def _noised(experiment: Experiment, job: Job, score: float) -> float:
    """A simulated client's score with the noise it would add; a real one draws its own, which no seed tells."""
    config, size = experiment.server.config, experiment.task.sizes[job.client]
    assert config.score_epsilon is not None
    scale = experiment.task.rounds / config.score_epsilon
    u = float(open_uniform(torch.tensor(job.turn.seed.child("score noise").key()), 1)[0])
    return private_score(score, size, config.sampling, scale, u)


def _figures(experiment: Experiment, chosen: Selection, results: list[Result], epochs: int) -> dict[str, Any]:
    """What can be told of the selection of clients and of labels; most of it only with true labels."""
    setting = experiment.setting
    ratios = noise_ratios(setting.labels, setting.truth)
    figures: dict[str, Any] = {}
    if ratios is not None and chosen.clients:
        figures["noise_ratio"] = metrics.selected_noise(ratios, chosen.clients)
    if chosen.scores is not None:
        if chosen.candidates == list(range(setting.num_clients)):  # of a federation it may be others, as many
            figures["client_scores"] = chosen.scores
        if chosen.candidates:
            figures |= metrics.client_ranking(chosen.shares, None if ratios is None else ratios[chosen.candidates])
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


def _with_statistics(
    experiment: Experiment, executor: Executor, state: ServerState, jobs: list[Job]
) -> tuple[ServerState, list[Tensors]]:
    """The averaged model with the BatchNorm statistics that the clients of the round have measured with it, averaged
    by their numbers of samples; and what each of them found."""
    server = experiment.server
    asked = [replace(job, received=server.model_for(state, job.client)) for job in jobs]
    found = {k: tensors for k, tensors in executor.statistics(asked).items() if tensors}
    if not found:
        return state, []
    mean = weighted_mean(list(found.values()), [experiment.task.sizes[k] for k in found])
    return server.with_statistics(state, mean), list(found.values())


def _averaged(share: float, before: RunState, models: Tensors) -> Tensors:
    """The moving average of a server's models, in which all rounds before have this share, and less of it in the first
    rounds, whose models are soon outdated. A model that is new, as a cluster's, begins its own."""
    past, r = before.average, before.round_idx + 1
    weight = 1 - min(share, (1 + r) / (10 + r))
    return {n: torch.lerp(past[n], t, weight) if n in past and t.is_floating_point() else t for n, t in models.items()}


def _traffic(
    everyone: list[Job], jobs: list[Job], results: list[Result], scored: bool, measured: list[Tensors]
) -> tuple[int, int]:
    """Bytes down and up of one round; where statistics are `measured` the new model goes to its clients once more.

    Scoring sends the model to every client and one number back, and the selected ones have it already when they
    are told to train; without scoring only the selected clients receive it. Each reply is the update.
    """
    orders = {"round": 0.0, "epochs": 0.0}
    up = sum(message_bytes(r.tensors, r.numbers) for r in results)
    up += sum(message_bytes(tensors, {}) for tensors in measured)
    down = sum(message_bytes(r.tensors, {}) for r in results) if measured else 0
    if not scored:
        return down + sum(message_bytes(job.received, orders) for job in jobs), up
    down += sum(message_bytes(job.received, {"round": 0.0}) for job in everyone)
    return down + len(jobs) * message_bytes({}, orders), up + len(everyone) * message_bytes({}, {"score": 0.0})
