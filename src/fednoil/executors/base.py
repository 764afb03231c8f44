"""The contract of an executor: it does the clients' work, wherever that runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fednoil.learners.base import Turn
from fednoil.sampling import Scoring
from fednoil.tensors import Numbers, Tensors


@dataclass(frozen=True)
class Job:
    """One client's work in one round: what it received, what it kept, and its turn. If they are already known, `looked`
    are the received model's logits [n, C] of its samples, un-augmented and in eval mode."""

    client: int
    received: Tensors
    keep: Tensors
    turn: Turn
    looked: Tensor | None = None


@dataclass(frozen=True)
class Result:
    """The result of a job. `tensors` and `numbers` are the reply to the server; `keep` is the client's state;
    `evidence` and `loss` (mean training loss) stay with the client, for metrics."""

    client: int
    tensors: Tensors
    numbers: Numbers
    keep: Tensors
    evidence: Tensors
    loss: float


@dataclass(frozen=True)
class Look:
    """What a client's received model says about its labels: the `score` that the server gets, and the `logits` [n, C]
    behind it, which stay with the client (None: the client is elsewhere)."""

    score: float
    logits: Tensor | None = None


@dataclass(frozen=True)
class HeldOut:
    """How a client's model did on the samples that the client holds out: `right` of `samples`, and the mean loss."""

    right: int
    samples: int
    loss: float


Progress = Callable[[float], None]  # share of the work done, 0 to 1


class Executor(Protocol):
    """Does the work of a round: score the clients' data, train on it, and test models."""

    @property
    def slower(self) -> str | None:
        """Why the work is slower than it could be, once that is known; otherwise None."""
        ...

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        """How clean each client finds its labels with the model it received, by client."""
        ...

    def review(self, jobs: Sequence[Job]) -> list[Result]:
        """What clients report about their labels, and what they keep of it, without training; in any order."""
        ...

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        """The results, in any order; the caller sorts them."""
        ...

    def test_logits(self, model: Tensors) -> Tensor:
        """Logits of a scored model on the test images: float32 [N, C]."""
        ...

    def held_out(self, jobs: Sequence[Job]) -> dict[int, HeldOut]:
        """Each client's model, `received`, tested on what that client holds out."""
        ...


@dataclass(frozen=True)
class Account:
    """What happened on the wire since the last account: why clients failed, the bytes sent and received, and which
    nodes were refused, by name, and why."""

    failed: dict[int, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0


class Federation(ABC):
    """An executor with its clients elsewhere: they come and go, may not answer, and keep their state and their data.

    `scores` and `train` return the valid replies that came in time; missing clients are in the next account.
    """

    slower: str | None = None

    @abstractmethod
    def members(self, round_idx: int) -> list[int]:
        """The clients that can be asked now, in the order of their ids."""

    @abstractmethod
    def name(self, client: int) -> str:
        """The client's own name."""

    @abstractmethod
    def size(self, client: int) -> int:
        """How many samples the client has, as it reported when it joined."""

    @abstractmethod
    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]: ...

    @abstractmethod
    def review(self, jobs: Sequence[Job]) -> list[Result]: ...

    @abstractmethod
    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]: ...

    @abstractmethod
    def test_logits(self, model: Tensors) -> Tensor: ...

    @abstractmethod
    def held_out(self, jobs: Sequence[Job]) -> dict[int, HeldOut]:
        """Each client's model tested on what that client holds out; for a server without a test set."""

    @abstractmethod
    def noise_ratios(self, jobs: Sequence[Job]) -> dict[int, float]:
        """Let the clients audit their labels with the model they are sent; returns each one's share of wrong labels."""

    @abstractmethod
    def account(self) -> Account:
        """What happened since the last call."""
