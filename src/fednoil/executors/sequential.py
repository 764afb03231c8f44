"""The reference executor: client after client, in one process, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fednoil.executors.base import Job, Look, Progress, Result
from fednoil.executors.local import Workbench
from fednoil.learners.base import Client
from fednoil.tensors import Tensors


class Sequential:
    """Runs every job on one workbench."""

    def __init__(self, bench: Workbench, clients: Mapping[int, Client], test_images: Tensor) -> None:
        self.bench = bench
        self.clients = clients
        self.test_images = test_images

    def scores(self, jobs: Sequence[Job], sampling: str, temperature: float) -> dict[int, Look]:
        return self.bench.scores(self.clients, jobs, sampling, temperature)

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        results = []
        for place, job in enumerate(jobs):

            def report(share: float, place: int = place) -> None:
                if progress:
                    progress((place + share) / len(jobs))

            results.append(self.bench.update(self.clients[job.client], job, report if progress else None))
        return results

    def test_logits(self, model: Tensors) -> Tensor:
        return self.bench.logits(model, self.test_images)
