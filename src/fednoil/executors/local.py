"""One client's local update: the reference meaning of `init / step / final`.

The sequential executor runs it client after client; a real federation's client runs it for itself; the CUDA
executor captures its `step` and replays it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fednoil.errors import UserError
from fednoil.executors.base import Job, Progress, Result
from fednoil.learners.base import CHUNK, Client, Learner, Phase, Turn
from fednoil.models.network import Network
from fednoil.section import Section
from fednoil.servers.sampling import client_score
from fednoil.tensors import Tensors


class Optimiser(Section):
    """SGD as in the paper, created anew for every local update."""

    lr: float
    momentum: float
    weight_decay: float


class Workbench:
    """Memory for one client at a time: the networks that the learner's roles ask for."""

    def __init__(
        self,
        learner: Learner,
        template: nn.Module,
        normalisation: tuple[tuple[float, ...], tuple[float, ...]],
        optimiser: Optimiser,
        device: torch.device,
    ) -> None:
        self.learner = learner
        self.optimiser = optimiser
        self.device = device
        self.nets = {role.name: Network(copy.deepcopy(template), *normalisation, device) for role in learner.roles}

    def load(self, received: Tensors, keep: Tensors) -> None:
        """Set every network: shared ones as received, kept ones as kept, the rest as copies."""
        copies = []
        for role in self.learner.roles:
            net = self.nets[role.name]
            if role.shared:
                net.load(received, role.name)
            elif role.kept and any(name.startswith(f"{role.name}/") for name in keep):
                net.load(keep, role.name)
            else:
                copies.append(role)
            net.reset_optimiser()
        for role in copies:
            self.nets[role.name].load(self.nets[role.start].dump(role.name), role.name)

    def score(self, client: Client, job: Job, sampling: str, temperature: float) -> float:
        """How clean the received model finds this client's labels."""
        self.load(job.received, job.keep)
        return client_score(self.learner.confidence(self.nets, client, temperature), sampling)

    def update(self, client: Client, job: Job, progress: Progress | None = None) -> Result:
        """Run one client's turn."""
        with torch.random.fork_rng(devices=[]):
            # Only a user's own module can draw from this generator (dropout, say): ours plan their numbers.
            torch.manual_seed(job.turn.seed.child("module").value & (2**63 - 1))
            state = self.begin(client, job)
            total, steps, updates = torch.zeros((), device=self.device), 0, 0
            chunks = self.chunks(job.turn.epochs)
            for place, epochs in enumerate(chunks):
                phases = self.planned(client, state, job.turn, epochs)
                for part, phase in enumerate(phases):
                    begin, width = place + part / len(phases), 1 / len(phases)
                    span = (begin / len(chunks), width / len(chunks))
                    self._run(phase, client, state, total, progress, span)
                    steps += phase.steps
                    updates += phase.steps * len(phase.trains)
            return self.finish(client, job, state, total, steps, updates)

    def chunks(self, epochs: int) -> list[range]:
        """Epochs that are planned together: all of them, unless planning must see how training went."""
        return [range(e, e + 1) for e in range(epochs)] if self.learner.adaptive else [range(epochs)]

    def begin(self, client: Client, job: Job) -> Tensors:
        """Load the networks and let the learner look at its data; returns the turn's state."""
        keep = {name: tensor.to(self.device) for name, tensor in job.keep.items()}
        self.load(job.received, keep)
        return self.learner.init(self.nets, client, keep, job.turn)

    def planned(self, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        """The phases of the given epochs, with all networks ready to train."""
        phases = self.learner.plan(self.nets, client, state, turn, epochs)
        for net in self.nets.values():
            net.train()
        return phases

    def modules(self) -> Iterator[nn.Module]:
        """All modules of all networks."""
        for net in self.nets.values():
            yield from net.module.modules()

    def step(self, phase: Phase, batch: Tensors, pool: Tensor, state: Tensors, total: Tensor) -> None:
        """One optimiser step; adds its loss to `total`."""
        learner, nets, kind = self.learner, self.nets, phase.kind
        for name in phase.trains:
            nets[name].grads.zero_()
        loss = learner.step(nets, pool, batch, state, kind)
        loss.backward()
        learner.gradients(nets, batch, state, kind)
        for name in phase.trains:
            nets[name].sgd(self.optimiser.lr, self.optimiser.momentum, self.optimiser.weight_decay)
        learner.after(nets, batch, state, kind)
        total += loss.detach()

    def _run(
        self,
        phase: Phase,
        client: Client,
        state: Tensors,
        total: Tensor,
        progress: Progress | None,
        span: tuple[float, float],
    ) -> None:
        """All steps of a phase, which is `span` (begin, width) of the turn."""
        rows = zip(*(t.unbind(0) for t in phase.tensors.values()), strict=True)
        for done, row in enumerate(rows, start=1):
            self.step(phase, dict(zip(phase.tensors, row, strict=True)), client.pool, state, total)
            if progress and (done % 16 == 0 or done == phase.steps):
                progress(span[0] + span[1] * done / phase.steps)

    def finish(self, client: Client, job: Job, state: Tensors, total: Tensor, steps: int, updates: int) -> Result:
        """Gather what the turn leaves, having checked that it is finite."""
        final = self.learner.final(self.nets, client, state, job.turn)
        loss = float(total) / max(steps, 1)
        self._check_finite(loss, job)
        keep, sent = dict(final.keep), {}
        for role in self.learner.roles:
            if role.shared:
                sent |= self.nets[role.name].dump(role.name)
            if role.kept:
                keep |= self.nets[role.name].dump(role.name)
        numbers = {**final.numbers, "samples": float(len(client)), "steps": float(updates)}
        return Result(client.id, sent, numbers, keep, final.evidence, loss)

    def _check_finite(self, loss: float, job: Job) -> None:
        finite = all(bool(torch.isfinite(net.params).all()) for net in self.nets.values())
        if not finite or loss != loss or loss in (float("inf"), float("-inf")):
            raise UserError(
                f"training diverged: client {job.client} in round {job.turn.round_idx} has loss {loss}; "
                f"lower train.lr (now {self.optimiser.lr}); the last checkpoint is kept"
            )

    @torch.no_grad()
    def logits(self, model: Tensors, images: Tensor) -> Tensor:
        """Logits of a scored model, in eval mode: float32 [N, C] on the host."""
        self.load(model, model)
        for net in self.nets.values():
            net.eval()
        parts = [
            self.learner.predict(self.nets, images[i : i + CHUNK], model).float().cpu()
            for i in range(0, len(images), CHUNK)
        ]
        return torch.cat(parts)
