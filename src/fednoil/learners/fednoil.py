"""FedNoiL's client side (Wang et al., 2022): sample the labels that look clean, use the rest as unlabelled data.

Once a round the received global model gives each sample's confidence in its given label. Every epoch a labelled
set D^x is drawn by these confidences without replacement; the rest is the unlabelled set D^u, whose pseudo-labels
come from the same global model and are trained on strong views where they are confident enough (FixMatch, Sohn
et al., NeurIPS 2020). `fednoil.learners.two_sets` has the machinery.

What the paper leaves open, in our reading: an epoch goes through D^x once and through D^u beside it, ξ = 0.95, λ_u = 1,
hard pseudo-labels from the mean of two weak views, weak views of D^x. `frac = "auto"` is our addition: each client
estimates its own share of clean labels.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.two_sets import TwoSets, TwoSetsConfig
from fednoil.plugins import About
from fednoil.tensors import Tensors


class FedNoilConfig(TwoSetsConfig):
    name: Literal["fednoil"] = "fednoil"
    local_sampling: Literal["confidence", "uniform"] = Field(default="confidence", description="how D^x is drawn")

    def lost_class_advice(self) -> str:
        return "--set learner.name=fednoil-plus --set learner.draw=class may help"


class FedNoil(TwoSets):
    Config = FedNoilConfig
    config: FedNoilConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    room = 0.2
    about = About(
        title="Confidence-sampled clean labels, FixMatch on the rest",
        paper="Wang et al., 2022 (FedNoiL)",
        keeps="nothing",
        sends="model",
        cost="about 1 an epoch, and 3 passes over the data a round",
    )

    def weights(self, state: Tensors) -> Tensor:
        weight = super().weights(state)
        return torch.ones_like(weight) if self.config.local_sampling == "uniform" else weight
