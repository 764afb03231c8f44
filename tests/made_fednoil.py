"""FedNoiL's learner and experiments with it, as its tests want them."""

from __future__ import annotations

from typing import Any

from fednoil.config import load_config
from fednoil.experiment import Experiment, make_experiment
from fednoil.learners.base import Task
from fednoil.learners.fednoil import FedNoil, FedNoilConfig
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig


def make(values: dict[str, Any], **learner: Any) -> Experiment:
    values["learner"] |= learner
    return make_experiment(load_config(values))


def learner(**keys: Any) -> FedNoil:
    return FedNoil(FedNoilConfig(**keys), Task(10, (1, 28, 28), 32, 0.05, 150))


def plus(**keys: Any) -> FedNoilPlus:
    return FedNoilPlus(FedNoilPlusConfig(**keys), Task(10, (1, 28, 28), 32, 0.05, 150))
