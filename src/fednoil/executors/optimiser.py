"""The clients' optimiser: SGD as in the paper, and what its paper leaves open, all off unless it is set.

The rate of a step is `lr`, times a share that falls from round to round, times a share that falls from step to step of
a local update. Where it is not always the same it is a tensor of the plan, one number a step, like everything else
that changes from step to step: a captured graph then reads it instead of holding it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

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
    lr_turn: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="how the rate falls from step to step of a local update"
    )
    lr_turn_end: float = Field(default=0.0, ge=0, le=1, description="share of the rate at the end of a local update")
    nesterov: bool = Field(default=False, description="Nesterov's form of momentum")
    keep_momentum: bool = Field(default=False, description="clients keep their momentum until they train again")
    clip: float | None = Field(default=None, gt=0, description="largest norm of a step's gradient; none: any")

    later: ClassVar[frozenset[str]] = frozenset(
        ("lr_rounds", "lr_rounds_end", "lr_turn", "lr_turn_end", "nesterov", "keep_momentum", "clip")
    )

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Optimiser:
        if self.nesterov and not self.momentum:
            raise ValueError("train.nesterov = true needs train.momentum above 0")
        return self

    @property
    def varies(self) -> bool:
        """Whether there is more than one rate."""
        return (self.lr_rounds, self.lr_turn) != ("constant", "constant")

    def round_share(self, round_idx: int) -> float:
        """How much of `lr` round `round_idx` begins with: 1 in round 1, `lr_rounds_end` in the last."""
        done, end = (round_idx - 1) / max(1, self.rounds - 1), self.lr_rounds_end
        if self.lr_rounds == "exponential":
            return end**done
        if self.lr_rounds == "step":
            passed = (2 * (round_idx - 1) >= self.rounds) + (4 * (round_idx - 1) >= 3 * self.rounds)
            return end ** (passed / 2)
        return float(_fallen(self.lr_rounds, torch.tensor(done, dtype=torch.float64), end))

    def rates(self, round_idx: int, done: Tensor) -> Tensor:
        """The rates of steps that begin when `done` [steps] (0 to 1) of the turn is over: float32 [steps]."""
        share = _fallen(self.lr_turn, done.double(), self.lr_turn_end)
        return (self.lr * self.round_share(round_idx) * share).float()

    def paced(self, phases: Sequence[Phase], turn: Turn, epochs: range, device: torch.device) -> list[Phase]:
        """The phases of the given epochs of a turn with the rate of each step, if it is not always the same.

        Networks that train by turns each go through the whole fall.
        """
        if not self.varies:
            return list(phases)
        totals: dict[tuple[str, ...], int] = {}
        for phase in phases:
            totals[phase.trains] = totals.get(phase.trains, 0) + phase.steps
        begun, found = dict.fromkeys(totals, 0), []
        for phase in phases:
            if not phase.trains:
                found.append(phase)
                continue
            step = torch.arange(phase.steps, dtype=torch.float64) + begun[phase.trains]
            done = (epochs.start + len(epochs) * step / totals[phase.trains]) / turn.epochs
            begun[phase.trains] += phase.steps
            rates = self.rates(turn.round_idx, done).to(device, non_blocking=True)
            found.append(replace(phase, tensors={**phase.tensors, RATE: rates}))
        return found


def _fallen(form: str, done: Tensor, end: float) -> Tensor:
    """What is left when `done` (0 to 1) of the way from 1 to `end` is over."""
    if form == "linear":
        return 1 - (1 - end) * done
    if form == "cosine":
        return end + (1 - end) * (1 + torch.cos(math.pi * done)) / 2
    return torch.ones_like(done)
