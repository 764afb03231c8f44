"""Flower's local differential privacy on the update, as a modifier of the train handler only.

It clips the whole change of the model to a length and adds Gaussian noise to every number of it. All shared tensors
must be trained parameters: with noise BatchNorm's running variance could become negative, and its counter would not
count batches. Flower's own formula for the noise is proven only for ε < 1, so it is given the sensitivity that leads it
to the noise of the analytic Gaussian mechanism (Balle and Wang, 2018), for any ε.
"""

from __future__ import annotations

import math

import torch
from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.typing import ClientAppCallable

from fednoil.config.schema import FederationConfig
from fednoil.errors import UserError
from fednoil.experiment import Experiment

DELTA = 1e-5  # of the noise on each update


def check_update_privacy(experiment: Experiment) -> None:
    """Refuse noise on tensors that are not trained parameters."""
    if experiment.config.federation.update_epsilon is None:
        return
    names = {name.split("/", 1)[1] for name in experiment.initial_model()}
    others = sorted(names - experiment.task.parameters)
    if others:
        raise UserError(
            f"federation.update_epsilon needs a model without BatchNorm or other buffers, but model.name = "
            f"'{experiment.config.model.name}' sends '{others[0]}'; use another model, or no noise on updates"
        )


def private_update(config: FederationConfig, message: Message, context: Context, handler: ClientAppCallable) -> Message:
    """Call the train handler, inside Flower's modifier if the configuration asks for noise."""
    if config.update_epsilon is None or config.update_clip is None:
        return handler(message, context)
    epsilon = config.update_epsilon
    std = noise_std(2 * config.update_clip, epsilon, DELTA)  # two updates of length at most C differ by at most 2C
    sensitivity = std * epsilon / math.sqrt(2 * math.log(1.25 / DELTA))  # Flower's formula turns it back into std
    return LocalDpMod(config.update_clip, sensitivity, epsilon, DELTA)(message, context, handler)


def noise_std(sensitivity: float, epsilon: float, delta: float) -> float:
    """The least std of Gaussian noise that is (ε, δ)-private for values that differ by at most `sensitivity`."""
    low, high = 1e-12, 1e12  # of std / sensitivity; δ falls with it
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _delta(middle, epsilon) > delta else (low, middle)
    return high * sensitivity


def _delta(std: float, epsilon: float) -> float:
    """The δ of noise with this std on values that differ by at most 1, by the mechanism's exact condition."""
    near, far = 1 / (2 * std) - epsilon * std, -1 / (2 * std) - epsilon * std
    first, second = (float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64))) for x in (near, far))
    return math.exp(first) - math.exp(min(epsilon + second, first))
