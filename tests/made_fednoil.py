"""FedNoiL's learner and experiments with it, as its tests want them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fednoil.config import load_config
from fednoil.experiment import Experiment, make_experiment
from fednoil.learners.base import Client, Task, Trainee, Turn
from fednoil.learners.fednoil import FedNoil, FedNoilConfig
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.learners.labelled import LabelledLearner
from fednoil.learners.lot import Lot
from fednoil.seeds import Seed, Seeds
from fednoil.tensors import Tensors


def make(values: dict[str, Any], **learner: Any) -> Experiment:
    values["learner"] |= learner
    return make_experiment(load_config(values))


def learner(**keys: Any) -> FedNoil:
    return FedNoil(FedNoilConfig(**keys), Task(10, (1, 28, 28), 32, 0.05, 150))


def plus(**keys: Any) -> FedNoilPlus:
    return FedNoilPlus(FedNoilPlusConfig(**keys), Task(10, (1, 28, 28), 32, 0.05, 150))


def size_of(learner: LabelledLearner, client: Client, state: Tensors, round_idx: int = 1) -> int:
    """|D^x| of a client in a round."""
    shares = learner.shares([client], [state])
    (size,) = learner.labelled_sizes([Trainee({}, client, state, Turn(round_idx, 1, Seed(0)))], shares)
    return size


def split(learner: LabelledLearner, weight: Tensor, labels: Tensor, size: int, epochs: range) -> tuple[Tensor, Tensor]:
    """D^x [K · E, size] and the rest of clients with weights and labels [K, n], numbered one client after another."""
    clients, count = weight.shape
    everyone = Client(-1, torch.empty(0), torch.arange(labels.numel()), labels.flatten())
    seeds = Seeds(tuple(map(Seed, range(clients))))
    lot = Lot(everyone, (count,) * clients, (size,) * clients, seeds, epochs, 32)
    order = lot.numbered(learner.order(lot, weight)).flatten(0, 1)
    return order[:, :size], order[:, size:]
