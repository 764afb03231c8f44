"""Step 23: `--set learner.name=step23:Late` or `--set server.name=step23:BySteps`, with this folder on PYTHONPATH."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.augment import weak, weak_plan
from fednoil.learners import held
from fednoil.learners.base import Client, Final, Nets, Trainee, Turn
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.learners.labelled import Batches
from fednoil.learners.lot import Lot
from fednoil.learners.odds import believed
from fednoil.servers.base import Server, ServerConfig, Update
from fednoil.tensors import Tensors, weighted_mean


_HERE: dict[str, Tensor | None] = {}  # a learner that changes itself isn't run as CUDA graphs


class LateConfig(FedNoilPlusConfig):
    name: Literal["step23:Late"] = "step23:Late"  # pyright: ignore[reportIncompatibleVariableOverride]
    weak_u: bool = Field(default=False, description="pseudo-labels in the second half, with weak views")
    corrected: bool = Field(default=False, description="pseudo-labels are labels of D^x, and are mixed like others")
    ridge: float = Field(default=0.0, description="the inverse of d in the classes held is d/(d² + ridge)")


class Late(FedNoilPlus):
    Config = LateConfig
    config: LateConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def pseudo_weight(self) -> float:
        return 1.0 if self.config.weak_u else super().pseudo_weight

    def labelled_sizes(self, trainees: Sequence[Trainee], shares: Sequence[float]) -> list[int]:
        if not self.config.ridge:
            return super().labelled_sizes(trainees, shares)
        # held_classes divides by max(d, _LEAST), so the share that it is told is the one with 1/d' = d/(d² + ridge)
        others, least = self.task.num_classes - 1, held._LEAST
        told = []
        for share in shares:
            d = max(0.0, share - (1 - share) / others)
            inverse = (d * d + self.config.ridge) / d if d > 0 else 1e9
            told.append((inverse + 1 / others) / (1 + 1 / others))
        held._LEAST = 0.0
        inverses = dict(zip(shares, told, strict=True))
        original = held.held_classes

        def ridged(labels: Tensor, num_classes: int, share: float, fits: Tensor | float) -> Tensor:
            return original(labels, num_classes, inverses[share], fits)

        held.held_classes = ridged
        try:
            return super().labelled_sizes(trainees, shares)
        finally:
            held.held_classes, held._LEAST = original, least

    def _judged(self, client: Client, state: Tensors, probabilities: Tensor, share: float) -> int:
        if not self.config.corrected:
            return super()._judged(client, state, probabilities, share)
        guess, certainty = believed(probabilities, client.labels, share)
        weight = (certainty / (1 - certainty).clamp_min(1e-9)).square()
        chance, other = weight / (1 + weight), guess != client.labels
        right = chance.where(~other, 0.0)
        used = torch.zeros_like(other)
        used[certainty.where(other, 0.0).topk(max(1, int(right.sum() + 0.5))).indices] = True
        used &= other
        taken = ~other | used
        state["label"] = torch.where(used, guess, client.labels)
        state["weight"] = weight.where(taken, 0.0)
        state["changed"] = used
        return min(len(client), max(1, int(chance.where(taken, 0.0).sum() + 0.5)))

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        more = {name: state[name] for name in ("label",) if name in state}
        return super().known(state, round_idx) | more

    def _planned(self, trainees, sizes, known, epochs):
        _HERE["label"] = known.get("label")
        return super()._planned(trainees, sizes, known, epochs)

    def labelled_plan(self, lot: Lot, order: Tensor) -> Batches:
        if _HERE["label"] is not None:
            lot = replace(lot, client=replace(lot.client, labels=_HERE["label"]))
        return super().labelled_plan(lot, order)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        if "changed" in state:
            state["drawn"] = state["drawn"].where(~state["changed"], 0)
        return super().final(nets, client, state, turn)

    def strong_views(self, lot: Lot, chosen: Tensor, name: str) -> Tensor:
        if self.config.weak_u and name == "strong u":
            return weak_plan(lot.keys(name), chosen.shape[2], self.task.pad, flip=self.task.flip)
        return super().strong_views(lot, chosen, name)

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        if not (self.config.weak_u and "u_index" in batch):
            return super().views(pool, batch)
        images = super().views(pool, {name: t for name, t in batch.items() if name != "u_index"})
        return images | {"u": weak(pool, batch["u_index"], batch["u_strong"])}


class ByStepsConfig(ServerConfig):
    name: Literal["step23:BySteps"] = "step23:BySteps"


class BySteps(Server):
    """Clients count by the steps that they made: in one round, by the size of D^x."""

    Config = ByStepsConfig

    def combine(self, updates: Sequence[Update]) -> Tensors:
        return weighted_mean([u.tensors for u in updates], [u.numbers["steps"] for u in updates])
