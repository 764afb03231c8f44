"""Clients drawn by how clean the received model finds their labels (FedNoiL, Eq. 5)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fednoil.plugins import About
from fednoil.sampling.base import Scoring, ScoringConfig


class ByScoreConfig(ScoringConfig):
    name: Literal["score"] = "score"


class ByScore(Scoring):
    Config = ByScoreConfig
    about = About(title="By the sum of a client's confidences, as FedNoiL draws them")


class ScoreMeanConfig(ScoringConfig):
    name: Literal["score_mean"] = "score_mean"


class ScoreMean(Scoring):
    """Large clients are not preferred for their size."""

    Config = ScoreMeanConfig
    about = About(title="By the mean of a client's confidences, whatever its size")

    def score(self, confidences: Tensor) -> Tensor:
        return super().score(confidences) / len(confidences)

    def largest(self, size: int) -> float:
        return 1.0

    def sensitivity(self, size: int) -> float:
        return 1 / size
