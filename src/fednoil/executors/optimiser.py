"""The clients' optimiser: SGD as in the paper, and what its paper leaves open, all off unless it is set.

The rate is `lr`, times a share that falls from round to round. Where it is not always the same it is a tensor of the
plan, one number a step, like everything else that changes: a captured graph then reads it instead of holding it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field, model_validator

from fednoil.learners.base import Phase, Turn
from fednoil.section import Section

RATE = "optimiser/rate"  # the name of the rates [steps] among a phase's tensors


class Optimiser(Section):
    """Rounds and SGD (the paper's values), for all methods alike."""

    rounds: int = Field(default=20, ge=1)
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.5, ge=0, lt=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    lr_rounds: Literal["constant", "linear", "cosine", "exponential", "step"] = Field(
        default="constant", description="how the rate falls from round to round; step: at 1/2 and 3/4 of the rounds"
    )
    lr_rounds_end: float = Field(default=0.01, gt=0, le=1, description="share of the rate that the last round has")
    nesterov: bool = Field(default=False, description="Nesterov's form of momentum")
    clip: float | None = Field(default=None, gt=0, description="largest norm of a step's gradient; none: any")

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Optimiser:
        if self.nesterov and not self.momentum:
            raise ValueError("train.nesterov = true needs train.momentum above 0")
        return self

    @property
    def varies(self) -> bool:
        """Whether there is more than one rate."""
        return self.lr_rounds != "constant"

    def round_share(self, round_idx: int) -> float:
        """How much of `lr` round `round_idx` has: 1 in round 1, `lr_rounds_end` in the last."""
        done, end = (round_idx - 1) / max(1, self.rounds - 1), self.lr_rounds_end
        if self.lr_rounds == "exponential":
            return end**done
        if self.lr_rounds == "step":
            passed = (2 * (round_idx - 1) >= self.rounds) + (4 * (round_idx - 1) >= 3 * self.rounds)
            return end ** (passed / 2)
        if self.lr_rounds == "linear":
            return 1 - (1 - end) * done
        if self.lr_rounds == "cosine":
            return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2
        return 1.0

    def paced(self, phases: Sequence[Phase], turn: Turn, device: torch.device) -> list[Phase]:
        """The phases of a turn with the rate of each step, if it is not the same in all rounds."""
        if not self.varies:
            return list(phases)
        rate = self.lr * self.round_share(turn.round_idx)

        def with_rates(phase: Phase) -> Phase:
            return replace(phase, tensors={**phase.tensors, RATE: torch.full((phase.steps,), rate, device=device)})

        return [with_rates(phase) if phase.trains else phase for phase in phases]
