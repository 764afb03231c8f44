"""APFL (Deng et al., 2020): each client mixes the common model w with a personal one v.

Only w is sent and averaged, and it learns exactly as without APFL. The personal model learns on the mixed output
α·v(x) + (1 − α)·w(x), with w held fixed; α moves once a round, by the gradient at the first batch. Outputs are mixed
rather than parameters, as in the authors' code, which is robust with BatchNorm. Scored is the mean over the clients
that have trained of their mixed models; w's accuracy is told beside it. With a noisy-label learner both branches run
the learner's own loss on the same views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from fednoil.learners.base import Client, Final, Learner, Nets, Phase, Role, Turn, Wrapped
from fednoil.models.network import Network
from fednoil.plugins import About
from fednoil.servers.base import Scored, Server, ServerConfig, ServerState
from fednoil.tensors import Tensors


class ApflConfig(ServerConfig):
    name: Literal["apfl"] = "apfl"
    alpha: float = Field(default=0.5, ge=0, le=1, description="share of the personal model at the start")
    adaptive: bool = Field(default=True, description="let α move")


class _Mix(torch.autograd.Function):
    """α·v + (1 − α)·w with w held fixed; the gradient of α is added to `slope`."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, w: Tensor, alpha: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(v, w, alpha)
        ctx.slope = slope
        return alpha * v + (1 - alpha) * w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        v, w, alpha = ctx.saved_tensors
        ctx.slope.add_((grads[0] * (v - w)).sum())
        return alpha * grads[0], None, None, None


class _Recorded:
    """A network whose outputs are written down, to be used again on the same images."""

    def __init__(self, net: Network, outputs: list[Tensor]) -> None:
        self.net, self.outputs = net, outputs
        self.train, self.eval = net.train, net.eval

    def __call__(self, images: Tensor) -> Tensor:
        out = self.net(images)
        self.outputs.append(out.detach())
        return out


class _Mixed:
    """The personal network mixed with what the common one has said of the same images."""

    def __init__(self, own: Network, outputs: list[Tensor], alpha: Tensor, slope: Tensor) -> None:
        self.own, self.outputs, self.alpha, self.slope = own, outputs, alpha, slope
        self.train, self.eval = own.train, own.eval

    def __call__(self, images: Tensor) -> Tensor:
        return cast(Tensor, _Mix.apply(self.own(images), self.outputs.pop(0), self.alpha, self.slope))


def _own(name: str) -> str:
    return f"own-{name}"


class Personal(Wrapped):
    """The learner run twice: for the common model, and for the mixed one."""

    def __init__(self, inner: Learner, config: ApflConfig) -> None:
        super().__init__(inner)
        self.apfl = config

    @property
    def shared(self) -> list[str]:
        return [role.name for role in self.inner.roles if role.shared]

    @property
    def roles(self) -> tuple[Role, ...]:
        personal = (Role(_own(name), shared=False, kept=True, start=name) for name in self.shared)
        return (*self.inner.roles, *personal)

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        device = client.index.device
        alpha = keep["alpha"].to(device).clone() if "alpha" in keep else torch.tensor(self.apfl.alpha, device=device)
        state = self.inner.init(nets, client, keep, turn)
        return state | {"apfl/alpha": alpha, "apfl/slope": torch.zeros((), device=device)}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        phases = []
        for place, phase in enumerate(self.inner.plan(nets, client, state, turn, epochs)):
            first = torch.zeros(phase.steps, device=client.index.device)
            first[0] = float(place == 0 and epochs.start == 0 and self.apfl.adaptive)
            trains = (*phase.trains, *(_own(name) for name in phase.trains))
            phases.append(replace(phase, tensors={**phase.tensors, "apfl/first": first}, trains=trains))
        return phases

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        outputs: dict[str, list[Tensor]] = {name: [] for name in self.shared}
        common = {name: _Recorded(nets[name], outputs[name]) for name in self.shared}
        mixed = {
            name: _Mixed(nets[_own(name)], outputs[name], state["apfl/alpha"], state["apfl/slope"])
            for name in self.shared
        }
        loss = self.inner.step(cast(Nets, {**nets, **common}), pool, batch, state, kind)
        aside = {name: tensor.clone() for name, tensor in state.items()}  # what the learner counts is counted once
        return loss + self.inner.step(cast(Nets, {**nets, **mixed}), pool, batch, aside, kind)

    def gradients(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        self.inner.gradients(nets, batch, state, kind)
        state["apfl/alpha"].sub_(self.task.lr * batch["apfl/first"] * state["apfl/slope"]).clamp_(0, 1)
        state["apfl/slope"].zero_()

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        final = self.inner.final(nets, client, state, turn)
        return replace(final, keep={**final.keep, "alpha": state["apfl/alpha"]})

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        """The mixed model's logits where `own` has a client's α, else the common model's."""
        if "alpha" not in own:
            return self.inner.predict(nets, images, own)
        alpha = own["alpha"].to(images.device)
        slope = torch.zeros_like(alpha)
        mixed = {name: _Mixed(nets[_own(name)], [nets[name](images)], alpha, slope) for name in self.shared}
        return self.inner.predict(cast(Nets, {**nets, **mixed}), images, own)


class Apfl(Server):
    Config = ApflConfig
    config: ApflConfig
    about = About(
        title="Personal models mixed with the common one",
        paper="Deng et al., 2020",
        keeps="personal model, α",
        sends="model",
        cost="2",
    )

    def wrap(self, learner: Learner) -> Learner:
        return Personal(learner, self.config)

    def own_model(self, received: Tensors, keep: Tensors) -> Tensors:
        return {**received, **keep} if "alpha" in keep else received

    def scored(self, state: ServerState, keep: Mapping[int, Tensors]) -> list[Scored]:
        trained = {k: kept for k, kept in sorted(keep.items()) if "alpha" in kept}
        clients = [Scored(f"client {k}", 1.0, {**state.tensors, **kept}) for k, kept in trained.items()]
        return [*clients, Scored("global", 0.0 if clients else 1.0, state.tensors)]
