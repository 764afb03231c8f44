"""FedDiv's local training (Li et al., AAAI 2024): labels pass a common filter, and predictions must agree.

The server `feddiv` sends two Gaussians of losses. Labels that more probably belong to the lower one are clean; the
others get a new label if the received model is confident of it (`xi`). A client with less than a tenth of noise trains
on all. Each epoch takes the samples on which the received model and the local one agree, after the local logits are
corrected by how often the client predicts each class. Training is mixup with a term for even predictions (`weight`; its
authors use 1 for clients with different classes, 0 otherwise). Without a filter, that is under other servers, all
samples are used. An epoch without samples is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client, Final, Nets, Phase, Turn
from fednoil.learners.batches import full_batches
from fednoil.learners.looks import logits_of
from fednoil.learners.mixmatch import uneven
from fednoil.learners.mixture import lower_posterior, normalise
from fednoil.learners.mixup import Mixup, MixupConfig
from fednoil.plugins import About
from fednoil.seeds import permutations
from fednoil.tensors import Tensors

# What the server sends: of two Gaussians, the one of clean labels first.
FILTER = ("share 0", "share 1", "mean 0", "mean 1", "variance 0", "variance 1")
_PRIOR = "predicted classes"


class FedDivConfig(MixupConfig):
    name: Literal["feddiv"] = "feddiv"  # pyright: ignore[reportIncompatibleVariableOverride]
    xi: float = Field(default=0.75, gt=0, le=1, description="lowest certainty at which a pseudo-label is used")
    weight: float = Field(default=1.0, ge=0, description="weight of the term that makes predictions even")


def scaled_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The losses [n] of a client's labels, scaled to 0..1."""
    return normalise(F.cross_entropy(logits, labels, reduction="none")[None])[0]


def filter_of(signals: Mapping[str, float], device: torch.device) -> Tensor | None:
    """The filter that a client has received: shares, means and variances, float64 [3, 2]."""
    if FILTER[0] not in signals:
        return None
    return torch.tensor([signals[name] for name in FILTER], dtype=torch.float64, device=device).view(3, 2)


def debiased(logits: Tensor, predicted: Tensor, strength: float) -> Tensor:
    """Logits [n, C] minus strength · ln of how often each class is predicted [C]."""
    return logits - strength * predicted.clamp_min(1e-12).log()


class FedDiv(Mixup):
    Config = FedDivConfig
    config: FedDivConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    clean_from: ClassVar[float] = 0.5  # least posterior of a clean label
    little: ClassVar[float] = 0.1  # κ: noise below which a client uses all its labels
    strength: ClassVar[float] = 0.5  # ξ of the correction of logits
    momentum: ClassVar[float] = 0.2  # m: share of the past in how often a class is predicted
    about = About(
        title="Labels that pass a common filter and two models",
        paper="Li et al., AAAI 2024",
        keeps="how often it predicts each class",
        sends="model",
        cost="1 + (2 + E)/(3E)",
    )

    def look(self, logits: Tensor, client: Client) -> Tensors:
        return {"losses": scaled_losses(logits, client.labels), "probabilities": torch.softmax(logits, 1)}

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        classes, device = self.task.num_classes, client.index.device
        even = torch.full((classes,), 1 / classes, device=device)
        return {_PRIOR: keep.get(_PRIOR, even), "drawn": torch.zeros_like(client.labels)}

    def adapts(self, turn: Turn) -> bool:
        return FILTER[0] in turn.signals

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        found = filter_of(turn.signals, client.labels.device)
        if found is None:
            return super().plan(nets, client, state, turn, epochs)
        clean = lower_posterior(state["losses"], found) >= self.clean_from
        if float((~clean).float().mean()) < self.little:
            state["drawn"] += len(epochs)
            return super().plan(nets, client, state, turn, epochs)
        return self._filtered(nets, client, state, turn, epochs, clean)

    def _filtered(
        self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range, clean: Tensor
    ) -> list[Phase]:
        """One epoch of the samples whose labels are clean or new, and on which both models agree."""
        sure, guess = state["probabilities"].max(1)
        local = debiased(logits_of(self, nets, client), state[_PRIOR], self.strength).argmax(1)
        chosen = ((clean | (sure >= self.config.xi)) & (guess == local)).nonzero()[:, 0]
        if not len(chosen):
            return []
        own = Client(client.id, client.pool, client.index, torch.where(clean, client.labels, guess))
        order = permutations(turn.seed.child("order").keys(epochs, chosen.device), len(chosen))
        rows = chosen[full_batches(order, self.task.batch_size).flatten(0, 1)]
        state["drawn"][chosen[clean[chosen]]] += 1
        return [Phase(self.batches(own, rows, turn, epochs))]

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        logits, loss = self.mixed(nets, batch)
        return loss + self.config.weight * uneven(torch.softmax(logits, 1)) if self.config.weight else loss

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        evidence = {name: state[name] for name in ("probabilities", "drawn")}
        if not self.adapts(turn):
            return Final(keep={_PRIOR: state[_PRIOR]})
        predicted = torch.softmax(logits_of(self, nets, client), 1).mean(0)
        return Final(keep={_PRIOR: followed(state[_PRIOR], predicted, self.momentum)}, evidence=evidence)


def followed(past: Tensor, predicted: Tensor, momentum: float) -> Tensor:
    """How often each class is predicted, [C]: a share m of the past value, the rest from the current predictions."""
    return momentum * past + (1 - momentum) * predicted
