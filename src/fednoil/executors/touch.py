"""Which tensors of its batch and state a step reads, found by a trial step that is undone.

What a step doesn't read stays out of its graph, and a step that can't be a graph is detected here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fednoil.executors.attributes import Attributes, attributes
from fednoil.executors.capture import NotCapturable
from fednoil.executors.stack import StackedBench, Unchanged
from fednoil.kernels.ahead import compile_ahead
from fednoil.learners.base import Client, Phase
from fednoil.tensors import Tensors


@dataclass(frozen=True)
class Touched:
    """The names in its batch and state that a step reads; the rest stays out of the graph."""

    batch: tuple[str, ...]
    state: tuple[str, ...]
    pixels: int  # of the images in one client's step


def touched_by(phase: Phase, stacked: StackedBench, place: int, client: Client, state: Tensors) -> Touched:
    """What the first step of a phase reads, tried on the networks of one seat; nothing may be training there."""
    bench = stacked.benches[place]
    copies = {name: tensor.clone() for name, tensor in state.items()}
    recorded = _Recorder(copies)
    row = {name: tensor[0] for name, tensor in phase.tensors.items()}
    images = bench.learner.views(client.pool, row)
    batch, names = _Recorder({**row, **images}), {*row, *images}
    generator, own = _generator_state(bench.device), Attributes(bench.learner)

    def step(batch: Tensors, state: Tensors) -> None:
        with Unchanged(stacked, slice(place, place + 1)):
            bench.step(phase, batch, client.pool, state, torch.zeros((), device=bench.device))

    compile_ahead("touch", lambda: step({**row, **images}, {name: tensor.clone() for name, tensor in state.items()}))
    own.restore()
    for _ in range(2):  # the first step may fill a cache for the others
        held = attributes(bench.learner)
        step(batch, recorded)
        if attributes(bench.learner) == held:
            break
    else:
        own.restore()
        raise NotCapturable("its step changes the learner itself; what changes from step to step belongs in the state")
    if dict.keys(recorded) != copies.keys() or any(dict.get(recorded, n) is not c for n, c in copies.items()):
        raise NotCapturable("its step replaces or adds tensors of the state; it must change them in place")
    if not torch.equal(generator, _generator_state(bench.device)):
        raise NotCapturable("its step draws random numbers, which a graph can't take from the run's seed")
    return Touched(
        tuple(n for n in batch.names if n in names),
        tuple(n for n in recorded.names if n in state),
        sum(t.numel() for t in images.values()),
    )


class _Recorder(dict[str, Tensor]):
    """A dictionary that remembers which names were read."""

    def __init__(self, values: Tensors) -> None:
        super().__init__(values)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> Tensor:
        self.names[name] = None
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        if found:
            self.names[str(name)] = None
        return found

    def get(self, name: str, default: Any = None) -> Any:
        found = name in self
        return self[name] if found else default

    def __iter__(self) -> Iterator[str]:
        self.names |= dict.fromkeys(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self.names |= dict.fromkeys(super().keys())
        return super().keys()

    def items(self) -> Any:
        self.names |= dict.fromkeys(super().keys())
        return super().items()

    def values(self) -> Any:
        self.names |= dict.fromkeys(super().keys())
        return super().values()


def _generator_state(device: torch.device) -> Tensor:
    """The state of PyTorch's global generator, which the package itself never draws from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
