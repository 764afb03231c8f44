"""The reference executor: client after client, in one process, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fednoil.executors.asking import current, looks, scored
from fednoil.executors.base import HeldOut, Job, Look, Progress, Result
from fednoil.executors.local import Workbench
from fednoil.learners.base import Client
from fednoil.sampling import Scoring
from fednoil.tensors import Tensors

# Clients from which on those with the same model share one pass: one after another, calls cost more than samples. Sums
# in a batch are rounded differently, so a few clients are asked as in a federation, each for itself.
_MANY = 500


class Sequential:
    """Runs every job on one workbench."""

    slower: str | None = None

    def __init__(
        self,
        bench: Workbench,
        clients: Mapping[int, Client],
        test_images: Tensor,
        validation: Mapping[int, Client] | None = None,
    ) -> None:
        self.bench = bench
        self.clients = clients
        self.test_images = test_images
        self.validation = {} if validation is None else validation

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        clients = current(self.clients, jobs)
        if len(jobs) < _MANY:
            return scored(self.bench.looks(clients, jobs), clients, jobs, sampling)
        ordered = sorted(jobs, key=lambda job: job.client)
        return scored(looks(self.bench, clients, ordered), clients, ordered, sampling)

    def review(self, jobs: Sequence[Job]) -> list[Result]:
        clients = current(self.clients, jobs)
        looked = self.bench.looks(clients, jobs)
        return [self.bench.review(clients[job.client], job, looked[job.client]) for job in jobs]

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        results, clients = [], current(self.clients, jobs)
        for place, job in enumerate(jobs):

            def report(share: float, place: int = place) -> None:
                if progress:
                    progress((place + share) / len(jobs))

            results.append(self.bench.update(clients[job.client], job, report if progress else None))
        return results

    def test_logits(self, model: Tensors) -> Tensor:
        return self.bench.logits(model, self.test_images)

    def held_out(self, jobs: Sequence[Job]) -> dict[int, HeldOut]:
        """Clients that have the same model share one pass over all their samples."""
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            groups.setdefault(id(job.received), []).append(job)
        found: dict[int, HeldOut] = {}
        for group in groups.values():
            clients = [self.validation[job.client] for job in group]
            index = torch.cat([c.index for c in clients])
            logits = self.bench.logits(group[0].received, clients[0].pool, index)
            found |= dict(zip((job.client for job in group), held_out(logits, clients), strict=True))
        return found


def held_out(logits: Tensor, clients: Sequence[Client]) -> list[HeldOut]:
    """How well logits [n, C] of several clients' samples, one client after another, match their given labels."""
    labels = torch.cat([c.labels for c in clients])
    right = logits.argmax(1) == labels
    loss = F.cross_entropy(logits, labels, reduction="none")
    numbers = torch.stack([right.double(), loss.double()], 1)
    sums = torch.stack([part.sum(0) for part in numbers.split([len(c) for c in clients])]).tolist()
    return [HeldOut(int(r), len(c), total / len(c)) for c, (r, total) in zip(clients, sums, strict=True)]
