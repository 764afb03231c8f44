"""Everything a run remembers between rounds, and the part of it that a client is given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from fednoil import evidence
from fednoil.config.schema import Config
from fednoil.executors.base import Job
from fednoil.experiment import Experiment
from fednoil.learners.base import Turn
from fednoil.privacy import Spent
from fednoil.servers.base import ServerState
from fednoil.tensors import Tensors

PATIENCE = 10
"""Rounds without a better model that end a run with `run.select = "early"`."""


@dataclass(frozen=True)
class Best:
    """The round so far whose model agrees best with the labels that clients hold out, the first one in a tie, with its
    agreement and its accuracy by class in percent."""

    round_idx: int
    val_accuracy: float
    server: ServerState
    per_class: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class RunState:
    """Everything a run remembers between rounds; a checkpoint is this value."""

    round_idx: int
    server: ServerState
    keep: dict[int, Tensors] = field(default_factory=dict)
    train_batches: int = 0
    per_class: tuple[float | None, ...] = ()
    evidence: Tensors = field(default_factory=dict)  # all clients', as `fednoil.evidence` has it; never sent
    average: Tensors = field(default_factory=dict)  # of the server's models over rounds, with `server.average`
    best: Best | None = None  # where clients hold labels out
    spent: Spent = field(default_factory=dict)  # the privacy account, where updates have noise

    @property
    def scored(self) -> ServerState:
        """What is scored after this round: the server's state, or its average over rounds."""
        return replace(self.server, tensors=self.average) if self.average else self.server

    def chosen(self, select: str) -> Best | None:
        """The best round, if `select` (`run.select`) says that the run ends with its model; None: with the last."""
        return None if select == "last" else self.best

    def over(self, config: Config) -> bool:
        """Whether the run has all its rounds, or ends early because the last ones brought no better model."""
        early = config.run.select == "early" and self.best and self.round_idx - self.best.round_idx >= PATIENCE
        return bool(early) or self.round_idx >= config.train.rounds

    def final(self, select: str) -> ServerState:
        """What is left of a run that ends here."""
        return best.server if (best := self.chosen(select)) else self.scored

    def final_per_class(self, select: str) -> tuple[float | None, ...]:
        """The accuracy of that model by class, in percent."""
        return best.per_class if (best := self.chosen(select)) else self.per_class


def start(experiment: Experiment) -> RunState:
    """The state before round 1."""
    return RunState(0, experiment.server.init(experiment.first_model()))


def placed(state: RunState, device: torch.device) -> RunState:
    """The same state with its tensors on `device`, where updates will be."""

    def move(tensors: Tensors) -> Tensors:
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    if device.type == "cpu":
        return state
    server = replace(state.server, tensors=move(state.server.tensors))
    keep = {k: move(kept) for k, kept in state.keep.items()}
    best = state.best and replace(
        state.best, server=replace(state.best.server, tensors=move(state.best.server.tensors))
    )
    bundle = evidence.placed(state.evidence, device)
    return replace(state, server=server, keep=keep, average=move(state.average), evidence=bundle, best=best)


def make_job(experiment: Experiment, state: RunState, client: int, epochs: int) -> Job:
    """What a client is given in the round after `state`."""
    round_idx = state.round_idx + 1
    return Job(
        client=client,
        received=experiment.server.model_for(state.server, client),
        keep=state.keep.get(client, {}),
        turn=Turn(
            round_idx,
            epochs,
            experiment.seed.child("round", round_idx, "client", client),
            experiment.server.signals(state.server, client, round_idx),
        ),
    )


def evaluation_job(experiment: Experiment, state: RunState, client: int) -> Job:
    """What a client is given to evaluate: the model that is scored and kept, and no training."""
    return make_job(experiment, replace(state, server=state.scored), client, 0)


def averaged(share: float, before: RunState, models: Tensors) -> Tensors:
    """The moving average of a server's models, in which all rounds before have this share, and a smaller one in the
    first rounds, whose models are soon outdated. A new model, such as a cluster's, starts its own average."""
    past, r = before.average, before.round_idx + 1
    weight = 1 - min(share, (1 + r) / (10 + r))
    return {n: torch.lerp(past[n], t, weight) if n in past and t.is_floating_point() else t for n, t in models.items()}
