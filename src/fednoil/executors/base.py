"""The contract of an executor: it does the clients' work, wherever and however that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fednoil.learners.base import Turn
from fednoil.tensors import Numbers, Tensors


@dataclass(frozen=True)
class Job:
    """One client's work in one round: what it received, what it kept, and its turn."""

    client: int
    received: Tensors
    keep: Tensors
    turn: Turn


@dataclass(frozen=True)
class Result:
    """What came of a job. `tensors` and `numbers` are the reply to the server; `keep` is the client's state;
    `evidence` and `loss` (mean training loss) stay with the client and serve metrics."""

    client: int
    tensors: Tensors
    numbers: Numbers
    keep: Tensors
    evidence: Tensors
    loss: float


Progress = Callable[[float], None]  # share of the work done, 0 to 1


class Executor(Protocol):
    """Does what a round asks of clients: score their data, train on it, and test models."""

    def scores(self, jobs: Sequence[Job], sampling: str, temperature: float) -> dict[int, float]:
        """How clean each client finds its labels with the model it received: client -> one number."""
        ...

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        """The results, in any order; the caller sorts them."""
        ...

    def test_logits(self, model: Tensors) -> Tensor:
        """Logits of a scored model on the test images: float32 [N, C]."""
        ...
