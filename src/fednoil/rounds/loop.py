"""One round: select, train, aggregate, average, evaluate, record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fednoil import evidence
from fednoil.evaluation import Evaluation, validate
from fednoil.executors.base import Executor, Progress
from fednoil.experiment import Experiment
from fednoil.history import RoundRecord
from fednoil.rounds.played import Asked, Played
from fednoil.rounds.policy import Policy, policy_of
from fednoil.rounds.quality import selection_quality
from fednoil.rounds.review import reviewed
from fednoil.rounds.selection import select
from fednoil.rounds.state import Best, RunState, averaged, evaluation_job, make_job
from fednoil.servers.base import ServerState
from fednoil.tensors import Tensors


def play(
    experiment: Experiment,
    executor: Executor,
    state: RunState,
    progress: Progress | None = None,
    policy: Policy | None = None,
) -> tuple[RunState, RoundRecord]:
    """Play one round; returns the next state and the round's record. A `policy` remembers earlier rounds' updates."""
    began = time.perf_counter()
    policy, round_idx = policy or policy_of(experiment, executor), state.round_idx + 1
    epochs = experiment.schedule.whole(round_idx)
    state, review = reviewed(experiment, policy, state)
    everyone = Asked(policy.members(round_idx), partial(make_job, experiment, state, epochs=epochs))
    chosen = select(experiment, policy, state, everyone)
    jobs = [replace(everyone[k], looked=chosen.looks.get(k)) for k in chosen.clients]
    results = policy.usable(jobs, executor.train(jobs, progress))
    server = policy.aggregate(state, results)
    played = Played(epochs, everyone, chosen, results, kept=server is None, review=review)
    after = replace(_after(experiment, state, server, played), spent=policy.private.spent(state.spent, played))
    evaluation = policy.evaluate(after)
    after = replace(after, per_class=evaluation.per_class if evaluation else state.per_class)
    validation = validate(experiment, executor, lambda client: evaluation_job(experiment, after, client))
    after = _with_best(after, evaluation.accuracy if evaluation and evaluation.held_out else validation[0])
    record = policy.complete(_record(experiment, after, played, evaluation, validation), played)
    record = replace(record, epsilon=policy.private.epsilon(after.spent))
    return after, replace(record, wall_s=round(time.perf_counter() - began, 4))


def _after(experiment: Experiment, state: RunState, server: ServerState | None, played: Played) -> RunState:
    """The state after a round, in which `server` is the server's new state, or None if it keeps the old one."""
    share, average = experiment.server.config.average, state.average
    if server and share:
        average = averaged(share, state, experiment.server.models(server))
    return RunState(
        state.round_idx + 1,
        server or state.server,
        keep={**state.keep, **{r.client: r.keep for r in played.results if r.keep}},
        train_batches=state.train_batches + sum(int(r.numbers["steps"]) for r in played.results),
        evidence=_remembered(experiment, state.evidence, played),
        average=average,
        best=state.best,
    )


def _with_best(after: RunState, val_accuracy: float | None) -> RunState:
    """The state with its best round by the labels that clients hold out, which is kept beside the last."""
    if val_accuracy is None:
        return after
    if after.best is not None and val_accuracy <= after.best.val_accuracy:
        return after
    return replace(after, best=Best(after.round_idx, val_accuracy, after.scored, after.per_class))


def _record(
    experiment: Experiment,
    after: RunState,
    played: Played,
    evaluation: Evaluation | None,
    validation: tuple[float | None, float | None],
) -> RoundRecord:
    """What is known of a round wherever its clients are; traffic and time are still to be filled in."""
    notes = experiment.server.notes(after.server, after.keep)
    record = RoundRecord(
        round=after.round_idx,
        local_epochs=played.epochs,
        train_batches=after.train_batches,
        selected=played.chosen.clients,
        val_accuracy=validation[0],
        val_loss=validation[1],
        extra={**(evaluation.beside if evaluation else {}), **notes},
        bytes_down=0,
        bytes_up=0,
        wall_s=0.0,
        **selection_quality(experiment, played),
    )
    if evaluation is None:
        return record
    known = [a for a in evaluation.per_class if a is not None]
    return replace(
        record,
        test_accuracy=evaluation.accuracy,
        test_loss=evaluation.loss,
        on_held_out=True if experiment.setting.dataset.about.held_out and not evaluation.held_out else None,
        lost_classes=known.count(0.0) if known else None,
        class_accuracy=[None if a is None else round(a, 2) for a in evaluation.per_class] if known else None,
        last_accuracy=evaluation.last,
        **({} if evaluation.measures is None else _rounded(evaluation.measures.overall)),
        shifted_accuracy=evaluation.shifted if experiment.config.noise.shifts else None,
        held_out=evaluation.held_out,
    )


def _rounded(numbers: Mapping[str, float | None]) -> dict[str, Any]:
    return {name: None if value is None else round(value, 4) for name, value in numbers.items()}


def _probabilities(looks: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The class probabilities of all clients' logits [n, C], by client; at once, because there may be many."""
    if not looks:
        return {}
    found = torch.softmax(torch.cat(list(looks.values())), dim=1)
    return dict(zip(looks, found.split([len(logits) for logits in looks.values()]), strict=True))


def _remembered(experiment: Experiment, before: Tensors, played: Played) -> Tensors:
    """The clients' evidence after a round: of all that were scored, else of those whose learner looked when it began.

    In a federation both are empty here, because the nodes keep theirs.
    """
    sizes, results = experiment.task.sizes, played.results
    looks = _probabilities(played.chosen.looks) or {
        r.client: r.evidence["probabilities"] for r in results if "probabilities" in r.evidence
    }
    drawn = {r.client: r.evidence["drawn"] for r in results if "drawn" in r.evidence}
    if not looks and not drawn:
        return before
    if not before:
        device = next(iter((looks or drawn).values())).device
        given = [torch.from_numpy(labels).to(device) for labels in experiment.setting.labels.given]
        before = evidence.start(given, experiment.task.num_classes)
    after = evidence.add_looks(before, sizes, looks) if looks else before
    return evidence.add_draws(after, sizes, drawn, played.epochs)
