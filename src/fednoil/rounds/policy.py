"""What a round may expect of its clients, which depends on where they are.

An executor whose clients may be missing or fail has its own policy (`OwnPolicy`); for any other, `play` uses `Policy`,
a simulation's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from fednoil import metrics
from fednoil.errors import UserError
from fednoil.evaluation import Evaluation, evaluate
from fednoil.executors.base import Executor, Federation, Job, Look, Result
from fednoil.experiment import Experiment
from fednoil.history import RoundRecord
from fednoil.rounds.limits import Limits
from fednoil.rounds.played import Played
from fednoil.rounds.private import Private
from fednoil.rounds.state import RunState, evaluation_job
from fednoil.sampling import Scoring
from fednoil.seeds import open_uniform
from fednoil.servers.base import ServerState, check_state
from fednoil.tensors import message_bytes


class Policy:
    """A simulation's policy: all clients are available and answer, and the server tests its model in every round."""

    has_data: ClassVar[bool] = True  # the clients' samples are in this process
    limited: ClassVar[bool] = False  # what one client can do is limited, unless `server.limits` says otherwise

    def __init__(self, experiment: Experiment, executor: Executor) -> None:
        self.experiment = experiment
        self.executor = executor
        self.private = Private(experiment, federated=not self.has_data)
        wanted = experiment.server.config.limits
        limited = self.limited and self.private.compares if wanted is None else wanted
        self.limits = Limits(experiment.task.parameters) if limited and not experiment.server.pools else None

    def size(self, client: int) -> int:
        """How many samples a client has, as far as that is known."""
        return self.experiment.task.sizes[client]

    def name(self, client: int) -> str:
        """What a client is called in records."""
        return str(client)

    def bounded(self, scores: Mapping[int, float], sampling: Scoring) -> list[float]:
        """The scores that count for the draw, in the order of `scores`."""
        if self.limits is None:
            return list(scores.values())
        largest = {client: sampling.largest(self.size(client)) for client in scores}
        found = self.limits.scores({client: score / largest[client] for client, score in scores.items()})
        return [score if found[k] >= score / largest[k] else found[k] * largest[k] for k, score in scores.items()]

    def usable(self, jobs: Sequence[Job], results: Sequence[Result]) -> list[Result]:
        """The results that count, in the order of client ids."""
        ordered = self.private.usable(jobs, sorted(results, key=lambda r: r.client))
        return ordered if self.limits is None else self.limits.updates(jobs, ordered)

    def members(self, round_idx: int) -> Sequence[int]:
        """The clients that can be asked in this round, in the order of their ids."""
        return range(self.experiment.setting.num_clients)

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        """The scores that the server gets from clients that answer, with the noise that `privacy.scores` asks for."""
        found, epsilon = self.executor.scores(jobs, sampling), self.experiment.config.privacy.scores
        if epsilon is None:
            return found
        seeds = {job.client: job.turn.seed for job in jobs}
        scale = self.experiment.task.rounds / epsilon
        noised: dict[int, Look] = {}
        for client, look in found.items():
            u = float(open_uniform(torch.tensor(seeds[client].child("score noise").key()), 1)[0])
            size = self.experiment.task.sizes[client]
            noised[client] = replace(look, score=sampling.private(look.score, size, scale, u))
        return noised

    def review(self, jobs: Sequence[Job]) -> list[Result]:
        """What the clients that answer report about their labels."""
        return self.executor.review(jobs) if jobs else []

    def aggregate(self, state: RunState, results: Sequence[Result]) -> ServerState | None:
        """The server's next state; None: the updates can't be used, and the model stays as it is."""
        return self._aggregated(state, results)

    def _aggregated(self, state: RunState, results: Sequence[Result]) -> ServerState:
        round_idx = state.round_idx + 1
        updates = self.private.updates(state.server, round_idx, results)
        server, name = self.experiment.server, self.experiment.config.server.name
        found = server.aggregate(state.server, round_idx, updates)
        if not isinstance(found, ServerState):
            got = "None" if found is None else f"a {type(found).__name__}"
            raise UserError(f"server.name = '{name}': its aggregate must return a ServerState, not {got}")
        client = results[0].client if results else 0
        check_state(name, found, *(server.model_for(one, client) for one in (found, state.server)))
        return found

    def evaluate(self, after: RunState) -> Evaluation | None:
        """How good the model is after a round; None: not known. Beside an average over rounds also the last model."""
        if not len(self.experiment.setting.dataset.test):
            return None
        found = evaluate(self.experiment, self.executor, after.scored, after.keep, after.round_idx)
        if not after.average:
            return found
        last = evaluate(self.experiment, self.executor, after.server, after.keep, after.round_idx)
        return replace(found, last=last.accuracy)

    def complete(self, record: RoundRecord, played: Played) -> RoundRecord:
        """The record with what depends on where the clients are: the mean training loss, and bytes."""
        loss = sum(r.loss for r in played.results) / len(played.results) if played.results else None
        down, up = (0, 0) if self.experiment.server.pools else _traffic(played)
        return replace(record, train_loss=loss, bytes_down=down, bytes_up=up, limited=self.limitations())

    def limitations(self) -> dict[str, str] | None:
        """Whom the limits have affected in this round, and how; None: there are no limits."""
        if self.limits is None:
            return None
        return {self.name(client): words for client, words in self.limits.report().items()}

    def finish(self, state: RunState) -> dict[str, Any]:
        """After the last round: what the clients add to the run's summary."""
        return {}


class FederationPolicy(Policy):
    """Clients on machines of their own: some are missing or don't answer, and the round continues with those who do.

    With fewer usable updates than `federation.min_replies`, or a mean that isn't finite, the model stays as it is. The
    clients add the noise to their scores and keep their training losses. They are named, not numbered, in the record.
    """

    has_data = False
    limited = True

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        super().__init__(experiment, federation)
        self.federation = federation

    def size(self, client: int) -> int:
        return self.federation.size(client)

    def name(self, client: int) -> str:
        return self.federation.name(client)

    def members(self, round_idx: int) -> Sequence[int]:
        return self.federation.members(round_idx)

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        return self.federation.scores(jobs, sampling)

    def aggregate(self, state: RunState, results: Sequence[Result]) -> ServerState | None:
        if len(results) < self.experiment.config.federation.min_replies:
            return None
        found = self._aggregated(state, results)
        # Finite updates can have a mean that isn't.
        return found if all(bool(t.isfinite().all()) for t in found.tensors.values()) else None

    def evaluate(self, after: RunState) -> Evaluation | None:
        """In every `federation.evaluate_every`-th round and the last; without a test set on what the clients hold out,
        each client with the model that is its own."""
        config, round_idx = self.experiment.config, after.round_idx
        if round_idx % config.federation.evaluate_every and round_idx != config.train.rounds:
            return None
        if len(self.experiment.setting.dataset.test):
            return evaluate(self.experiment, self.executor, after.scored, after.keep, round_idx)
        members = self.federation.members(round_idx)
        found = self.federation.held_out([evaluation_job(self.experiment, after, k) for k in members])
        if not found:
            return None
        by_name = {
            self.federation.name(k): {"accuracy": 100.0 * h.right / h.samples, "samples": h.samples, "loss": h.loss}
            for k, h in sorted(found.items())
        }
        accuracy, loss = metrics.mean_held_out(list(found.values()))
        return Evaluation(accuracy, loss, held_out=by_name)

    def complete(self, record: RoundRecord, played: Played) -> RoundRecord:
        """The record with the nodes that took part, their answers, who failed or was refused and why, and bytes on the
        wire."""
        name, chosen, account = self.federation.name, played.chosen, self.federation.account()
        scores = None
        if chosen.scores is not None:
            scores = {name(k): score for k, score in zip(chosen.candidates, chosen.scores, strict=True)}
        return replace(
            record,
            nodes=[name(k) for k in played.everyone],
            scores=scores,
            trained=[name(r.client) for r in played.results],
            failed={name(k): why for k, why in sorted(account.failed.items())},
            refused=account.refused,
            limited=self.limitations(),
            kept=True if played.kept else None,
            bytes_down=account.bytes_down,
            bytes_up=account.bytes_up,
        )

    def finish(self, state: RunState) -> dict[str, Any]:
        """With `federation.audit` the clients audit their labels with the final model, and send their noise ratios."""
        if not self.experiment.config.federation.audit:
            return {}
        final = replace(state, server=state.final(self.experiment.config.run.select), average={})
        jobs = [evaluation_job(self.experiment, final, k) for k in self.federation.members(state.round_idx)]
        found = self.federation.noise_ratios(jobs)
        return {"noise_ratios": {self.federation.name(k): ratio for k, ratio in sorted(found.items())}}


@runtime_checkable
class OwnPolicy(Protocol):
    """An executor with its own policy."""

    @property
    def policy(self) -> Policy: ...


def policy_of(experiment: Experiment, executor: Executor) -> Policy:
    """The executor's own policy, or that of a simulation."""
    return executor.policy if isinstance(executor, OwnPolicy) else Policy(experiment, executor)


def _traffic(played: Played) -> tuple[int, int]:
    """Bytes down and up of one round.

    A review or scoring sends the model to every client and a few numbers back, and the selected ones already have it
    when they are asked to train; without either only the selected clients receive it. Each reply is the update.
    """
    review, scored, everyone = played.review, played.chosen.scores is not None, played.everyone.values()
    down = sum(message_bytes({}, {"round": 0.0, "epochs": 0.0, **job.turn.signals}) for job in played.jobs)
    down += _models(everyone if review or scored else played.jobs)
    up = sum(message_bytes(r.tensors, r.numbers) for r in played.results)
    if scored:
        down += len(everyone) * message_bytes({}, {"round": 0.0})
        up += len(everyone) * message_bytes({}, {"score": 0.0})
    if review:
        down += sum(message_bytes({}, {"round": 0.0, **job.turn.signals}) for job in review.jobs)
        up += sum(message_bytes({}, r.numbers) for r in review.results)
    return down, up


def _models(jobs: Iterable[Job]) -> int:
    """Bytes of all models that are received; one that many receive is measured once."""
    received = {id(job.received): job.received for job in jobs}
    times = Counter(id(job.received) for job in jobs)
    return sum(times[which] * message_bytes(model, {}) for which, model in received.items())
