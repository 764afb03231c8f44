"""Coordinate-wise median and trimmed mean (Yin et al., ICML 2018).

Both ignore the number of samples of an update. With an even number of updates the median is the mean of the middle
two. BatchNorm statistics are combined in the same way; integer counters take the largest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig, Update
from fednoil.tensors import Tensors


class MedianConfig(ServerConfig):
    name: Literal["median"] = "median"


class TrimmedMeanConfig(ServerConfig):
    name: Literal["trimmed_mean"] = "trimmed_mean"
    bad: float = Field(
        default=0.2, ge=0, lt=0.5, description="share of the updates that may be bad; that share is cut off at each end"
    )


def median(values: Tensor) -> Tensor:
    """Median over the first dimension; for an even number the mean of the middle two (torch takes the lower)."""
    ordered = values.sort(0).values
    count = len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(values: Tensor, trim: float) -> Tensor:
    """Mean over the first dimension without the floor(trim·n) smallest and largest of each coordinate."""
    count = len(values)
    cut = int(trim * count + 1e-9)
    return values.sort(0).values[cut : count - cut].mean(0)


class _CoordinateWise(Server):
    """Every coordinate is combined by itself."""

    @abstractmethod
    def middle(self, values: Tensor) -> Tensor: ...

    def combine(self, updates: Sequence[Update]) -> Tensors:
        combined: Tensors = {}
        for name in updates[0].tensors:
            values = torch.stack([u.tensors[name] for u in updates])
            combined[name] = self.middle(values) if values.is_floating_point() else values.amax(0)
        return combined


class Median(_CoordinateWise):
    Config = MedianConfig
    about = About(
        title="Coordinate-wise median",
        paper="Yin et al., ICML 2018",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def middle(self, values: Tensor) -> Tensor:
        return median(values)


class TrimmedMean(_CoordinateWise):
    Config = TrimmedMeanConfig
    config: TrimmedMeanConfig
    about = About(
        title="Coordinate-wise mean without the extremes",
        paper="Yin et al., ICML 2018",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def middle(self, values: Tensor) -> Tensor:
        return trimmed_mean(values, self.config.bad)
