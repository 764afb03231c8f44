"""Clients drawn with equal chances, whatever their labels."""

from __future__ import annotations

from typing import Literal

from fednoil.plugins import About
from fednoil.sampling.base import Sampling, SamplingConfig


class UniformConfig(SamplingConfig):
    name: Literal["uniform"] = "uniform"


class Uniform(Sampling):
    Config = UniformConfig
    about = About(title="Every client has the same chance")
