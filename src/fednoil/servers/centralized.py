"""No federation: all clients' samples in one place, with the labels their clients gave them. The reference rows.

Partition and noise are drawn as in the federation, and then everything is pooled into one client, which goes on where
it stopped: its networks, a mean teacher too, and the optimiser's momentum last from round to round. A round is only
the time between two evaluations. Learners count in rounds (warm-up, ramps, thresholds), so give rounds of one epoch
(`schedule.epochs=1`) and as many of them as the method's authors give epochs: 300 for DivideMix, 200 for Jo-SRC. One
difference remains: DivideMix's weight of the unlabelled loss rises from epoch to epoch, its authors' within one, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fednoil.learners.base import Client, Final, Learner, Nets, Role, Turn, Wrapped
from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig
from fednoil.tensors import Tensors


class CentralizedConfig(ServerConfig):
    name: Literal["centralized"] = "centralized"


class Continued(Wrapped):
    """The learner as one training that never starts anew: networks that are not shared and all momenta are kept."""

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(role if role.shared else replace(role, kept=True) for role in self.inner.roles)

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        for name, net in nets.items():
            if _momentum(name) in keep:
                net.momentum.copy_(keep[_momentum(name)])
        return self.inner.init(nets, client, keep, turn)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        final = self.inner.final(nets, client, state, turn)
        momenta = {_momentum(name): net.momentum.clone() for name, net in nets.items()}
        return replace(final, keep={**final.keep, **momenta})


def _momentum(name: str) -> str:
    return f"momentum of {name}"


class Centralized(Server):
    Config = CentralizedConfig
    pools = True
    about = About(
        title="No federation: all data in one place",
        paper="a reference",
        keeps="optimiser's momentum",
        sends="nothing",
        cost="1",
    )

    def wrap(self, learner: Learner) -> Learner:
        return Continued(learner)
