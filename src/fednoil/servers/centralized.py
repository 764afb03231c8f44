"""No federation: all clients' samples in one place, with their clients' labels. The reference rows of the tables.

Partition and noise are drawn as in the federation, and then everything is pooled into one client, which continues where
it stopped: its networks, including a mean teacher, and the optimiser's momentum last from round to round. A round is
only the time between two evaluations. Learners count in rounds (warm-up, ramps, thresholds), so use rounds of one epoch
(`schedule.epochs=1`), one for each epoch of the method's authors: 300 for DivideMix, 200 for Jo-SRC. One difference
remains: DivideMix's weight of the unlabelled loss rises once an epoch, in its authors' code at every batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from fednoil.learners.base import Client, Final, Learner, Nets, Role, Turn
from fednoil.learners.capabilities import Wrapped
from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig
from fednoil.tensors import Tensors


class CentralizedConfig(ServerConfig):
    name: Literal["centralized"] = "centralized"


class Continued(Wrapped):
    """The learner as one training that never restarts: it keeps the optimiser's memory and networks that are not
    shared."""

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(role if role.shared else replace(role, kept=True) for role in self.inner.roles)

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        for name, tensor in _memories(nets).items():
            if name in keep:
                tensor.copy_(keep[name])
        return self.inner.init(nets, client, keep, turn)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        final = self.inner.final(nets, client, state, turn)
        memories = {n: t.clone(memory_format=torch.contiguous_format) for n, t in _memories(nets).items()}
        return replace(final, keep={**final.keep, **memories})


def _memories(nets: Nets) -> Tensors:
    """What the optimiser remembers of all networks, as views by parameter: the flat vectors are laid out by device."""
    found: Tensors = {}
    for name, net in nets.items():
        for part, tensor in net.memory.items():
            views = net.named(tensor) if tensor.shape == net.params.shape else {"": tensor}
            found |= {f"{part} of {name}/{parameter}": view for parameter, view in views.items()}
    return found


class Centralized(Server):
    Config = CentralizedConfig
    pools = True
    about = About(
        title="No federation: all data in one place",
        paper="a reference",
        keeps="optimiser's memory",
        sends="nothing",
        cost="1",
    )

    def wrap(self, learner: Learner) -> Learner:
        return Continued(learner)
