"""The server's side of a federation: the work of a round as messages to nodes.

A reply is used only if it has the agreed form and plausible numbers; otherwise its sender misses the round, and no
other node is affected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from flwr.app import RecordDict
from torch import Tensor

from fednoil.config import to_toml
from fednoil.executors.base import Account, Federation, HeldOut, Job, Look, Progress, Result
from fednoil.experiment import Experiment, make_bench, resident
from fednoil.flower.members import Members
from fednoil.flower.messages import (
    AUDIT,
    AUDIT_REPLY,
    EVALUATE,
    EVALUATE_REPLY,
    PROTOCOL,
    REVIEW,
    SCORE,
    SCORE_REPLY,
    TRAIN,
    BadMessage,
    Body,
    Form,
    clean,
    model_arrays,
    objects_of,
    order_form,
    pack,
    review_form,
    secure_form,
    unpack,
    update_form,
)
from fednoil.flower.secure import real
from fednoil.flower.secure_server import Read, SecureSum, TooFew
from fednoil.rounds import FederationPolicy
from fednoil.sampling import Scoring
from fednoil.tensors import Tensors

log = logging.getLogger("flwr.fednoil")
T = TypeVar("T")
_LOSS = 1e4  # the most that a mean loss may be
_GROWTH, _DRIFT = 1e2, 1e6  # factors by which a weight, or an untrained number, may exceed the sent model's


class FlowerExecutor(Federation):
    """Runs jobs on the nodes of a Flower federation."""

    def __init__(self, experiment: Experiment, members: Members, out: Path, device: torch.device) -> None:
        self.policy = FederationPolicy(experiment, self)
        self.crew = members
        self.crew.save(out)
        self._config = to_toml(experiment.config)
        self._learner = experiment.learner
        self._trained = experiment.task.parameters
        self._arrays = model_arrays(experiment.initial_model())
        self._frozen = experiment.fixed_hash()
        self._bench = make_bench(experiment, device)
        self._test_images = resident(experiment.setting.dataset.test.images, device)
        self._privacy = experiment.config.privacy
        self._failed: dict[int, list[str]] = {}  # a client's failures in this round

    def members(self, round_idx: int) -> list[int]:
        return self.crew.refresh(round_idx)

    def name(self, client: int) -> str:
        return self.crew.name(client)

    def size(self, client: int) -> int:
        return self.crew.sites[client].samples

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        def read(client: int, body: Body) -> Look:
            score = body.numbers["score"]
            most = sampling.largest(self.crew.sites[client].samples)
            # Sums of float32 confidences may exceed n by rounding.
            if not 0 <= score <= most * (1 + 1e-6):
                raise BadMessage(f"a score of {score:g} from {self.crew.sites[client].samples} samples is not possible")
            return Look(score)

        return self._ask(SCORE, jobs, SCORE_REPLY, read)

    def review(self, jobs: Sequence[Job]) -> list[Result]:
        def read(client: int, body: Body) -> Result:
            return Result(client, {}, body.numbers, keep={}, evidence={}, loss=0.0)

        return list(self._ask(REVIEW, jobs, review_form(self._learner), read).values())

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        sent = {job.client: job.received for job in jobs}

        def read(client: int, body: Body) -> Result:
            self._check_size(client, body)
            _check_update(sent[client], body.arrays, self._trained)
            return Result(client, body.arrays, body.numbers, keep={}, evidence={}, loss=0.0)

        if self._privacy.sees == "sum":
            found = self._train_in_secret(jobs)
        else:
            found = list(self._ask(TRAIN, jobs, update_form(self._arrays, self._learner), read).values())
        if progress:
            progress(1.0)
        return found

    def _check_size(self, client: int, body: Body) -> None:
        reported = self.crew.sites[client].samples
        if body.numbers["samples"] != reported or not 0 <= body.numbers["steps"] <= 1e9:
            raise BadMessage(f"it reported {reported} samples but trained on {body.numbers['samples']:g}")

    def _train_in_secret(self, jobs: Sequence[Job]) -> list[Result]:
        """One result for each client of the secure sum, all with the mean of their models."""
        if not jobs:
            return []
        try:
            return self._summed({job.client: job for job in jobs})
        except TooFew as error:
            log.warning("round %d: %s", jobs[0].turn.round_idx, error)
            for job in jobs:
                self._failed.setdefault(job.client, [f"train: {error}"])
            return []

    def _summed(self, jobs: Mapping[int, Job]) -> list[Result]:
        any_job = next(iter(jobs.values()))
        round_idx, received = any_job.turn.round_idx, any_job.received
        common = {"protocol": PROTOCOL, "config": self._config, "run": self.crew.run, "round": round_idx}

        def ask(kind: str, orders: Mapping[int, Body], order: Form, form: Form, read: Read) -> dict[int, Any]:
            return self._collect(kind, round_idx, {k: pack(order, body) for k, body in orders.items()}, form, read)

        def numbers(client: int, body: Body) -> dict[str, float]:
            self._check_size(client, body)
            return body.numbers

        size = sum(tensor.numel() for tensor in received.values())
        work = SecureSum(ask, common, self.name, size)
        shares = work.prepare(list(jobs))
        orders = {k: self._order(jobs[k]) for k in shares}
        for k, body in orders.items():
            body.values.update(senders=list(shares[k]), shares=list(shares[k].values()), among=len(work.keys))
        found = work.masked(orders, secure_form(self._arrays), numbers)
        total = work.total({k: vector for k, (vector, _) in found.items()}, list(shares))
        weights = [1.0 if self._privacy.noise else self.size(k) for k in found]
        mean = _moved(received, real(total, received, sum(weights)))
        try:
            _check_update(received, mean, self._trained)
        except BadMessage as error:
            raise TooFew(f"the secure sum can't be used, because of a wrong share or update in it: {error}") from None
        return [Result(k, mean, numbers, keep={}, evidence={}, loss=0.0) for k, (_, numbers) in found.items()]

    def held_out(self, jobs: Sequence[Job]) -> dict[int, HeldOut]:
        def read(client: int, body: Body) -> HeldOut:
            found = HeldOut(body.numbers["right"], body.numbers["samples"], body.numbers["loss"])
            if found.samples != self.crew.sites[client].held_out or not 0 <= found.right <= found.samples:
                raise BadMessage(f"{found.right} correct of {found.samples} held out is not possible")
            if not 0 <= found.loss <= _LOSS:
                raise BadMessage(f"a loss of {found.loss:g} is not possible")
            return found

        found = self._ask(EVALUATE, jobs, EVALUATE_REPLY, read)
        return {client: held for client, held in found.items() if held.samples}

    def noise_ratios(self, jobs: Sequence[Job]) -> dict[int, float]:
        def read(client: int, body: Body) -> float:
            ratio = body.numbers["noise_ratio"]
            if not 0 <= ratio <= 1:
                raise BadMessage(f"a noise ratio of {ratio:g} is not possible")
            return ratio

        return self._ask(AUDIT, jobs, AUDIT_REPLY, read)

    def test_logits(self, model: Tensors) -> Tensor:
        return self._bench.logits(model, self._test_images)

    def account(self) -> Account:
        wire = self.crew.wire
        failed = {client: "; ".join(why) for client, why in self._failed.items()}
        account = Account(failed, self.crew.refused(), wire.bytes_down, wire.bytes_up)
        self._failed, wire.bytes_down, wire.bytes_up = {}, 0, 0
        return account

    def _ask(self, kind: str, jobs: Sequence[Job], form: Form, read: Callable[[int, Body], T]) -> dict[int, T]:
        """Send the jobs to their nodes; returns the valid replies by client, in the order of client ids."""
        orders = {job.client: pack(order_form(self._arrays), self._order(job)) for job in jobs}
        return self._collect(kind, jobs[0].turn.round_idx if jobs else 0, orders, form, read)

    def _collect(
        self, kind: str, round_idx: int, orders: Mapping[int, RecordDict], form: Form, read: Callable[[int, Body], T]
    ) -> dict[int, T]:
        """Send each client its order; returns the valid replies by client, in the order of client ids."""
        clients = {self.crew.nodes[client]: client for client in orders}
        contents = {self.crew.nodes[client]: content for client, content in orders.items()}
        found: dict[int, T] = {}
        for node, reply in self.crew.wire.ask(kind, round_idx, contents, most=objects_of(form)).items():
            client = clients[node]
            try:
                if isinstance(reply, str):
                    raise BadMessage(reply)
                found[client] = read(client, unpack(form, reply))
            except Exception as error:  # whatever a node sends must not affect the others
                said = error if isinstance(error, BadMessage) else f"its reply can't be used ({type(error).__name__})"
                why = f"{kind.removeprefix('query.')}: {clean(said)}"
                self._failed.setdefault(client, []).append(why)
                log.warning("round %d: %s is left out: %s", round_idx, self.name(client), why)
        return dict(sorted(found.items()))

    def _order(self, job: Job) -> Body:
        agreement, founders = self.crew.agreement, self.crew.founders
        assert agreement is not None
        values = {
            "protocol": PROTOCOL,
            "config": self._config,
            "run": self.crew.run,
            "client": job.client,
            "round": job.turn.round_idx,
            "epochs": job.turn.epochs,
            "classes": list(agreement.class_names),
            "shape": list(agreement.image_shape),
            "columns": list(agreement.columns),
            "mean": list(agreement.mean),
            "std": list(agreement.std),
            "founders": len(founders),
            "samples": sum(founders.values()),
            "frozen": self._frozen,
            "signals": list(job.turn.signals),
            "signal_values": list(job.turn.signals.values()),
        }
        return Body(job.received, values=values)


def _check_update(sent: Tensors, update: Tensors, trained: frozenset[str]) -> None:
    """Refuse what would ruin the mean; the bound depends on the model that was sent, so honest nodes stay within it."""
    largest = max((_largest(tensor) for name, tensor in sent.items() if _weight(name, trained)), default=1.0)
    for name, tensor in update.items():
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise BadMessage(f"array '{name}' holds a variance below 0")
        growth = _GROWTH if _weight(name, trained) else _DRIFT
        before = largest if _weight(name, trained) else _largest(sent[name])
        if _largest(tensor) > growth * max(1.0, before):
            raise BadMessage(f"array '{name}' holds values above {growth:g} times the largest of the model it was sent")


def _moved(before: Tensors, change: Tensors) -> Tensors:
    """The model after a change; whole numbers are rounded."""
    return {
        name: (tensor.double() + change[name]).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor + change[name].round().to(tensor.dtype)
        for name, tensor in before.items()
    }


def _weight(name: str, trained: frozenset[str]) -> bool:
    return name.split("/", 1)[-1] in trained


def _largest(tensor: Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0
