"""Which clients train in a round: each sampling is one file and one line in the table below."""

from __future__ import annotations

from fednoil.plugins import Axis
from fednoil.sampling.base import Sampling, SamplingConfig, Scoring
from fednoil.sampling.score import ByScore, ScoreMean
from fednoil.sampling.uniform import Uniform

SAMPLINGS: dict[str, type[Sampling]] = {"uniform": Uniform, "score": ByScore, "score_mean": ScoreMean}
AXIS = Axis("sampling", Sampling, SAMPLINGS, default="uniform")

__all__ = ["AXIS", "SAMPLINGS", "Sampling", "Scoring", "make"]


def make(config: SamplingConfig) -> Sampling:
    """The sampling that a configuration names."""
    return AXIS.find(config.name)(config)
