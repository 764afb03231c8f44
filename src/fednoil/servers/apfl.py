"""APFL (Deng et al., 2020): each client mixes the common model w with a personal one v.

Only w is sent and averaged, and it learns exactly as without APFL. The personal model learns on the mixed output
α·v(x) + (1 − α)·w(x), with w held fixed; α moves once a round, by the gradient at the first batch. A client's v starts
as the w of its first turn. Outputs are mixed, not parameters, as in the authors' code, which is robust with BatchNorm.
The accuracy is the mean over the mixed models of the clients that have trained; w's accuracy and the mean of these
clients' α (`mean_alpha`) are recorded beside it. With a noisy-label learner both branches use the learner's own loss on
the same views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from fednoil.learners.base import Client, Final, Learner, Nets, Phase, Role, Trainee, Turn
from fednoil.learners.capabilities import ChangesGradients, Wrapped, capability, plans
from fednoil.models.network import Network
from fednoil.plugins import About
from fednoil.servers.base import Scored, Server, ServerConfig, ServerState
from fednoil.tensors import Tensors


class ApflConfig(ServerConfig):
    name: Literal["apfl"] = "apfl"


class _Recorded:
    """A network that records its outputs, to be used again for the same images."""

    def __init__(self, net: Network, outputs: list[Tensor]) -> None:
        self.net, self.outputs = net, outputs
        self.train, self.eval = net.train, net.eval

    def __call__(self, images: Tensor) -> Tensor:
        return self.each(images)[0]

    def each(self, *batches: Tensor) -> tuple[Tensor, ...]:
        found = self.net.each(*batches)
        self.outputs += [out.detach() for out in found]
        return found

    def embedded(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = self.net.embedded(images)
        self.outputs.append(logits.detach())
        return features, logits


class _Mixed:
    """The personal network mixed with the common one's outputs for the same images."""

    def __init__(self, own: Network, outputs: list[Tensor], alpha: Tensor) -> None:
        self.own, self.outputs, self.alpha = own, outputs, alpha
        self.train, self.eval = own.train, own.eval

    def __call__(self, images: Tensor) -> Tensor:
        return self.each(images)[0]

    def each(self, *batches: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.alpha * own + (1 - self.alpha) * self.outputs.pop(0) for own in self.own.each(*batches))

    def embedded(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = self.own.embedded(images)
        return features, self.alpha * logits + (1 - self.alpha) * self.outputs.pop(0)


def _own(name: str) -> str:
    return f"own-{name}"


class Personal(Wrapped):
    """The learner run twice: for the common model, and for the mixed one."""

    first_alpha: ClassVar[float] = 0.5  # of a client's first turn

    @property
    def shared(self) -> list[str]:
        return [role.name for role in self.inner.roles if role.shared]

    @property
    def roles(self) -> tuple[Role, ...]:
        personal = (Role(_own(name), shared=False, kept=True, start=name) for name in self.shared)
        return (*self.inner.roles, *personal)

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        device = client.index.device
        alpha = keep["alpha"].to(device).clone() if "alpha" in keep else torch.tensor(self.first_alpha, device=device)
        return self.inner.init(nets, client, keep, turn) | {"apfl/alpha": alpha}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return self.plans([Trainee(nets, client, state, turn)], epochs)[0]

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        each = zip(trainees, plans(self.inner, trainees, epochs), strict=True)
        return [self._with_slope(trainee, phases, epochs) for trainee, phases in each]

    def _with_slope(self, trainee: Trainee, phases: Sequence[Phase], epochs: range) -> list[Phase]:
        """The learner's phases for both networks, with the gradient of α at the first step of the turn."""
        found = []
        for place, phase in enumerate(phases):
            slope = torch.zeros(phase.steps, device=trainee.client.index.device)
            if place == 0 and epochs.start == 0:
                slope[0] = self._slope(trainee.nets, trainee.client, phase, trainee.state)
            trains = (*phase.trains, *(_own(name) for name in phase.trains))
            found.append(replace(phase, tensors={**phase.tensors, "apfl/slope": slope}, trains=trains))
        return found

    def _slope(self, nets: Nets, client: Client, phase: Phase, state: Tensors) -> Tensor:
        """The gradient of α at the first batch; networks and state are left as they were."""
        before = {name: net.dump(name) for name, net in nets.items()}
        aside = {name: tensor.clone() for name, tensor in state.items()}
        aside["apfl/alpha"].requires_grad_()
        batch = {name: tensor[0] for name, tensor in phase.tensors.items()}
        batch |= self.inner.views(client.pool, batch)
        for net in nets.values():
            net.train()
        with torch.enable_grad():
            loss = self.step(nets, client.pool, batch, aside, phase.kind)
            (slope,) = torch.autograd.grad(loss, aside["apfl/alpha"])
        for name, net in nets.items():
            net.load(before[name], name)
        return slope

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        outputs: dict[str, list[Tensor]] = {name: [] for name in self.shared}
        common = {name: _Recorded(nets[name], outputs[name]) for name in self.shared}
        alpha = state["apfl/alpha"]
        mixed = {name: _Mixed(nets[_own(name)], outputs[name], alpha) for name in self.shared}
        loss = self.inner.step(cast(Nets, {**nets, **common}), pool, batch, state, kind)
        aside = {
            name: tensor.clone() for name, tensor in state.items()
        }  # so that what the learner counts is counted once
        return loss + self.inner.step(cast(Nets, {**nets, **mixed}), pool, batch, aside, kind)

    def gradients(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        if inner := capability(self.inner, ChangesGradients):
            inner.gradients(nets, batch, state, kind)
        alpha = state["apfl/alpha"]
        alpha.copy_((alpha - self.task.lr * batch["apfl/slope"]).clamp(0, 1))

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        final = self.inner.final(nets, client, state, turn)
        return replace(final, keep={**final.keep, "alpha": state["apfl/alpha"]})

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        """The mixed model's logits where `own` has a client's α, else the common model's."""
        if "alpha" not in own:
            return self.inner.predict(nets, images, own)
        alpha = own["alpha"].to(images.device)
        mixed = {name: _Mixed(nets[_own(name)], [nets[name](images)], alpha) for name in self.shared}
        return self.inner.predict(cast(Nets, {**nets, **mixed}), images, own)


class Apfl(Server):
    Config = ApflConfig
    about = About(
        title="Personal models mixed with the common one",
        paper="Deng et al., 2020",
        keeps="personal model, α",
        sends="model",
        cost="2",
    )

    def wrap(self, learner: Learner) -> Learner:
        return Personal(learner)

    def own_model(self, received: Tensors, keep: Tensors) -> Tensors:
        return {**received, **keep} if "alpha" in keep else received

    def scored(self, state: ServerState, keep: Mapping[int, Tensors]) -> list[Scored]:
        trained = _trained(keep)
        clients = [Scored(f"client {k}", 1.0, {**state.tensors, **kept}) for k, kept in trained.items()]
        return [*clients, Scored("global", 0.0 if clients else 1.0, state.tensors)]

    def notes(self, state: ServerState, keep: Mapping[int, Tensors]) -> dict[str, Any]:
        """The mean α of the clients that have trained; in a federation α stays on the nodes."""
        alphas = [kept["alpha"] for kept in _trained(keep).values()]
        return {"mean_alpha": float(torch.stack(alphas).mean())} if alphas else {}


def _trained(keep: Mapping[int, Tensors]) -> dict[int, Tensors]:
    """What the clients that have a personal model keep, by client."""
    return {k: kept for k, kept in sorted(keep.items()) if "alpha" in kept}
