"""Losses that tolerate wrong labels: generalised cross-entropy (Zhang and Sabuncu, NeurIPS 2018) and symmetric
cross-entropy (Wang et al., ICCV 2019), in place of plain cross-entropy.

Generalised cross-entropy (1 − p_y^q)/q lies between cross-entropy (q → 0) and the mean absolute error (q = 1), without
its authors' truncation. Symmetric cross-entropy adds the cross-entropy of the label given the prediction, in which the
logarithm of 0 is that of 1e-4, as its authors have it; the weights are theirs for CIFAR-10.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import LearnerConfig, Nets
from fednoil.learners.erm import Erm
from fednoil.plugins import About
from fednoil.tensors import Tensors

_LOG_ZERO = math.log(1e-4)


class GceConfig(LearnerConfig):
    name: Literal["gce"] = "gce"


class SceConfig(LearnerConfig):
    name: Literal["sce"] = "sce"


def generalised(logits: Tensor, labels: Tensor, q: float) -> Tensor:
    """The mean of (1 − p_y^q) / q."""
    own = torch.log_softmax(logits, 1).gather(1, labels[:, None])
    return (1 - (q * own).exp()).mean() / q


def symmetric(logits: Tensor, labels: Tensor, alpha: float, beta: float) -> Tensor:
    """α · cross-entropy + β · reverse cross-entropy, −ln(1e-4) · (1 − p_y), means over the batch."""
    own = torch.softmax(logits, 1).gather(1, labels[:, None])
    return alpha * F.cross_entropy(logits, labels) - beta * _LOG_ZERO * (1 - own).mean()


class Gce(Erm):
    Config = GceConfig
    config: GceConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    q: ClassVar[float] = 0.7  # near 0 it is cross-entropy, with 1 the absolute error
    about = About(
        title="Generalised cross-entropy",
        paper="Zhang and Sabuncu, NeurIPS 2018",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return generalised(nets["model"](batch["images"]), batch["labels"], self.q)


class Sce(Erm):
    Config = SceConfig
    config: SceConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    alpha: ClassVar[float] = 0.1  # weight of cross-entropy
    beta: ClassVar[float] = 1.0  # weight of reverse cross-entropy
    about = About(
        title="Symmetric cross-entropy", paper="Wang et al., ICCV 2019", keeps="nothing", sends="model", cost="1"
    )

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return symmetric(nets["model"](batch["images"]), batch["labels"], self.alpha, self.beta)
