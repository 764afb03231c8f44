"""Several clients' steps as one: the learner's step is mapped over clients whose tensors lie side by side.

`torch.vmap` turns each operation of the step into one operation for all clients, so a GPU gets few and large
kernels instead of many small ones. The learner's code is the same as client after client; a frozen client (one
with fewer steps than the others) takes part in the arithmetic, and nothing of it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fednoil import kernels
from fednoil.executors.local import Workbench
from fednoil.learners.base import Nets
from fednoil.models.network import Member, Stack
from fednoil.tensors import Tensors

Others = dict[str, Tensors]


class Rows:
    """Consecutive clients `first` … `first + count - 1` of a bench of stacks."""

    def __init__(self, stacked: StackedBench, first: int, count: int) -> None:
        self.stacked, self.bench = stacked, stacked.benches[first]
        self.first, self.count = first, count
        here = slice(first, first + count)
        self.params = {name: s.params[here] for name, s in stacked.stacks.items()}
        self.grads = {name: s.grads[here] for name, s in stacked.stacks.items()}  # zero, as a step finds them
        self.momentum = {name: s.momentum[here] for name, s in stacked.stacks.items()}
        self.others: Others = {
            name: {n: tensor[here] for n, tensor in s.others.items()} for name, s in stacked.stacks.items()
        }

    def step(
        self,
        kind: str,
        trains: Sequence[str],
        batch: Tensors,
        pool: Tensor,
        state: Tensors,
        total: Tensor,
        active: Tensor | None = None,
    ) -> None:
        """One optimiser step of every client, all tensors with the clients in front; adds losses to `total` [K].

        `active` [K] (bool) freezes the clients where it is false.
        """
        everything = (self.params, self.momentum, self.others, state)
        before = _copies(everything) if active is not None else None
        losses = self._step(kind, trains, batch, pool, state)
        if active is None:
            total += losses
        else:
            total += torch.where(active, losses, 0.0)
            _restore(before, everything, active)

    def _step(self, kind: str, trains: Sequence[str], batch: Tensors, pool: Tensor, state: Tensors) -> Tensor:
        learner = self.bench.learner
        leaves = {name: self.params[name].detach().requires_grad_() for name in trains}

        def loss_of(
            weights: Tensors,
            params: Tensors,
            grads: Tensors,
            momentum: Tensors,
            others: Others,
            batch: Tensors,
            state: Tensors,
        ) -> Tensor:
            nets = self._nets(params, grads, momentum, others, weights)
            return learner.step(nets, pool, batch, state, kind)

        own = (self.params, self.grads, self.momentum, self.others)
        losses = self._mapped(loss_of, {**self.params, **leaves}, *own, batch, state)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        grads = {name: torch.zeros_like(t) for name, t in self.params.items() if name not in leaves}
        grads |= {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, found, strict=True)}

        def hook(method: Callable[..., None]) -> None:
            def run(
                params: Tensors, grads: Tensors, momentum: Tensors, others: Others, batch: Tensors, state: Tensors
            ) -> Tensor:
                method(self._nets(params, grads, momentum, others), batch, state, kind)
                return next(iter(params.values()))[:1]

            self._mapped(run, self.params, grads, self.momentum, self.others, batch, state)

        hook(learner.gradients)
        for name in trains:
            self._sgd(name, grads[name])
        hook(learner.after)
        return losses.detach()

    def _nets(
        self, params: Tensors, grads: Tensors, momentum: Tensors, others: Others, weights: Tensors | None = None
    ) -> Nets:
        stacks, weights = self.stacked.stacks, weights or params
        members = {n: Member(stacks[n], weights[n], params[n], grads[n], momentum[n], others[n]) for n in stacks}
        return cast(Nets, members)

    def _mapped(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """The function over all clients; a single one needs no `vmap`."""
        if self.count > 1:
            return torch.vmap(function)(*arguments)
        return function(*(_first(a) for a in arguments))[None]

    def _sgd(self, name: str, grads: Tensor) -> None:
        """As `Network.sgd`, for all clients."""
        settings, params, momentum = self.bench.optimiser, self.params[name], self.momentum[name]
        if kernels.usable(params):
            from fednoil.kernels.norm import sgd

            sgd(params, grads.contiguous(), momentum, settings.lr, settings.momentum, settings.weight_decay)
            return
        momentum.mul_(settings.momentum).add_(grads.add(params, alpha=settings.weight_decay))
        params.add_(momentum, alpha=-settings.lr)


class StackedBench:
    """Benches for K clients whose networks lie side by side."""

    def __init__(self, benches: Sequence[Workbench]) -> None:
        self.benches = benches
        self.stacks = {name: Stack([b.nets[name] for b in benches]) for name in benches[0].nets}


def _first(value: Any) -> Any:
    """The first client's part of (possibly nested) stacked tensors."""
    return {k: _first(v) for k, v in value.items()} if isinstance(value, dict) else value.squeeze(0)


def _copies(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copies(v) for k, v in value.items()}
    return tuple(_copies(v) for v in value) if isinstance(value, tuple) else value.clone()


def _restore(before: Any, value: Any, active: Tensor) -> None:
    """Set the rows of `value` that are not active back to what they were."""
    if isinstance(value, Tensor):
        moving = active.view(-1, *[1] * (value.dim() - 1))
        value.copy_(torch.where(moving, value, before))
        return
    for key in value if isinstance(value, dict) else range(len(value)):
        _restore(before[key], value[key], active)
