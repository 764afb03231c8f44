"""FedDiv's server (Li et al., AAAI 2024): one filter of clean labels for all, averaged from the clients' own.

Each client fits two Gaussians to its losses after a turn and sends their six numbers; the server keeps each client's
latest and sends back their mean weighted by samples, number by number. It begins with `passes` over all clients, one a
round, in which nobody is filtered. The filter is used by the learner `feddiv`; with others it is only computed. What
the paper leaves open: after the passes every client fits a filter to the losses of the model they ended with. All start
from the mean of the fits made during the passes (which start from the best split of a client's losses in two); later
fits start from the filter that the client has received. A client's losses are scaled to 0..1 and 5e-4 is added to
variances, as DivideMix does: otherwise the Gaussian of clean labels shrinks to those that a client has memorised, and a
filter fitted to trained models' losses suits no received model. Fits end when the likelihood changes by less than 1e-3,
after 100 steps at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.base import Client, Final, Learner, Nets, Turn
from fednoil.learners.capabilities import Wrapped
from fednoil.learners.feddiv import FILTER, filter_of, scaled_losses
from fednoil.learners.looks import logits_of
from fednoil.learners.mixture import fitted
from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig, ServerState, Update
from fednoil.servers.visits import after_visits, unvisited_first
from fednoil.tensors import Numbers, Tensors

_FLOOR = 5e-4  # added to variances


class FedDivConfig(ServerConfig):
    name: Literal["feddiv"] = "feddiv"
    passes: int = Field(
        default=5, ge=1, description="passes over all clients, one client a round, before anything else"
    )


class Filters(Wrapped):
    """Any learner, whose clients fit a filter to their losses after a turn."""

    def __init__(self, inner: Learner) -> None:
        super().__init__(inner)
        self.sends, self.reports = (*inner.sends, *FILTER), (*FILTER, "samples")

    def review(self, logits: Tensor, client: Client, keep: Tensors, turn: Turn) -> Final:
        return Final(numbers={**self._fit(logits, client, turn), "samples": float(len(client))})

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        final = self.inner.final(nets, client, state, turn)
        return replace(final, numbers={**final.numbers, **self._fit(logits_of(self, nets, client), client, turn)})

    def _fit(self, logits: Tensor, client: Client, turn: Turn) -> Numbers:
        found = fitted(scaled_losses(logits, client.labels), filter_of(turn.signals, logits.device), _FLOOR)
        return dict(zip(FILTER, found.flatten().tolist(), strict=True))


def average(filters: Sequence[Sequence[float]], sizes: Sequence[float]) -> list[float]:
    """The mean of filters, six numbers each, by the clients' samples."""
    share = torch.tensor(sizes, dtype=torch.float64)
    return ((share / share.sum()) @ torch.tensor(filters, dtype=torch.float64)).tolist()


class FedDiv(Server):
    Config = FedDivConfig
    config: FedDivConfig
    about = About(
        title="A filter of clean labels from all clients' losses",
        paper="Li et al., AAAI 2024",
        keeps="nothing (the server keeps its filter)",
        sends="model, six numbers",
        cost="1 + 1/(3E)",
    )

    def wrap(self, learner: Learner) -> Learner:
        return Filters(learner)

    def visiting(self, round_idx: int) -> bool:
        return round_idx <= self.config.passes * len(self.task.sizes)

    def most(self, state: ServerState, round_idx: int) -> int | None:
        return 1 if self.visiting(round_idx) else None

    def chances(self, state: ServerState, round_idx: int, clients: Sequence[int]) -> Sequence[float] | None:
        return unvisited_first(state.values, clients) if self.visiting(round_idx) else None

    def signals(self, state: ServerState, client: int, round_idx: int) -> Numbers:
        known: Mapping[str, list[float]] = state.values.get("filters", {})
        if self.visiting(round_idx) or not known:
            return {}
        sizes = [row[-1] for row in known.values()]
        return dict(zip(FILTER, average([row[:-1] for row in known.values()], sizes), strict=True))

    def reviews(self, state: ServerState, round_idx: int) -> bool:
        return not self.visiting(round_idx) and "common" not in state.values

    def reviewed(self, state: ServerState, round_idx: int, answers: Mapping[int, Numbers]) -> ServerState:
        return replace(state, values={**state.values, "filters": self._after(state, answers), "common": True})

    def _after(self, state: ServerState, sent: Mapping[int, Numbers]) -> dict[str, list[float]]:
        """Everybody's last filter and number of samples, with those that some have sent."""
        new = {str(client): [numbers[name] for name in (*FILTER, "samples")] for client, numbers in sent.items()}
        return dict(sorted({**state.values.get("filters", {}), **new}.items(), key=lambda item: int(item[0])))

    def aggregate(self, state: ServerState, round_idx: int, updates: Sequence[Update]) -> ServerState:
        after, values = super().aggregate(state, round_idx, updates), dict(state.values)
        values["filters"] = self._after(state, {u.client: u.numbers for u in updates if FILTER[0] in u.numbers})
        if self.visiting(round_idx):
            values["visited"] = after_visits(values, [u.client for u in updates], len(self.task.sizes))
        return replace(after, values=values)
