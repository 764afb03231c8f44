"""One client's local update: the reference implementation of `init / step / final`.

The sequential executor runs it client after client, and so does each node of a real federation; the CUDA executor does
its `step` for many clients at once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor, nn

from fednoil.errors import Diverged, UserError
from fednoil.executors.base import Job, Progress, Result
from fednoil.executors.optimiser import RATE, Optimiser
from fednoil.learners.base import LABELS, Client, Learner, Phase, Turn, chunks
from fednoil.learners.capabilities import (
    ChangesGradients,
    FollowsUp,
    Looks,
    Reviews,
    Surveys,
    adapts,
    capability,
    observer,
)
from fednoil.learners.looks import assembled, logits_of
from fednoil.models.network import Network, brought
from fednoil.tensors import Tensors

_STEPS = 8  # whose views are made at once: more bring nothing
_NUMBERS = 1 << 15  # times the batch size, in all of them at most: views of large images would fill the memory
PLANNED = (32, 64)  # epochs planned at once, first and later; the later ones are planned while the first ones run


class Workbench:
    """Memory for one client at a time: the networks that the learner's roles need."""

    def __init__(
        self,
        learner: Learner,
        template: nn.Module,
        normalisation: tuple[tuple[float, ...], tuple[float, ...]],
        optimiser: Optimiser,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        fixed: Tensors | None = None,
        networks: torch.device | None = None,
    ) -> None:
        self.learner = learner
        self.optimiser = optimiser
        self.device, self.networks = device, networks or device  # of the samples, and of the networks
        self.looking, self.surveying = capability(learner, Looks), capability(learner, Surveys)
        self.changing, self.following = capability(learner, ChangesGradients), capability(learner, FollowsUp)
        self.nets = {
            role.name: Network(copy.deepcopy(template), *normalisation, self.networks, dtype, device)
            for role in learner.roles
        }
        for net in self.nets.values():
            net.memory = optimiser.memory(net.params)
        if fixed:
            self.fix(fixed)
        self.shares = optimiser.shares(next(iter(self.nets.values())))  # all networks are alike

    def fix(self, tensors: Tensors) -> None:
        """Set what training never changes: for a shared network by its name, for others as in their `start`."""
        for role in sorted(self.learner.roles, key=lambda role: not role.shared):
            net = self.nets[role.name]
            if role.shared:
                net.fix(tensors, role.name)
            else:
                net.share(self.nets[role.start].fixed)

    def share(self, other: Workbench) -> None:
        """Use another bench's tensors for what training never changes."""
        for name, net in self.nets.items():
            net.share(other.nets[name].fixed)

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

    def look(self, client: Client) -> Tensor:
        """The networks' current logits of a client's samples, un-augmented and in eval mode: float32 [n, C]."""
        return logits_of(self.learner, self.nets, client)

    def looks(self, clients: Mapping[int, Client], jobs: Sequence[Job]) -> dict[int, Tensor]:
        """Logits of each client's samples by the model it received; a model that many received is loaded once."""
        found, loaded = {}, None
        for job in jobs:
            if job.received is not loaded or job.keep:
                self.load(job.received, job.keep)
                loaded = job.received if not job.keep else None
            found[job.client] = self.look(clients[job.client])
        return found

    def update(self, client: Client, job: Job, progress: Progress | None = None) -> Result:
        """Run one client's turn."""
        with torch.random.fork_rng(devices=[]):
            # Only a user's own module can draw from this generator (dropout, for example): ours plan their numbers.
            # torch.manual_seed also prepares GPUs, each with a stack trace: 2 % of a small client's turn on a CPU.
            seed = torch.manual_seed if self.networks.type != "cpu" else torch.default_generator.manual_seed
            seed(job.turn.seed.child("module").value & (2**63 - 1))
            state = self.begin(client, job)
            total, steps, updates = torch.zeros((), device=self.device), 0, 0
            ranges = self.epoch_ranges(job.turn)
            for place, epochs in enumerate(ranges):
                phases = self.planned(client, state, job.turn, epochs)
                for part, phase in enumerate(phases):
                    begin, width = place + part / len(phases), 1 / len(phases)
                    span = (begin / len(ranges), width / len(ranges))
                    self._run(phase, client, state, total, progress, span)
                    steps += phase.losses
                    updates += phase.steps * len(phase.trains)
            return self.finish(client, job, state, float(total) / max(steps, 1), updates)

    def epoch_ranges(self, turn: Turn) -> list[range]:
        """Epochs that are planned together; one at a time if planning must see how training went."""
        if adapts(self.learner, turn):
            return [range(e, e + 1) for e in range(turn.epochs)]
        ranges: list[range] = []
        while (start := ranges[-1].stop if ranges else 0) < turn.epochs:
            size = PLANNED[min(len(ranges), len(PLANNED) - 1)]
            ranges.append(range(start, min(start + size, turn.epochs)))
        return ranges

    def begin(self, client: Client, job: Job, found: Tensors | None = None, loaded: bool = False) -> Tensors:
        """Load the networks, unless they are, and let the learner look at its data; returns the turn's state (`found`:
        its survey)."""
        # Copies: if a turn fails it is begun again or ends the run, and what was kept must be unchanged.
        keep = {name: tensor.to(self.device, copy=True) for name, tensor in job.keep.items()}
        if not loaded:
            self.load(job.received, keep)
        for net in self.nets.values():
            net.balance(client.labels)
        return self.open(client, keep, job.turn, found, job.looked)

    def open(
        self, client: Client, keep: Tensors, turn: Turn, found: Tensors | None = None, looked: Tensor | None = None
    ) -> Tensors:
        """The state of a turn with the networks as they are; known logits and surveys are not computed again."""
        state: Tensors = {}
        if self.looking:
            state |= self.looking.look(self.look(client) if looked is None else looked, client)
        if found is None and self.surveying:
            found = self.survey(client, self.surveying.asks(client, turn))
        return {**state, **(found or {}), **self.learner.init(self.nets, client, keep, turn)}

    @torch.no_grad()
    def survey(self, client: Client, asked: Tensors) -> Tensors:
        """The learner's survey of the samples of one client, or of several together."""
        if not self.surveying:
            return {}
        for net in self.nets.values():
            net.eval()
        return self.surveying.survey(self.nets, client, asked)

    def planned(self, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        """The phases of the given epochs, with all networks in training mode."""
        return self.ready(self.learner.plan(self.nets, client, state, turn, epochs), turn)

    def ready(self, phases: list[Phase], turn: Turn) -> list[Phase]:
        """The phases with their rates, and all networks in training mode."""
        for net in self.nets.values():
            net.train()
        return self.optimiser.paced(phases, turn, self.device)

    def modules(self) -> Iterator[nn.Module]:
        """All modules of all networks."""
        for net in self.nets.values():
            yield from net.module.modules()

    def step(self, phase: Phase, batch: Tensors, pool: Tensor, state: Tensors, total: Tensor) -> None:
        """One optimiser step on a batch with its images; adds its loss to `total`."""
        learner, nets, kind = self.learner, self.nets, phase.kind
        if not phase.trains:
            with torch.no_grad():
                observer(learner, kind).observe(nets, pool, batch, state, kind)
            return
        for name in phase.trains:
            nets[name].grads.zero_()
        loss = learner.step(nets, pool, batch, state, kind)
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            _refuse(learner, loss)
        loss.backward()
        if self.changing:
            self.changing.gradients(nets, batch, state, kind)
        rate = batch[RATE].to(self.networks) if RATE in batch else None
        for name in phase.trains:
            net = nets[name]
            self.optimiser.step(net.params, net.grads, net.memory, self.shares, rate)
        if self.following:
            self.following.after(nets, batch, state, kind)
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
        """Run all steps of a phase, which covers `span` (begin, width) of the turn."""
        for done, batch in enumerate(self._batches(phase, client.pool), start=1):
            self.step(phase, batch, client.pool, state, total)
            if progress and (done % 16 == 0 or done == phase.steps):
                progress(span[0] + span[1] * done / phase.steps)

    def _batches(self, phase: Phase, pool: Tensor) -> Iterator[Tensors]:
        """The batch of each step with its images, whose views are made for several steps at once."""
        several = max(1, min(_STEPS, _NUMBERS // pool[:1].numel()))
        for start in range(0, phase.steps, several):
            some = {name: tensor[start : start + several] for name, tensor in phase.tensors.items()}
            some |= self.learner.views(pool, some)
            for row in zip(*(tensor.unbind(0) for tensor in some.values()), strict=True):
                yield dict(zip(some, row, strict=True))

    def finish(
        self, client: Client, job: Job, state: Tensors, loss: float, updates: int, finite: bool | None = None
    ) -> Result:
        """Gather the turn's result, after checking that it is finite (`finite`: already known)."""
        if finite is None:
            finite = all(bool(brought(torch.isfinite(n.params).all(), self.device)) for n in self.nets.values())
        if not finite or not math.isfinite(loss):
            raise Diverged(
                f"training diverged: client {client.id} in round {job.turn.round_idx} has loss {loss}; "
                f"lower train.lr (now {self.optimiser.lr})"
            )
        final = self.learner.final(self.nets, client, state, job.turn)
        keep, sent = {name: job.keep[name] for name in (LABELS,) if name in job.keep} | final.keep, {}
        for role in self.learner.roles:
            if role.shared:
                sent |= self.nets[role.name].dump(role.name)
            if role.kept:
                keep |= self.nets[role.name].dump(role.name)
        numbers = {**final.numbers, "samples": float(len(client)), "steps": float(updates)}
        return Result(job.client, sent, numbers, keep, final.evidence, loss)

    @torch.no_grad()
    def review(self, client: Client, job: Job, logits: Tensor) -> Result:
        """What a client answers when it reviews its labels, given the logits [n, C] of the model it received."""
        found = capability(self.learner, Reviews)
        if found is None:
            raise NotImplementedError(f"{self.learner.config.name} can't review labels: it has no `review`")
        keep = {name: tensor.to(self.device, copy=True) for name, tensor in job.keep.items()}
        final = found.review(logits, client, keep, job.turn)
        return Result(job.client, {}, dict(final.numbers), {**job.keep, **final.keep}, {}, 0.0)

    @torch.no_grad()
    def logits(self, model: Tensors, images: Tensor, index: Tensor | None = None) -> Tensor:
        """Logits of a scored model for all images, or those at `index`, in eval mode: float32 [N, C]."""
        self.load(model, model)
        for net in self.nets.values():
            net.eval()
        count = len(images) if index is None else len(index)

        def predicted(rows: slice) -> Tensor:
            return self.learner.predict(self.nets, images[rows if index is None else index[rows]], model)

        return assembled(count, chunks(count, images), predicted)


def _refuse(learner: Learner, loss: object) -> NoReturn:
    """Refuse what a user's own learner returned from a step."""
    got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) and loss.dim() else repr(loss)
    name = learner.config.name
    raise UserError(f"learner.name = '{name}': its step must return the loss, one number with a gradient, not {got}")
