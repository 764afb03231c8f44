"""What the received networks say about the samples: computed once a round, and together for equal networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fednoil.executors.base import Job, Look
from fednoil.executors.local import Workbench
from fednoil.learners.base import Client, together
from fednoil.learners.capabilities import asks
from fednoil.learners.looks import confidences
from fednoil.sampling import Scoring
from fednoil.tensors import Tensors


def current(everyone: Mapping[int, Client], jobs: Sequence[Job]) -> dict[int, Client]:
    """The clients of some jobs, with the labels that they have corrected."""
    return {job.client: everyone[job.client].corrected(job.keep) for job in jobs}


def scored(
    looks: Mapping[int, Tensor], everyone: Mapping[int, Client], jobs: Sequence[Job], sampling: Scoring
) -> dict[int, Look]:
    """How clean each client's received model finds its labels."""
    if not jobs:
        return {}
    keys = [job.client for job in jobs]
    own, labels = [looks[k] for k in keys], torch.cat([everyone[k].labels for k in keys])
    found = confidences(torch.cat(own), labels, sampling.temperature).split([len(logits) for logits in own])
    return {k: Look(score, looks[k]) for k, score in zip(keys, sampling.scores(found), strict=True)}


def looks(bench: Workbench, everyone: Mapping[int, Client], jobs: Sequence[Job]) -> dict[int, Tensor]:
    """Logits [n, C] of each client's samples by the model it received."""
    found: dict[int, Tensor] = {}
    for group in _alike(bench, jobs):
        clients = [everyone[job.client] for job in group]
        bench.load(group[0].received, {})
        parts = bench.look(together(clients)).split([len(c) for c in clients])
        found |= {job.client: part for job, part in zip(group, parts, strict=True)}
    return found | bench.looks(everyone, [job for job in jobs if job.client not in found])


def surveys(bench: Workbench, everyone: Mapping[int, Client], jobs: Sequence[Job]) -> dict[int, Tensors]:
    """The surveys of clients that received the same model and keep none, with one pass per model."""
    found: dict[int, Tensors] = {}
    if not bench.surveying:
        return found
    for group in _alike(bench, jobs):
        alike: dict[object, list[tuple[Job, Tensors]]] = {}
        questions = asks(bench.surveying, [everyone[job.client] for job in group], [job.turn for job in group])
        for job, asked in zip(group, questions, strict=True):
            alike.setdefault(_form(asked), []).append((job, asked))
        bench.load(group[0].received, {})
        for members in alike.values():
            clients = [everyone[job.client] for job, _ in members]
            answers = _answers(bench, clients, [asked for _, asked in members])
            found |= {job.client: answer for (job, _), answer in zip(members, answers, strict=True)}
    return found


def _alike(bench: Workbench, jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The jobs of clients that keep no networks, grouped by the model that they received."""
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        if not (job.keep and any(role.kept for role in bench.learner.roles)):
            groups.setdefault(id(job.received), []).append(job)
    yield from groups.values()


def _form(asked: Tensors) -> frozenset[object]:
    """What must be equal for two clients to share a survey; a learner may ask more of some clients."""
    return frozenset((name, tensor.dtype, tensor.shape[1:]) for name, tensor in asked.items())


def _answers(bench: Workbench, clients: Sequence[Client], asked: Sequence[Tensors]) -> list[Tensors]:
    """Each client's part of one survey of all clients."""
    whole = {name: torch.cat([one[name] for one in asked]) for name in asked[0]}
    answers = bench.survey(together(clients), whole)
    pieces = {name: tensor.split([len(c) for c in clients]) for name, tensor in answers.items()}
    return [{name: parts[place] for name, parts in pieces.items()} for place in range(len(clients))]
