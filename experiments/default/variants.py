"""Variants of the default that need code: `--set learner.name=variants:Held`, with this folder on PYTHONPATH."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client, Trainee
from fednoil.learners.clean_share import calibrated_shares
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.learners.odds import sharpened
from fednoil.tensors import Tensors

_LEAST = 0.05  # of the difference between a correct and a wrong label's chance
_SURE = 2.0  # frequencies differ this many times as much as by chance before they count
_STRICT = 3.0  # wrong labels that are a third as far from any class as can be are none
_TINY = 1e-12


class NoOddsConfig(FedNoilPlusConfig):
    name: Literal["variants:NoOdds"] = "variants:NoOdds"  # pyright: ignore[reportIncompatibleVariableOverride]


class NoOdds(FedNoilPlus):
    """D^x by confidence in all rounds."""

    Config = NoOddsConfig

    def believes(self, round_idx: int, count: int) -> bool:
        return False


class OneEstimateConfig(FedNoilPlusConfig):
    name: Literal["variants:OneEstimate"] = "variants:OneEstimate"  # pyright: ignore[reportIncompatibleVariableOverride]


class OneEstimate(FedNoilPlus):
    """The share of correct labels by those set aside alone, where there are some."""

    Config = OneEstimateConfig

    def clean_shares(self, clients: Sequence[Client], states: Sequence[Tensors]) -> list[float]:
        found = super().clean_shares(clients, states)
        for place, (client, state) in enumerate(zip(clients, states, strict=True)):
            rows = self.set_aside(len(client), client.labels.device)
            if len(rows):
                found[place] = calibrated_shares([state["probabilities"][rows]], [client.labels[rows]])[0]
        return found


def any_class(probabilities: Tensor, labels: Tensor) -> Tensor:
    """How well labels [n] agree with the assumption that a wrong one is any class, by the model's probabilities [n, C]:
    from 0, if each class has one wrong label, to 1.

    It is 1 − 3 D/log(C − 1). D is the divergence from the uniform distribution of labels that the model contradicts,
    class by class of what it finds instead, less what chance adds (Miller and Madow).
    """
    num_classes = probabilities.shape[1]
    found = probabilities.double().T @ F.one_hot(labels, num_classes).double()
    if num_classes == 2:  # there is one wrong label
        return found.new_ones(())
    found = found.fill_diagonal_(0.0)
    rows = found.sum(1).clamp_min(_TINY)
    shares = found / rows[:, None]
    apart = (shares * (shares * (num_classes - 1)).clamp_min(_TINY).log()).sum(1) - (num_classes - 2) / (2 * rows)
    mean = (rows * apart.clamp_min(0)).sum() / rows.sum() / math.log(num_classes - 1)
    return (1 - _STRICT * mean).clamp_min(0)


def held_classes(labels: Tensor, num_classes: int, share: float, fits: Tensor) -> Tensor:
    """How often a client has each class [C], by its labels [n] and the share of correct ones alone.

    If wrong labels are any class, class y has a share q_y = c·π_y + (1 − c)(1 − π_y)/(C − 1) of the labels, which gives
    π. It is drawn towards equal shares where frequencies may differ by chance (as James and Stein do), and where that
    assumption doesn't fit.
    """
    count, even = len(labels), 1 / num_classes
    apart = torch.bincount(labels, minlength=num_classes).double() / count - even
    chance = ((apart + even) * (1 - even - apart)).sum() / count
    known = (1 - _SURE * chance / apart.square().sum().clamp_min(_TINY)).clamp_min(0)
    apart = apart / max(share - (1 - share) / (num_classes - 1), _LEAST)
    found = (even + known * fits * apart).clamp_min(1 / count)
    return found / found.sum()


def _times(probabilities: Tensor, weights: Tensor) -> Tensor:
    joint = probabilities * weights
    return joint / joint.sum(1, keepdim=True)


def lacking(local: Tensor, held: Tensor) -> Tensor:
    """How much less often probabilities [n, C] find each class than a client has it [C], as a logarithm, less what
    chance may explain: [C]."""
    count = len(local)
    less = (held / (local.mean(0) + 1 / count)).log()
    chance = (1 - held) / (count * held)
    return less * (1 - chance / less.square().clamp_min(_TINY)).clamp_min(0)


class HeldConfig(FedNoilPlusConfig):
    name: Literal["variants:Held"] = "variants:Held"  # pyright: ignore[reportIncompatibleVariableOverride]
    align: float = Field(default=0.0, ge=0, description="how far the model's mean probabilities are drawn to these")
    odds: bool = Field(default=True, description="D^x by odds in the second half of the rounds")


class Held(FedNoilPlus):
    """The model's probabilities times how often the client has each class, once the share is estimated; with `align`
    classes that the model finds less often than that gain."""

    Config = HeldConfig
    config: HeldConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def believes(self, round_idx: int, count: int) -> bool:
        return self.config.odds and super().believes(round_idx, count)

    def labelled_sizes(self, trainees: Sequence[Trainee], shares: Sequence[float]) -> list[int]:
        for (_, client, state, _), share in zip(trainees, shares, strict=True):
            fits = any_class(state["probabilities"], client.labels)
            held = held_classes(client.labels, self.task.num_classes, share, fits)
            local = _times(state["probabilities"].double(), held)
            if self.config.align:
                local = _times(local, (fits * self.config.align * lacking(local, held)).exp())
            given = sharpened(local, self.temperature).gather(1, client.labels[:, None])[:, 0]
            state["probabilities"], state["confidence"] = local.float(), given.float()
        return super().labelled_sizes(trainees, shares)
