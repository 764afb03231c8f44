"""Step 27: `--set learner.name=step27:Pair`, with this folder on PYTHONPATH."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.base import Client, Nets, Phase, Role, Trainee, Turn, chunks
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.learners.looks import assembled, confidences
from fednoil.tensors import Tensors

_NETWORKS = ("model", "other")


class PairConfig(FedNoilPlusConfig):
    name: Literal["step27:Pair"] = "step27:Pair"  # pyright: ignore[reportIncompatibleVariableOverride]
    judge: Literal["other", "both", "own"] = Field(
        default="other", description="whose probabilities draw a network's D^x: the other's, the mean, or its own"
    )


class Pair(FedNoilPlus):
    """Two networks, each of which learns from labels that the other one judges; the mean of their probabilities is the
    model."""

    Config = PairConfig
    config: PairConfig

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(Role(name) for name in _NETWORKS)

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        return _log_mean([nets[name](images) for name in _NETWORKS])

    def asks(self, client: Client, turn: Turn) -> Tensors:
        return {}

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        """What each of the networks says of each sample: logits [n, C]."""

        def logits(name: str) -> Tensor:
            spans = chunks(len(client), client.pool)
            return assembled(len(client), spans, lambda rows: nets[name](client.pool[client.index[rows]]))

        return {f"{name} says": logits(name) for name in _NETWORKS}

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        own = super().init(nets, client, keep, turn)
        return own | {f"other/{name}": torch.zeros_like(tensor) for name, tensor in own.items()}

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        """Each network's epochs as if it were the only one, one network after the other."""
        found: list[list[Phase]] = [[] for _ in trainees]
        for name in _NETWORKS:
            judged = [self._judged_by_others(name, one) for one in trainees]
            for phases, own, one, states in zip(
                found, super().plans(judged, epochs), trainees, [j.state for j in judged], strict=True
            ):
                phases += [replace(phase, kind=name, trains=(name,)) for phase in own]
                one.state[f"{name}/size"] = states["size"]
                more = ("weight", "guess", "used")
                one.state.update({f"{name}/{key}": states[key] for key in more if key in states})
        return found

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return self.plans([Trainee(nets, client, state, turn)], epochs)[0]

    def _judged_by_others(self, name: str, one: Trainee) -> Trainee:
        """The client as one of its networks sees it."""
        nets, client, state, turn = one
        other = _NETWORKS[1 - _NETWORKS.index(name)]
        judges = {"other": (other,), "both": _NETWORKS, "own": (name,)}[self.config.judge]
        logits = _log_mean([state[f"{judge} says"] for judge in judges])
        seen = {key.removeprefix(f"{name}/"): tensor for key, tensor in state.items() if key.startswith(f"{name}/")}
        counted = {key: state[key if name == "model" else f"other/{key}"] for key in ("drawn", "votes") if key in state}
        seen |= counted | {
            "confidence": confidences(logits, client.labels, self.temperature),
            "probabilities": torch.softmax(logits, dim=1),
        }
        return Trainee(nets, client, seen, turn if name == "model" else replace(turn, seed=turn.seed.child("other")))

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step({"model": nets[kind]}, pool, batch, state, kind)


def _log_mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of softmax(z) over several logits z [n, C]."""
    if len(logits) == 1:
        return logits[0]
    return torch.logsumexp(torch.stack([one.log_softmax(1) for one in logits]), 0)
