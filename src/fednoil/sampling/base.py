"""The contract of a sampling: which clients train in a round.

`Sampling` draws from all available clients. `Scoring` first asks each of them for one number, its score, made from
its confidences: what the received model gives to the client's labels, softmax(logits / τ), un-augmented.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.looks import TEMPERATURE
from fednoil.plugins import About
from fednoil.section import Section
from fednoil.seeds import Seed, gumbel

FEW_CLIENTS = 10  # clients that all train in every round, unless a share is set
_SHARE = 0.3  # of more clients


class SamplingConfig(Section):
    """The keys every sampling has."""

    fitted = frozenset({"fraction"})

    name: str = "uniform"
    fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description=f"share of clients trained in a round; none: all if at most {FEW_CLIENTS}, otherwise "
        f"{_SHARE:.0%} and at least {FEW_CLIENTS}",
    )


class Sampling:
    """Every client has the same chance; subclasses change what they must."""

    Config: ClassVar[type[SamplingConfig]] = SamplingConfig
    about: ClassVar[About | None] = None

    def __init__(self, config: SamplingConfig) -> None:
        self.config = config

    def count(self, clients: int) -> int:
        """How many of `clients` train in a round: round(fraction · K), at least one."""
        fraction = self.config.fraction
        if fraction is None:
            return min(clients, max(FEW_CLIENTS, math.floor(_SHARE * clients + 0.5)))
        return max(1, math.floor(fraction * clients + 0.5))

    def shares(self, scores: Sequence[float]) -> list[float]:
        """Each client's chance p_k = s_k / Σ_j s_j, from scores that are all 1 without `Scoring`; equal chances if all
        scores are zero."""
        total = math.fsum(scores)
        return [s / total for s in scores] if total > 0 else [1 / len(scores)] * len(scores)

    def draw(self, shares: Sequence[float], count: int, seed: Seed) -> list[int]:
        """`count` distinct places in `shares`, drawn one after another by them."""
        # The `count` largest of log p_k + Gumbel noise have exactly that law.
        p = torch.tensor(shares, dtype=torch.float64)
        race = (p + 1e-300).log() + gumbel(torch.tensor(seed.key()), len(p))
        return race.topk(count).indices.tolist()


class ScoringConfig(SamplingConfig):
    """The keys of a sampling by scores."""


class Scoring(Sampling):
    """Clients are asked for scores, and drawn by them.

    A score of n confidences in [0, 1] lies between 0 and `largest(n)`, and one sample changes it by at most
    `sensitivity(n)`: a class that changes `score` changes these two as well.
    """

    Config: ClassVar[type[ScoringConfig]] = ScoringConfig
    config: ScoringConfig
    temperature: ClassVar[float] = TEMPERATURE  # τ of the confidences

    def __init__(self, config: ScoringConfig) -> None:
        super().__init__(config)
        self.config = config

    def score(self, confidences: Tensor) -> Tensor:
        """What a client reports to the server about its confidences [n]: their sum, one float64 number."""
        return confidences.double().sum()

    def largest(self, size: int) -> float:
        """The score of `size` confidences of 1."""
        return float(size)

    def sensitivity(self, size: int) -> float:
        """How much one of `size` confidences can change the score."""
        return 1.0

    def scores(self, confidences: Sequence[Tensor]) -> list[float]:
        """The scores of several clients, with one wait for the device."""
        return torch.stack([self.score(confidence) for confidence in confidences]).tolist()

    def private(self, score: float, size: int, scale: float, u: float) -> float:
        """The score with Laplace noise from one uniform number u in (0, 1), back in the range of a score.

        `scale` is R/ε: R queries share ε. Moving the result back into the range uses nothing of the data.
        """
        noise = scale * self.sensitivity(size) * math.copysign(math.log1p(-2 * abs(u - 0.5)), u - 0.5)
        return min(max(score + noise, 0.0), self.largest(size))
