"""Questions to the networks that several clients received, put once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fednoil.executors.base import Job
from fednoil.executors.local import Workbench
from fednoil.learners.base import Client, Learner, Wrapped, acts, together
from fednoil.tensors import Tensors


def surveys(bench: Workbench, everyone: Mapping[int, Client], jobs: Sequence[Job]) -> dict[int, Tensors]:
    """The surveys of clients that received the same model and keep none, each model asked once."""
    found: dict[int, Tensors] = {}
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        if not own_networks(bench, job) and acts(bench.learner, "survey") and usual(bench.learner):
            groups.setdefault(id(job.received), []).append(job)
    for group in groups.values():
        alike: dict[object, list[tuple[Job, Tensors]]] = {}
        for job in group:
            asked = bench.learner.asks(everyone[job.client], job.turn)
            alike.setdefault(_form(asked), []).append((job, asked))
        bench.load(group[0].received, {})
        for members in alike.values():
            clients = [everyone[job.client] for job, _ in members]
            answers = _answers(bench, clients, [asked for _, asked in members])
            found |= {job.client: answer for (job, _), answer in zip(members, answers, strict=True)}
    return found


def _form(asked: Tensors) -> frozenset[object]:
    """What must be equal for two clients' questions to be put as one; a learner may ask some clients more."""
    return frozenset((name, tensor.dtype, tensor.shape[1:]) for name, tensor in asked.items())


def _answers(bench: Workbench, clients: Sequence[Client], asked: Sequence[Tensors]) -> list[Tensors]:
    """Each client's part of one survey of all of them."""
    whole = {name: torch.cat([one[name] for one in asked]) for name in asked[0]}
    answers = bench.survey(together(clients), whole)
    pieces = {name: tensor.split([len(c) for c in clients]) for name, tensor in answers.items()}
    return [{name: parts[place] for name, parts in pieces.items()} for place in range(len(clients))]


def own_networks(bench: Workbench, job: Job) -> bool:
    """Whether the client has networks of its own, kept from its last turn."""
    return bool(job.keep) and any(role.kept for role in bench.learner.roles)


def usual(learner: Learner) -> bool:
    """Whether its confidences are those of single samples; a learner's own may look at whole clients."""
    return _inner(learner).confidence.__func__ is Learner.confidence


def _inner(learner: Learner) -> Learner:
    """The learner inside all wrappings."""
    return _inner(learner.inner) if isinstance(learner, Wrapped) else learner
