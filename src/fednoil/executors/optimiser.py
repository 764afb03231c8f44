"""The clients' optimiser, SGD as in the paper or AdamW; the same for every executor.

A step works on flat vectors, [P] of one client or [K, P] of several side by side, so both train alike. What an
optimiser remembers from step to step (`memory`) are vectors of the same shape. The rate is `lr`, times a share that
may fall from round to round. A rate that varies is a tensor of the plan, one number per step, like everything else that
changes: a captured graph then reads it and doesn't hold it as a constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fednoil.errors import UserError
from fednoil.learners.base import Phase, Turn
from fednoil.models.network import Network
from fednoil.scale import LARGE, MANY, few_labels
from fednoil.section import Section
from fednoil.tensors import Tensors

RATE = "optimiser/rate"  # the name of the rates [steps] among a phase's tensors
_BETAS, _EPS = (0.9, 0.999), 1e-8  # AdamW's: of the gradient and its square, and the term against division by zero
_END = 0.01  # share of the rate in the last round, if it falls
_RISE = 0.1  # share of the rounds in which it rises, if it does
_DECAY, _STRONG_DECAY = 1e-4, 2e-3  # with weight_decay = "auto" (experiments/default)
_ADAMW = {"lr": 1e-3, "weight_decay": 1e-2}  # PyTorch's, if a configuration doesn't set them


@dataclass(frozen=True)
class Shares:
    """Each parameter's share of the rate and of the weight decay: [P]; None: all of it for all parameters."""

    rate: Tensor | None = None
    decay: Tensor | None = None


class Optimiser(Section):
    """Rounds and optimiser (by default the paper's), the same for all methods."""

    rounds: int = Field(default=20, ge=1, description="rounds to play")
    optimizer: Literal["sgd", "adamw"] = Field(
        default="sgd", description="the clients' optimiser; starts afresh in every turn"
    )
    lr: float = Field(default=0.05, gt=0, description="learning rate; 0.001 with adamw unless set")
    momentum: float = Field(default=0.5, ge=0, lt=1, description="of sgd")
    weight_decay: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        default=1e-4,
        description=f"0.01 with adamw unless set; auto: {_DECAY:g}, or {_STRONG_DECAY:g} for a large network "
        f"({LARGE:,} trained parameters or more) or if clients have fewer than {MANY} samples on average, and 0.01 "
        "with adamw",
    )
    lr_rounds: Literal["constant", "linear", "cosine", "exponential", "step", "warmup"] = Field(
        default="constant",
        description="how the rate falls from round to round, to 1 % in the last; step: at 1/2 and 3/4 of the rounds; "
        "warmup: like cosine, but rising in the first tenth of the rounds",
    )

    @model_validator(mode="before")
    @classmethod
    def _adamws_own_values(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("optimizer") == "adamw":
            return {**_ADAMW, **values}
        return values

    def fitted(self, *, large: bool, sizes: Sequence[int]) -> Self:
        """The same with a number for `weight_decay`, for a large network or another at clients with so many samples."""
        if self.weight_decay != "auto":
            return self
        strong = large or few_labels(sizes)
        own = _ADAMW["weight_decay"] if self.optimizer == "adamw" else _STRONG_DECAY if strong else _DECAY
        return self.model_copy(update={"weight_decay": own})

    @property
    def decay(self) -> float:
        """The weight decay."""
        if self.weight_decay == "auto":
            raise ValueError("weight_decay is not known before the network is (`fitted`)")
        return self.weight_decay

    @property
    def varies(self) -> bool:
        """Whether there is more than one rate."""
        return self.lr_rounds != "constant"

    def round_share(self, round_idx: int) -> float:
        """The share of `lr` in round `round_idx`: 1 in round 1, and 0.01 in the last round if it falls."""
        done, end = (round_idx - 1) / max(1, self.rounds - 1), _END
        if self.lr_rounds == "exponential":
            return end**done
        if self.lr_rounds == "step":
            passed = (2 * (round_idx - 1) >= self.rounds) + (4 * (round_idx - 1) >= 3 * self.rounds)
            return end ** (passed / 2)
        if self.lr_rounds == "warmup" and round_idx <= (rise := math.ceil(_RISE * self.rounds)):
            return round_idx / (rise + 1)
        if self.lr_rounds == "linear":
            return 1 - (1 - end) * done
        if self.lr_rounds in ("cosine", "warmup"):
            return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2
        return 1.0

    def paced(self, phases: Sequence[Phase], turn: Turn, device: torch.device) -> list[Phase]:
        """The phases of a turn with the rate of each step, if it varies by round."""
        if not self.varies:
            return list(phases)
        rate = self.lr * self.round_share(turn.round_idx)

        def with_rates(phase: Phase) -> Phase:
            return replace(phase, tensors={**phase.tensors, RATE: torch.full((phase.steps,), rate, device=device)})

        return [with_rates(phase) if phase.trains else phase for phase in phases]

    def memory(self, params: Tensor) -> Tensors:
        """What is remembered of a network with parameters [P] from step to step: zeros, as at the start of a turn."""
        moments = ("momentum",) if self.optimizer == "sgd" else ("momentum", "squares")
        memory = {name: torch.zeros_like(params) for name in moments}
        if self.optimizer == "adamw":
            counts = params.device if params.device.type == "cuda" else "cpu"  # others may have no float64 (Apple's)
            memory["steps"] = torch.zeros(1, dtype=torch.float64, device=counts)
        return memory

    def shares(self, net: Network) -> Shares:
        """The parameters' shares by the module's `parameter_groups` if it has any, a dictionary from the beginning of
        parameters' names to their shares of `lr` and `weight_decay`."""
        names = list(net.trained)
        own: Mapping[str, Mapping[str, float]] = getattr(net.module, "parameter_groups", {})
        _check_groups(own, names)
        rates, decays = dict.fromkeys(names, 1.0), dict.fromkeys(names, 1.0)
        for name in names:
            for prefix in sorted((p for p in own if name.startswith(p)), key=len):
                rates[name] = own[prefix].get("lr", rates[name])
                decays[name] = own[prefix].get("weight_decay", decays[name])
        return Shares(_vector(net, rates), _vector(net, decays))

    @torch.no_grad()
    def step(self, params: Tensor, grads: Tensor, memory: Tensors, shares: Shares, rate: Tensor | None = None) -> None:
        """One step on [P], or [K, P], in place; `grads` are overwritten. One `rate` for all, or [K, 1]."""
        lr = self.lr if rate is None else rate
        lr = lr if shares.rate is None else lr * shares.rate
        if self.optimizer == "sgd":
            _sgd(params, grads, memory["momentum"], lr, self.momentum, self.decay, shares.decay)
        else:
            _adamw(params, grads, memory, lr, self.decay, shares.decay)


def _sgd(
    params: Tensor,
    grads: Tensor,
    buffer: Tensor,
    lr: float | Tensor,
    momentum: float,
    weight_decay: float,
    decay: Tensor | None,
) -> None:
    """As torch.optim.SGD."""
    if decay is None:
        grads.add_(params, alpha=weight_decay)
    else:
        grads.addcmul_(params, decay, value=weight_decay)
    buffer.mul_(momentum).add_(grads)
    if isinstance(lr, Tensor):
        params.addcmul_(buffer, lr, value=-1)
    else:
        params.add_(buffer, alpha=-lr)


def _adamw(
    params: Tensor,
    grads: Tensor,
    memory: Tensors,
    lr: float | Tensor,
    weight_decay: float,
    decay: Tensor | None,
) -> None:
    """Like torch.optim.AdamW. Steps are counted in float64: in float32 1 − 0.999 would have four correct digits."""
    (first, second), steps = _BETAS, memory["steps"].add_(1)
    mean = memory["momentum"].lerp_(grads, 1 - first)
    squares = memory["squares"].mul_(second).addcmul_(grads, grads, value=1 - second)
    params.mul_(1 - lr * weight_decay * (1.0 if decay is None else decay))
    bias = (1 - first**steps).float().to(params.device)
    root = (1 - second**steps).sqrt().float().to(params.device)
    params.sub_(mean.div(squares.sqrt().div_(root).add_(_EPS)).mul_(lr / bias))


def _vector(net: Network, values: Mapping[str, float]) -> Tensor | None:
    """A number for each parameter tensor as a flat vector [P]; None where all are 1."""
    if all(value == 1 for value in values.values()):
        return None
    parts = [torch.full((shape.numel(),), values[name]) for name, shape in net.trained.items()]
    return torch.cat(parts).to(net.device)


def _check_groups(groups: object, names: Iterable[str]) -> None:
    """Refuse malformed groups of a user's model."""
    if not isinstance(groups, Mapping) or not all(isinstance(shares, Mapping) for shares in groups.values()):
        raise UserError(
            "a model's parameter_groups must be a dictionary of dictionaries, such as {'body.': {'lr': 0.1}}"
        )
    for prefix, shares in groups.items():
        if not any(name.startswith(prefix) for name in names):
            raise UserError(
                f"a model's parameter_groups have '{prefix}', but no trained parameter's name starts with it"
            )
        for key, value in shares.items():
            if key not in ("lr", "weight_decay") or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise UserError(
                    f"a model's parameter_groups['{prefix}'] has {key} = {value!r}; "
                    "give shares of 'lr' and 'weight_decay' that are at least 0"
                )
