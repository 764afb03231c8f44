"""The contract of a server: what each client receives, how updates are combined, which models are scored.

A server object holds no state: `ServerState` goes in and comes out, so a checkpoint is that value. Which clients are
sampled is a separate choice (`fednoil.sampling`), so any server works with any sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fednoil.errors import UserError
from fednoil.learners.base import Learner, Task
from fednoil.plugins import About
from fednoil.section import Section
from fednoil.tensors import Numbers, Tensors, weighted_mean


class ServerConfig(Section):
    """The keys every server has; a method adds its own."""

    name: str = "fedavg"
    average: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="weight of earlier rounds in the model that is scored and saved; clients start from the last round",
    )
    limits: bool | None = Field(
        default=None,
        description="limits what one client can do: long updates are shortened, high scores capped, replays left out; "
        "none: in a federation only",
    )


@dataclass(frozen=True)
class ServerState:
    """Everything a server remembers: tensors, and values that JSON can hold."""

    tensors: Tensors
    values: dict[str, Any] = field(default_factory=dict)


def check_state(name: str, state: ServerState, received: Tensors, before: Tensors) -> None:
    """Refuse what the server `name` made of its updates if no checkpoint can hold it, or if what clients receive isn't
    like what they received before."""
    said = f"server.name = '{name}': its aggregate"
    for key, value in state.values.items():
        if not isinstance(key, str) or not _json(value):
            shown = f"values[{key!r}] = {value!r}"[:80]
            raise UserError(f"{said} left {shown}; JSON has numbers, strings, lists, and dicts by strings")
    if not isinstance(received, Mapping):
        raise UserError(f"{said} must leave tensors by name, not a {type(received).__name__}")
    for key, tensor in before.items():
        own = received.get(key)
        if not isinstance(own, Tensor) or own.shape != tensor.shape:
            what = f"shape {[*own.shape]}" if isinstance(own, Tensor) else f"a {type(own).__name__}"
            raise UserError(f"{said} must leave '{key}' as a tensor of shape {[*tensor.shape]}, not {what}")


def _json(value: Any) -> bool:
    """Whether JSON gives the value back as it is."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _json(own) for key, own in value.items())
    if isinstance(value, list):
        return all(map(_json, value))
    return value is None or isinstance(value, bool | int | float | str)


@dataclass(frozen=True)
class Update:
    """One client's reply to a round."""

    client: int
    tensors: Tensors
    numbers: Numbers


@dataclass(frozen=True)
class Scored:
    """A model that the experiment is scored with, and its weight in the mean; with weight 0 it is only recorded."""

    name: str
    weight: float
    tensors: Tensors


class Server:
    """Plain federated averaging; other servers override what they change."""

    Config: ClassVar[type[ServerConfig]] = ServerConfig
    about: ClassVar[About | None] = None
    # True: no federation; after partition and noise all samples are pooled into one client.
    pools: ClassVar[bool] = False

    def __init__(self, config: ServerConfig, task: Task) -> None:
        self.config = config
        self.task = task

    @classmethod
    def needs_only_mean(cls) -> bool:
        """Whether the mean of the updates is all that it needs, so that it may be summed in secret, or have noise."""
        methods = ("model_for", "aggregate", "combine", "chances", "most", "reviews", "reviewed")
        return not cls.pools and all(getattr(cls, name) is getattr(Server, name) for name in methods)

    def wrap(self, learner: Learner) -> Learner:
        """The learner as clients run it under this server."""
        return learner

    def init(self, model: Tensors) -> ServerState:
        return ServerState(model)

    def model_for(self, state: ServerState, client: int) -> Tensors:
        """What this client receives at the start of a round."""
        return state.tensors

    def aggregate(self, state: ServerState, round_idx: int, updates: Sequence[Update]) -> ServerState:
        """The next state, from updates in the order of client ids."""
        return ServerState(self.combine(updates), state.values)

    def signals(self, state: ServerState, client: int, round_idx: int) -> Numbers:
        """What the server sends this client with the model in this round: the stage of the run, whether it counts as
        noisy …"""
        return {}

    def chances(self, state: ServerState, round_idx: int, clients: Sequence[int]) -> Sequence[float] | None:
        """How likely each of `clients` is to train in this round, by which its chance in the sampling is multiplied;
        with 0 it doesn't train. None: the sampling alone decides."""
        return None

    def most(self, state: ServerState, round_idx: int) -> int | None:
        """How many clients train in this round at most; None: as many as the sampling says."""
        return None

    def reviews(self, state: ServerState, round_idx: int) -> bool:
        """Whether all clients are asked about their labels before this round (`capabilities.Reviews`)."""
        return False

    def reviewed(self, state: ServerState, round_idx: int, answers: Mapping[int, Numbers]) -> ServerState:
        """The state after the clients' answers, by client; in a federation some may be missing."""
        return state

    def combine(self, updates: Sequence[Update]) -> Tensors:
        """One model from several: their mean by number of samples (Eq. 4, over the sampled clients)."""
        return weighted_mean([u.tensors for u in updates], [u.numbers["samples"] for u in updates])

    def models(self, state: ServerState) -> Tensors:
        """The models among the server's tensors, by which it is scored (`average`)."""
        return state.tensors

    def flat(self, tensors: Tensors) -> Tensor:
        """All trainable parameters of a message as one vector, network after network, without BatchNorm statistics."""
        names = sorted(name for name in tensors if name.split("/", 1)[1] in self.task.parameters)
        return torch.cat([tensors[name].flatten() for name in names]).to(torch.float32)  # whatever the dict's order

    def scored(self, state: ServerState, keep: Mapping[int, Tensors]) -> list[Scored]:
        """The models whose accuracy is this experiment's accuracy; `keep` is the clients' own state."""
        return [Scored("global", 1.0, state.tensors)]

    def own_model(self, received: Tensors, keep: Tensors) -> Tensors:
        """The model that a client is scored with on its own data, from what it received and what it kept."""
        return received

    def exported(self, state: ServerState) -> Tensors:
        """The one model that goes into the model file."""
        return state.tensors

    def notes(self, state: ServerState, keep: Mapping[int, Tensors]) -> dict[str, Any]:
        """What a round's record says about this server; `keep` is the clients' own state."""
        return {}
