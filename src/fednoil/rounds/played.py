"""What has happened in a round so far, as values: which clients were asked and drawn, and what came back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fednoil.executors.base import Job, Result


class Asked(Mapping[int, Job]):
    """The jobs of all clients that can be asked, each made when it is first needed: of many, few train."""

    def __init__(self, clients: Sequence[int], make: Callable[[int], Job]) -> None:
        self._clients, self._make, self._made = clients, make, dict[int, Job]()

    def __getitem__(self, client: int) -> Job:
        if client not in self._made:
            self._made[client] = self._make(client)
        return self._made[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


@dataclass(frozen=True)
class Selection:
    """The clients of a round, the clients they were drawn from and their shares p_k and, if clients gave scores, these
    and the logits [n, C] behind them, as far as they are known here."""

    clients: list[int]
    candidates: list[int]
    shares: list[float]
    scores: list[float] | None
    looks: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Review:
    """The clients that were asked about their labels before a round, and the answers of those who gave one."""

    jobs: Sequence[Job]
    results: Sequence[Result]


@dataclass(frozen=True)
class Played:
    """A round after training: the jobs of `everyone` who could be asked, who was chosen, the results of those who
    trained, in the order of their ids, and whether the server's model stays as it was."""

    epochs: int
    everyone: Mapping[int, Job]
    chosen: Selection
    results: Sequence[Result]
    kept: bool
    review: Review | None = None

    @property
    def jobs(self) -> list[Job]:
        """Those that belong to the chosen clients."""
        return [self.everyone[k] for k in self.chosen.clients]
