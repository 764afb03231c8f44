"""FedNoiL's keys: the published method, the readings of what the paper leaves open, and what is ours."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fednoil.learners.base import LearnerConfig

Share = Annotated[float, Field(gt=0, le=1)]


class FedNoilConfig(LearnerConfig):
    name: Literal["fednoil"] = "fednoil"
    temperature: float = Field(default=0.5, gt=0, description="τ of the confidences that draw D^x")
    frac: Share | Literal["auto"] | Annotated[tuple[Share, ...], Field(min_length=1)] = Field(
        default="auto",
        description="share of a client's samples in D^x; auto: each client estimates it; a list: one share for each "
        "of so many equal groups of clients",
    )
    explore: float = Field(
        default=0.2, ge=0, lt=1, description="with auto: share of the labels thought wrong that D^x has room for"
    )
    aside: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="with auto: share of the labels kept out of D^x; they alone tell how many are clean",
    )
    estimate: Literal["plain", "strong"] = Field(
        default="plain",
        description="with auto: views by which the clean share is estimated; strong ones tell what is learnt by heart",
    )
    balance: bool = Field(default=True, description="with auto: a small D^u weighs less, each sample as one of D^x")
    ssl: bool = Field(default=True, description="train on pseudo-labels of D^u")
    teacher: Literal["global", "local"] = Field(
        default="global", description="who gives pseudo-labels: the received model, or the client's as it is now"
    )
    views: int = Field(default=2, ge=1, description="weak views that pseudo-labels are made of")
    xi: float = Field(default=0.95, gt=0, le=1, description="least certainty of a pseudo-label that is used")
    lambda_u: float = Field(default=1.0, ge=0, description="weight of the unlabelled loss")
    local_sampling: Literal["confidence", "uniform"] = Field(default="confidence", description="how D^x is drawn")
    epoch: Literal["proportional", "max_cover", "whole"] = Field(
        default="proportional",
        description="steps: D^x once; max_cover: the larger set once; whole: as many as all samples fill",
    )
    ra_prob: float = Field(default=0.5, ge=0, le=1, description="chance of each RandAugment operation")
    ra_ops: int = Field(default=2, ge=0, description="RandAugment operations of a strong view")
    x_augment: Literal["none", "weak", "strong"] = Field(default="weak", description="views of D^x")
    redraw: Literal["epoch", "round"] = Field(default="epoch", description="how often D^x is drawn")
    mu: float | None = Field(
        default=None, gt=0, description="unlabelled batch as a multiple of the labelled one; none: as epoch says"
    )
    ramp: int = Field(
        default=0, ge=0, description="rounds over which lambda_u rises from 0 to its value, from ssl_start on"
    )
    pseudo_temperature: float = Field(default=1.0, gt=0, description="temperature of the softmax of pseudo-labels")
    views_as: Literal["mean", "turns"] = Field(
        default="mean", description="a pseudo-label is the mean of all views; turns: each epoch has the next view's"
    )
    soft: bool = Field(default=False, description="train on the pseudo-labels' probabilities, not on the likeliest")
    warmup: int = Field(default=0, ge=0, description="first rounds in which D^x has every sample")
    ssl_start: int = Field(default=1, ge=1, description="first round that trains on pseudo-labels")
    draw: Literal["client", "class", "floor"] = Field(
        default="client",
        description="D^x is drawn of all samples; class: of each given class, by its frequency; floor: of all samples, "
        "but no class less than half as often as class draws it",
    )

    later: ClassVar[frozenset[str]] = frozenset(
        [
            "ra_ops",
            "x_augment",
            "redraw",
            "mu",
            "ramp",
            "pseudo_temperature",
            "views_as",
            "soft",
            "warmup",
            "ssl_start",
            "draw",
            "aside",
            "estimate",
        ]
    )

    def lost_class_advice(self) -> str:
        return "--set learner.draw=class may help" if self.draw != "class" else ""
