"""A learner whose clients keep the optimiser's momentum from turn to turn, instead of starting at rest each time."""

from __future__ import annotations

from dataclasses import replace

from fednoil.learners.base import Client, Final, Nets, Turn, Wrapped
from fednoil.tensors import Tensors


class KeptMomentum(Wrapped):
    """The inner learner with every network's momentum among what a client keeps."""

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
