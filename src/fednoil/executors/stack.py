"""Several clients' steps as one: the learner's step is mapped over clients whose tensors lie side by side.

`torch.vmap` turns each operation of the step into one operation for all clients, so a GPU gets few and large
kernels instead of many small ones. The learner's code is the same as for a single client. A frozen client (one with
fewer steps than the others) takes part in the arithmetic, but none of its tensors change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fednoil import kernels
from fednoil.executors.local import Workbench
from fednoil.executors.optimiser import RATE
from fednoil.kernels.aside import beside
from fednoil.learners.base import Nets
from fednoil.learners.capabilities import observer
from fednoil.models.layers import Stacked
from fednoil.models.stack import Member, Stack
from fednoil.tensors import Tensors

Others = dict[str, Tensors]
Leaves = dict[str, tuple[Tensor, ...]]  # a network's parameters in pieces, first those in half precision


class Rows:
    """Consecutive clients `first` … `first + count - 1` of a bench of stacks."""

    def __init__(self, stacked: StackedBench, first: int, count: int) -> None:
        self.stacked, self.bench = stacked, stacked.benches[first]
        self.first, self.count = first, count
        here = slice(first, first + count)
        self.params = {name: s.params[here] for name, s in stacked.stacks.items()}
        self.grads = {name: s.grads[here] for name, s in stacked.stacks.items()}  # zero, as a step expects them
        self.memory = {name: {n: t[here] for n, t in s.memory.items()} for name, s in stacked.stacks.items()}
        self.half = {name: s.half[here] for name, s in stacked.stacks.items() if s.half is not None}
        self.others: Others = {
            name: {n: tensor[here] for n, tensor in s.others.items()} for name, s in stacked.stacks.items()
        }
        self.fused = self.bench.optimiser.optimizer == "sgd" and kernels.usable(next(stacked.tensors()), "sgd")
        self.hooked = bool(self.bench.changing or self.bench.following)

    def refresh(self, trains: Sequence[str]) -> None:
        """Update the copies in half precision, in case something other than `step` changed the parameters."""
        for name in trains:
            if name in self.half:
                self.half[name].copy_(self.params[name][:, : self.half[name].shape[1]])

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
        """One optimiser step of every client, with all tensors [K, ...]; adds losses to `total` [K].

        `active` [K] (bool) freezes the clients where it is false.
        """
        # The fused optimiser leaves out a frozen client; everything else moves and is put back.
        apart = not trains or (self.fused and not self.hooked)
        everything = (self.others, state) if apart else (self.params, self.memory, self.half, self.others, state)
        before = _copies(everything) if active is not None else None
        if trains:
            losses = self._step(kind, trains, batch, pool, state, active)
            total += losses if active is None else torch.where(active, losses, 0.0)
        else:
            self._observe(kind, batch, pool, state)
        if active is not None:
            _restore(before, everything, active)

    @torch.no_grad()
    def _observe(self, kind: str, batch: Tensors, pool: Tensor, state: Tensors) -> None:
        def run(
            params: Tensors, grads: Tensors, memory: Others, others: Others, batch: Tensors, state: Tensors
        ) -> Tensor:
            by = observer(self.bench.learner, kind)
            by.observe(self._nets(params, grads, memory, others, {}), pool, batch, state, kind)
            return next(iter(params.values()))[:1]

        self._mapped(run, self.params, self.grads, self.memory, self.others, batch, state)

    def _step(
        self, kind: str, trains: Sequence[str], batch: Tensors, pool: Tensor, state: Tensors, active: Tensor | None
    ) -> Tensor:
        leaves = {name: self._leaves(name) for name in trains}

        def loss_of(
            leaves: Leaves,
            params: Tensors,
            grads: Tensors,
            memory: Others,
            others: Others,
            batch: Tensors,
            state: Tensors,
        ) -> Tensor:
            nets = self._nets(params, grads, memory, others, leaves)
            return self.bench.learner.step(nets, pool, batch, state, kind)

        own = (self.params, self.grads, self.memory, self.others)
        with beside(self.stacked.second, self._alone(leaves) if self.stacked.second else ()):
            losses = self._mapped(loss_of, leaves, *own, batch, state)
            flat = [leaf for parts in leaves.values() for leaf in parts]
            # Of the sum: for gradients of each loss PyTorch imports SymPy, which takes longer than some rounds.
            found = torch.autograd.grad(losses.sum(), flat, allow_unused=True)
        given = iter(torch.zeros_like(leaf) if g is None else g for leaf, g in zip(flat, found, strict=True))
        grads = {name: tuple(next(given) for _ in parts) for name, parts in leaves.items()}
        if self.hooked:
            self._step_with_hooks(kind, trains, grads, batch, state)
        else:
            for name in trains:
                self._optimise(name, grads[name], batch.get(RATE), active)
        return losses.detach()

    def _step_with_hooks(self, kind: str, trains: Sequence[str], grads: Leaves, batch: Tensors, state: Tensors) -> None:
        """The rest of a step for a learner that changes gradients or follows up on the step."""
        whole = {name: torch.zeros_like(params) for name, params in self.params.items() if name not in trains}
        whole |= {name: _whole(parts) for name, parts in grads.items()}

        def hook(method: Callable[..., None]) -> None:
            def run(
                params: Tensors, grads: Tensors, memory: Others, others: Others, batch: Tensors, state: Tensors
            ) -> Tensor:
                method(self._nets(params, grads, memory, others, {}), batch, state, kind)
                return next(iter(params.values()))[:1]

            self._mapped(run, self.params, whole, self.memory, self.others, batch, state)

        if self.bench.changing:
            hook(self.bench.changing.gradients)
        for name in trains:
            self._optimise(name, (whole[name],), batch.get(RATE))
        if self.bench.following:
            hook(self.bench.following.after)
            self.refresh(trains)

    def _leaves(self, name: str) -> tuple[Tensor, ...]:
        """What gradients are taken of: the parameters as the network's calls use them."""
        params, half = self.params[name], self.half.get(name)
        pieces = [sum(piece) for piece in self.stacked.stacks[name].pieces]
        parts = params.split(pieces, 1) if half is None else (*half.split(pieces, 1), params[:, half.shape[1] :])
        return tuple(part.detach().requires_grad_() for part in parts)

    def _alone(self, leaves: Leaves) -> set[int]:
        """The addresses of the parameters whose gradients nothing but the optimiser reads."""
        stacks = self.stacked.stacks
        pairs = [pair for name, parts in leaves.items() for pair in zip(parts, stacks[name].pieces, strict=False)]
        return {part.data_ptr() for part, piece in pairs if len(piece) == 1}

    def _nets(self, params: Tensors, grads: Tensors, memory: Others, others: Others, leaves: Leaves) -> Nets:
        stacks = self.stacked.stacks
        members = {n: Member(stacks[n], leaves.get(n), params[n], grads[n], memory[n], others[n]) for n in stacks}
        return cast(Nets, members)

    def _mapped(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """The function over all clients; a single one needs no `vmap`."""
        with Stacked():
            if self.count > 1:
                return torch.vmap(function)(*arguments)
            return function(*(_first(a) for a in arguments))[None]

    def _optimise(
        self, name: str, grads: tuple[Tensor, ...], rates: Tensor | None, active: Tensor | None = None
    ) -> None:
        """A step of the optimiser for all clients, with a rate for each [K] if it varies; the gradient comes in
        pieces, like the parameters. Only where it is fused does it know who is active."""
        optimiser, shares, params, memory = (
            self.bench.optimiser,
            self.bench.shares,
            self.params[name],
            self.memory[name],
        )
        if self.fused:
            from fednoil.kernels import sgd

            sgd.step(
                params,
                grads,
                memory["momentum"],
                self.half.get(name),
                optimiser.lr,
                optimiser.momentum,
                optimiser.decay,
                rates,
                shares.rate,
                shares.decay,
                active,
            )
            return
        optimiser.step(params, _whole(grads), memory, shares, None if rates is None else rates[:, None])
        self.refresh([name])


class StackedBench:
    """Benches for K clients with their networks side by side."""

    def __init__(self, benches: Sequence[Workbench]) -> None:
        self.benches = benches
        self.stacks = {name: Stack([b.nets[name] for b in benches]) for name in benches[0].nets}
        large = any(len(stack.pieces) > 1 for stack in self.stacks.values())
        self.second = torch.cuda.Stream() if large and next(self.tensors()).is_cuda else None  # see `beside`

    def load(self, received: Tensors, count: int) -> None:
        """Give the first `count` networks what they all received, as each would load it."""
        self.benches[0].load(received, {})
        for tensor in self.tensors():
            if count > 1:
                tensor[1:count] = tensor[:1]

    def reorder(self, order: Sequence[int]) -> None:
        """Put the first networks into another order: the one at `order[k]` moves to k, with all that belongs to it."""
        for tensor in self.tensors():
            tensor[: len(order)] = tensor[list(order)]

    def holds(self, tensors: Iterable[Tensor]) -> bool:
        """Whether one of these is part of a network here, and no copy."""
        own = {tensor.untyped_storage().data_ptr() for tensor in self.tensors()}
        return any(tensor.untyped_storage().data_ptr() in own for tensor in tensors)

    def tensors(self) -> Iterator[Tensor]:
        """All tensors [K, ...] of all networks."""
        for stack in self.stacks.values():
            own = (stack.params, stack.grads, stack.half, *stack.memory.values(), *stack.others.values())
            yield from (tensor for tensor in own if tensor is not None)


class Unchanged:
    """Restore the networks of some rows afterwards."""

    def __init__(self, bench: StackedBench, here: slice) -> None:
        self.tensors = [tensor[here] for tensor in bench.tensors()]

    def __enter__(self) -> None:
        self.copies = [tensor.clone() for tensor in self.tensors]

    def __exit__(self, *error: object) -> None:
        for tensor, copy in zip(self.tensors, self.copies, strict=True):
            tensor.copy_(copy)


def _whole(parts: Sequence[Tensor]) -> Tensor:
    """The parts of a gradient as one, float32 [K, P]."""
    return torch.cat([part.float() for part in parts], 1)


def _first(value: Any) -> Any:
    """The first client's part of (possibly nested) stacked tensors."""
    if isinstance(value, dict):
        return {k: _first(v) for k, v in value.items()}
    return tuple(_first(v) for v in value) if isinstance(value, tuple) else value.squeeze(0)


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
