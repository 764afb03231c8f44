"""Flower's local differential privacy on the update, as a modifier of the train handler alone.

It clips the whole change of the model to a length and adds Gaussian noise to every number of it. That needs a model
whose shared tensors are all trained parameters: BatchNorm's running variance would become negative under noise, and its
counter no number of batches.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.typing import ClientAppCallable

from fednoil.config.schema import FederationConfig
from fednoil.errors import UserError
from fednoil.experiment import Experiment


def check_update_privacy(experiment: Experiment) -> None:
    """Refuse noise on tensors that can't bear it."""
    if experiment.config.federation.update_epsilon is None:
        return
    names = {name.split("/", 1)[1] for name in experiment.initial_model()}
    others = sorted(names - experiment.task.parameters)
    if others:
        raise UserError(
            f"federation.update_epsilon needs a model without BatchNorm or other buffers, and model.name = "
            f"'{experiment.config.model.name}' sends '{others[0]}'; use a model without, or no noise on updates"
        )


def private_update(config: FederationConfig, message: Message, context: Context, handler: ClientAppCallable) -> Message:
    """Call the train handler, with Flower's modifier around it where the configuration asks for noise."""
    if config.update_epsilon is None or config.update_clip is None:
        return handler(message, context)
    # Two updates of length at most C differ by at most 2C.
    mod = LocalDpMod(config.update_clip, 2 * config.update_clip, config.update_epsilon, config.update_delta)
    return mod(message, context, handler)
