"""FedGR's server (Tian et al., ICML 2026): first visit every client a few times, then average like FedAvg.

In the first rounds clients train in turn until all have been visited `passes` times; the learner `fedgr` only listens
then. For `warmup` rounds after that clients are drawn by their share of clean labels, as they report it; later the
sampling decides. Ours: the visits end after `passes` times as many rounds as there are clients, whoever is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig, ServerState, Update
from fednoil.servers.visits import after_visits, unvisited_first
from fednoil.tensors import Numbers


class FedGrConfig(ServerConfig):
    name: Literal["fedgr"] = "fedgr"
    passes: int = Field(default=10, ge=0, description="passes over all clients before all else")
    warmup: int = Field(default=0, ge=0, description="rounds after that with clients drawn by their clean labels")


class FedGr(Server):
    Config = FedGrConfig
    config: FedGrConfig
    about = About(
        title="Visits to all clients, then federated averaging",
        paper="Tian et al., ICML 2026",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def visiting(self, state: ServerState, round_idx: int) -> bool:
        done = state.values.get("passes", 0) >= self.config.passes
        return not done and round_idx <= self.config.passes * len(self.task.sizes)

    def told(self, state: ServerState, client: int, round_idx: int) -> Numbers:
        return {"visiting": float(self.visiting(state, round_idx))}

    def chances(self, state: ServerState, round_idx: int, clients: Sequence[int]) -> Sequence[float] | None:
        if self.visiting(state, round_idx):
            return unvisited_first(state.values, clients)
        noise = state.values.get("noise", {})
        if round_idx > state.values.get("since", 0) + self.config.warmup or not noise:
            return None
        return cleaner([noise.get(str(client), 0.0) for client in clients])

    def aggregate(self, state: ServerState, round_idx: int, updates: Sequence[Update]) -> ServerState:
        after, values = super().aggregate(state, round_idx, updates), dict(state.values)
        told = {str(u.client): u.numbers["noise"] for u in updates if "noise" in u.numbers}
        values["noise"] = dict(sorted({**values.get("noise", {}), **told}.items(), key=lambda item: int(item[0])))
        if self.visiting(state, round_idx):
            visited = after_visits(values, [u.client for u in updates], len(self.task.sizes))
            values |= {"visited": visited, "passes": values.get("passes", 0) + (not visited), "since": round_idx}
        return replace(after, values=values)


def cleaner(noise: Sequence[float]) -> list[float]:
    """Chances ∝ 1 − each client's share of wrong labels; equal where all labels are wrong."""
    clean = [1 - ratio for ratio in noise]
    total = sum(clean)
    return [share / total for share in clean] if total > 0 else [1.0] * len(clean)
