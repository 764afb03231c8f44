"""FedNoRo's server (Wu et al., IJCAI 2023): find noisy clients once, then trust their models less.

After `warmup` rounds of FedAvg every client reports the mean loss of its labels of each class; two Gaussians split the
clients, nine times, and the split found most often stays. From then on clients are told whether they are noisy,
which the learners `fednoro` and `fedelc` use and others ignore, and a noisy client's model counts less the farther it
is from the nearest clean one (distance: the sum of each tensor's). If those who trained are all of one kind it is
FedAvg. Our choices: a client that did not answer counts as clean, losses use plain views, and a class with equal losses
says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client, Final, Learner, Turn
from fednoil.learners.capabilities import Wrapped
from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig, ServerState, Update
from fednoil.servers.gaussians import two_groups
from fednoil.tensors import Numbers, Tensors, weighted_mean

_VOTES = 9
_MISSING = -1.0  # the mean loss of a class that a client has no labels of


class FedNoRoConfig(ServerConfig):
    name: Literal["fednoro"] = "fednoro"
    warmup: int = Field(default=10, ge=1, description="rounds of FedAvg before noisy clients are identified")


class ClassLosses(Wrapped):
    """Any learner, whose clients report the mean loss of their labels of each class."""

    def __init__(self, inner: Learner) -> None:
        super().__init__(inner)
        self.reports = tuple(f"loss {c}" for c in range(self.task.num_classes))

    def review(self, logits: Tensor, client: Client, keep: Tensors, turn: Turn) -> Final:
        means = class_losses(logits, client.labels)
        return Final(numbers=dict(zip(self.reports, means.tolist(), strict=True)))


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of the labels [n] of each class under logits [n, C]: float64 [C]; −1 for none."""
    losses, own = F.cross_entropy(logits, labels, reduction="none").double(), F.one_hot(labels, logits.shape[1])
    counts = own.sum(0)
    return torch.where(counts > 0, (losses[:, None] * own).sum(0) / counts.clamp_min(1), _MISSING)


def scaled(matrix: np.ndarray) -> np.ndarray:
    """Losses [K, C] with NaN as the least of their column, each column scaled to 0..1; one of equal values to 0."""
    known = np.where(np.isnan(matrix).all(0), 0.0, matrix)
    filled = np.where(np.isnan(known), np.nanmin(known, axis=0), known)
    low, high = filled.min(0), filled.max(0)
    return np.divide(filled - low, high - low, out=np.zeros_like(filled), where=high > low)


def noisy_rows(points: np.ndarray) -> np.ndarray:
    """Which rows [K, C] are the Gaussian of the larger sum of means, in the most frequent of nine splits: bool [K]."""
    if len(points) < 2 or (points == points[0]).all():
        return np.zeros(len(points), bool)
    votes: Counter[tuple[bool, ...]] = Counter()
    for seed in range(_VOTES):
        group, means = two_groups(points, seed)
        votes[tuple((group == means.sum(1).argmax()).tolist())] += 1
    return np.array(votes.most_common(1)[0][0])


def distance(a: Tensors, b: Tensors) -> float:
    """The sum over tensors of ‖a − b‖₂; counters are left out."""
    parts = [(a[name].double() - b[name].double()).norm() for name in a if a[name].is_floating_point()]
    return float(torch.stack(parts).sum())


def trust(sizes: Sequence[float], distances: Sequence[float]) -> list[float]:
    """Weights ∝ n_k · exp(−D_k / max D), with sum 1, of clients that are D_k away from a clean one."""
    most = max(distances) or 1.0
    weights = np.array(sizes) * np.exp(-np.array(distances) / most)
    return (weights / weights.sum()).tolist()


class FedNoRo(Server):
    Config = FedNoRoConfig
    config: FedNoRoConfig
    about = About(
        title="Noisy clients found by their losses, averaged by distance from clean ones",
        paper="Wu et al., IJCAI 2023",
        keeps="nothing",
        sends="model, once a mean loss for each class",
        cost="1",
    )

    def wrap(self, learner: Learner) -> Learner:
        return ClassLosses(learner)

    def reviews(self, state: ServerState, round_idx: int) -> bool:
        return round_idx > self.config.warmup and "noisy" not in state.values

    def reviewed(self, state: ServerState, round_idx: int, answers: Mapping[int, Numbers]) -> ServerState:
        if not answers:
            return state
        matrix = np.array([list(numbers.values()) for numbers in answers.values()])
        noisy = noisy_rows(scaled(np.where(matrix == _MISSING, np.nan, matrix)))
        found = [client for client, bad in zip(answers, noisy, strict=True) if bad]
        return replace(state, values={**state.values, "noisy": found})

    def signals(self, state: ServerState, client: int, round_idx: int) -> Numbers:
        if "noisy" not in state.values:
            return {}
        return {"noisy": float(client in state.values["noisy"]), "since": float(self.config.warmup)}

    def aggregate(self, state: ServerState, round_idx: int, updates: Sequence[Update]) -> ServerState:
        noisy = set(state.values.get("noisy", ()))
        clean = [u for u in updates if u.client not in noisy]
        if not clean or len(clean) == len(updates):
            return super().aggregate(state, round_idx, updates)
        near = [min(distance(u.tensors, c.tensors) for c in clean) if u.client in noisy else 0.0 for u in updates]
        weights = trust([u.numbers["samples"] for u in updates], near)
        return ServerState(weighted_mean([u.tensors for u in updates], weights), state.values)

    def notes(self, state: ServerState, keep: Mapping[int, Tensors]) -> dict[str, Any]:
        """The clients that count as noisy."""
        return {"noisy_clients": state.values["noisy"]} if "noisy" in state.values else {}
