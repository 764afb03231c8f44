"""One stack for the clients of several runs that differ in their seeds, labels and splits alone.

Each run has a `Share` of it, an executor like any other, which knows only its own clients. What differs between clients
of one run may differ between those of several, too: the model received, the data, the turn. So the stack trains them
all at once, and a client's result depends on those beside it by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fednoil.executors.base import HeldOut, Job, Look, Progress, Result
from fednoil.executors.cuda import CudaGraphs
from fednoil.learners.base import Client
from fednoil.sampling import Scoring
from fednoil.tensors import Tensors

_ROOM = 1 << 32  # numbers for the clients of one run


class Share:
    """One run's executor. `meet` is given its jobs when it trains, and returns when those of all runs are done."""

    def __init__(self, joint: Joint, number: int, meet: Callable[[Sequence[Job]], list[Result]]) -> None:
        self.joint, self.first, self.meet = joint, number * _ROOM, meet

    @property
    def slower(self) -> str | None:
        return self.joint.stack.slower

    def numbered(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with the numbers that their clients have in the stack."""
        return [replace(job, client=self.first + job.client) for job in jobs]

    def own(self, results: Sequence[Result]) -> list[Result]:
        """The results with the numbers that their clients have in the run."""
        return [replace(result, client=result.client - self.first) for result in results]

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        found = self.joint.stack.scores(self.numbered(jobs), sampling)
        return {client - self.first: look for client, look in found.items()}

    def review(self, jobs: Sequence[Job]) -> list[Result]:
        return self.own(self.joint.stack.review(self.numbered(jobs)))

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        return self.meet(jobs) if jobs else []

    def test_logits(self, model: Tensors) -> Tensor:
        return self.joint.stack.test_logits(model)

    def held_out(self, jobs: Sequence[Job]) -> dict[int, HeldOut]:
        found = self.joint.stack.held_out(self.numbered(jobs))
        return {client - self.first: held for client, held in found.items()}


class Joint:
    """A stack whose clients, and what they hold out, are added run by run."""

    def __init__(self, make_stack: Callable[[Mapping[int, Client], Mapping[int, Client]], CudaGraphs]) -> None:
        self.clients: dict[int, Client] = {}
        self.validation: dict[int, Client] = {}
        self.stack = make_stack(self.clients, self.validation)
        self.runs = 0

    def join(
        self,
        clients: Mapping[int, Client],
        validation: Mapping[int, Client] | None,
        meet: Callable[[Sequence[Job]], list[Result]],
    ) -> Share:
        """The executor of one more run with these clients."""
        share = Share(self, self.runs, meet)
        self.runs += 1
        self.clients |= {share.first + k: client for k, client in clients.items()}
        self.validation |= {share.first + k: client for k, client in (validation or {}).items()}
        return share

    def train(self, asked: Sequence[tuple[Share, Sequence[Job]]]) -> list[list[Result]]:
        """The results of several runs' jobs, all of the same round."""
        found = self.stack.train([job for share, jobs in asked for job in share.numbered(jobs)])
        rest = iter(found)
        return [share.own([next(rest) for _ in jobs]) for share, jobs in asked]
