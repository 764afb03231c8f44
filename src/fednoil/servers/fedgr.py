"""FedGR's server (Tian et al., ICML 2026): first visit every client a few times, then average like FedAvg.

In the first rounds clients train in turn until all have been visited `passes` times; the learner `fedgr` only listens
then. For `warmup` rounds after that clients are drawn by their share of clean labels, as they report it; later the
sampling decides. With `version = "pooled"`, as published, the Gaussians that identify clean labels are fitted to the
losses of all clients of a round together; by default each client fits its own. Our choices: for that, clients send how
many labels have a loss in each of 256 steps of 1/32 and receive the Gaussians, where the authors send every loss; and
the visits end after `passes` rounds for each client, even if some were missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.base import Client, Final, Learner, Nets, Turn
from fednoil.learners.capabilities import Wrapped
from fednoil.learners.fedgr import SIEVE
from fednoil.learners.mixture import fitted, lower_posterior
from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig, ServerState, Update
from fednoil.servers.visits import after_visits, unvisited_first
from fednoil.tensors import Numbers, Tensors

_STEPS, _STEP, _FLOOR = 256, 1 / 32, 5e-4
COUNTS = tuple(f"losses {step}" for step in range(_STEPS))


class FedGrConfig(ServerConfig):
    name: Literal["fedgr"] = "fedgr"
    passes: int = Field(default=10, ge=0, description="passes over all clients before anything else")
    warmup: int = Field(
        default=0, ge=0, description="rounds after the passes in which clients are drawn by their clean labels"
    )
    version: Literal["local", "pooled"] = Field(
        default="local",
        description="which losses identify clean labels: each client's own, or, as published, all of a round together",
    )


class Counts(Wrapped):
    """Any learner, whose clients send how many of their labels have which mean loss, if it keeps these."""

    def __init__(self, inner: Learner) -> None:
        super().__init__(inner)
        self.sends = (*inner.sends, *COUNTS)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        final = self.inner.final(nets, client, state, turn)
        found = counted(final.keep.get("mean loss", torch.zeros(0))).tolist()
        return replace(final, numbers={**final.numbers, **dict(zip(COUNTS, map(float, found), strict=True))})


def counted(losses: Tensor) -> Tensor:
    """How many of the losses [n] lie in each step; the last one is open: int64 [256]."""
    return torch.bincount((losses / _STEP).long().clamp(0, _STEPS - 1).cpu(), minlength=_STEPS)


def sieve_of(counts: Tensor) -> Tensor | None:
    """Two Gaussians fitted to losses that were counted [256]: float64 [3, 2]; None where all are in one step."""
    centres = (torch.arange(_STEPS, dtype=torch.float64) + 0.5) * _STEP
    if int((counts > 0).sum()) < 2:
        return None
    return fitted(centres.repeat_interleave(counts), floor=_FLOOR)


def wrong_share(counts: Tensor, sieve: Tensor) -> float:
    """The share of losses that were counted [256] that belong to the upper Gaussian."""
    centres = (torch.arange(_STEPS, dtype=torch.float64) + 0.5) * _STEP
    return float(counts[lower_posterior(centres, sieve) < 0.5].sum() / counts.sum().clamp_min(1))


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

    def wrap(self, learner: Learner) -> Learner:
        return Counts(learner) if self.config.version == "pooled" else learner

    def visiting(self, state: ServerState, round_idx: int) -> bool:
        done = state.values.get("passes", 0) >= self.config.passes
        return not done and round_idx <= self.config.passes * len(self.task.sizes)

    def signals(self, state: ServerState, client: int, round_idx: int) -> Numbers:
        known = state.values.get("sieves", {}).get(str(client))
        sieve = dict(zip(SIEVE, known, strict=True)) if known else {}
        return {"visiting": float(self.visiting(state, round_idx)), **sieve}

    def chances(self, state: ServerState, round_idx: int, clients: Sequence[int]) -> Sequence[float] | None:
        if self.visiting(state, round_idx):
            return unvisited_first(state.values, clients)
        noise = state.values.get("noise", {})
        if round_idx > state.values.get("since", 0) + self.config.warmup or not noise:
            return None
        return cleaner([noise.get(str(client), 0.0) for client in clients])

    def aggregate(self, state: ServerState, round_idx: int, updates: Sequence[Update]) -> ServerState:
        after, values = super().aggregate(state, round_idx, updates), dict(state.values)
        reported = {str(u.client): u.numbers["noise"] for u in updates if "noise" in u.numbers}
        counts = {u.client: torch.tensor([int(u.numbers.get(name, 0)) for name in COUNTS]) for u in updates}
        pooled = sieve_of(torch.stack(list(counts.values())).sum(0)) if self.config.version == "pooled" else None
        if pooled is not None:
            reported = {str(client): wrong_share(own, pooled) for client, own in counts.items()}
            values["sieves"] = {**values.get("sieves", {}), **dict.fromkeys(reported, pooled.flatten().tolist())}
        values["noise"] = dict(sorted({**values.get("noise", {}), **reported}.items(), key=lambda item: int(item[0])))
        if self.visiting(state, round_idx):
            visited = after_visits(values, [u.client for u in updates], len(self.task.sizes))
            values |= {"visited": visited, "passes": values.get("passes", 0) + (not visited), "since": round_idx}
        return replace(after, values=values)


def cleaner(noise: Sequence[float]) -> list[float]:
    """Chances ∝ 1 − each client's share of wrong labels; equal where all labels are wrong."""
    clean = [1 - ratio for ratio in noise]
    total = sum(clean)
    return [share / total for share in clean] if total > 0 else [1.0] * len(clean)
