"""The networks of several clients, their vectors side by side, so that one operation serves all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor
from torch.func import functional_call

from fednoil.models.network import Network, each_of, embedded_by
from fednoil.tensors import Tensors

# Parameters of a network whose gradients take longer to copy into one vector than a few launches, and of one of them
# that is worth a launch.
_LARGE, _ALONE = 1 << 20, 1 << 12


class Stack:
    """The same network of K clients, all tensors side by side: `params`, `grads` [K, P], and `memory`.

    Its networks work as before, each on its row; inside `torch.vmap` a `Member` stands for each of them. If they
    compute in half precision, `half` [K, H] is a copy of the parameters that autocast would cast, in that precision.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = networks
        self.params = _aligned([n.params for n in networks])
        self.grads = _aligned([n.grads for n in networks])
        first = networks[0]
        self.memory = {name: _aligned([n.memory[name] for n in networks]) for name in first.memory}
        self.half = self.params[:, : first.cast].to(first.dtype) if first.dtype != self.params.dtype else None
        computing = self.params if self.half is None else self.half
        self.pieces = _pieces([shape.numel() for shape in first.trained.values()], computing.shape[1])
        # Each contiguous: batch_norm under vmap would change a copy of a strided running mean.
        self.others = {name: torch.stack([n.others[name] for n in networks]) for name in first.others}
        for row, network in enumerate(networks):
            others = {name: tensor[row] for name, tensor in self.others.items()}
            memory = {name: tensor[row] for name, tensor in self.memory.items()}
            network.move(self.params[row], self.grads[row], memory, others)


def _pieces(sizes: Sequence[int], end: int) -> list[list[int]]:
    """The sizes of parameters, up to `end` numbers in all, in pieces: the gradients of a piece are copied into one
    vector. In a large network all but small parameters stand alone."""
    found: list[list[int]] = [[]]
    done = 0
    for size in sizes:
        if done == end:
            break
        done += size
        if end >= _LARGE and size >= _ALONE:
            found += [[size], []]
        else:
            found[-1].append(size)
    return [piece for piece in found if piece]


def _aligned(rows: Sequence[Tensor]) -> Tensor:
    """The rows [P] as [K, P], each beginning at a multiple of 64 bytes, so that a GPU can read 16 bytes at a time."""
    size = len(rows[0])
    table = rows[0].new_zeros(len(rows), -(-size // 16) * 16)[:, :size]
    return table.copy_(torch.stack(list(rows)))


class Member:
    """One client's network inside `torch.vmap`: looks like a `Network`, but its tensors are arguments."""

    def __init__(
        self,
        stack: Stack,
        weights: tuple[Tensor, ...] | None,
        params: Tensor,
        grads: Tensor,
        memory: Tensors,
        others: Tensors,
    ) -> None:
        self.network = stack.networks[0]
        # What calls use, with gradients; `params` are the same numbers without.
        self.weights = weights
        self.params, self.grads, self.memory, self.others = params, grads, memory, others
        self.train, self.eval = self.network.train, self.network.eval

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"inside a step a network has no '{name}': it can be called and has params, grads, memory and others"
        )

    def __call__(self, images: Tensor) -> Tensor:
        network = self.network
        weights = self.weights or network.parts(self.params)
        tensors = {**network.named(*weights), **self.others}
        with network.arithmetic():
            return functional_call(network.module, tensors, (network.inputs(images),)).float()

    def embedded(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """As `Network.embedded`."""
        return embedded_by(self.network.module, lambda: self(images))

    def each(self, *batches: Tensor) -> tuple[Tensor, ...]:
        """As `Network.each`."""
        return each_of(self, self.network, batches)
