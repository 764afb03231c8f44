"""FedProx (Li et al., MLSys 2020): FedAvg with (μ/2)‖w − w_global‖² in every local objective.

The FedNoiL paper gives no μ; 0.01 is our choice from FedProx's grid. Trainable parameters only; no stragglers.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fednoil.learners.base import Client, Learner, Nets, Turn
from fednoil.learners.capabilities import ChangesGradients, Wrapped, capability
from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig
from fednoil.tensors import Tensors


class FedProxConfig(ServerConfig):
    name: Literal["fedprox"] = "fedprox"
    mu: float = Field(default=0.01, ge=0, description="weight of the proximal term")


class Proximal(Wrapped):
    """Adds the proximal term's gradient, μ(w − w_global), to every shared network."""

    def __init__(self, inner: Learner, mu: float) -> None:
        super().__init__(inner)
        self.mu = mu

    def _shared(self) -> list[str]:
        return [role.name for role in self.roles if role.shared]

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = self.inner.init(nets, client, keep, turn)
        return state | {f"anchor/{name}": nets[name].params.clone() for name in self._shared()}

    def gradients(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        if inner := capability(self.inner, ChangesGradients):
            inner.gradients(nets, batch, state, kind)
        for name in self._shared():
            net = nets[name]
            net.grads.add_(net.params, alpha=self.mu).sub_(state[f"anchor/{name}"], alpha=self.mu)


class FedProx(Server):
    Config = FedProxConfig
    config: FedProxConfig
    about = About(
        title="FedAvg with a proximal term",
        paper="Li et al., MLSys 2020",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def wrap(self, learner: Learner) -> Learner:
        return Proximal(learner, self.config.mu)
