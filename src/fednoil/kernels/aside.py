"""Gradients of weights on a second stream, beside the rest of a backward pass.

A weight's gradient is needed by the optimiser alone, while the gradient of the images is what the layers before it wait
for. So the former run beside the latter, where these leave processors idle: between launches, in their last wave, or
because they wait for memory. Only for weights that are used once in a step and whose gradient nobody but the optimiser
reads, not even to copy it: nothing else would wait for it.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

_BEHIND = 8  # gradients that may be unfinished when the next begins: what they read stays in memory

_step: ContextVar[Aside | None] = ContextVar("step", default=None)


class Aside:
    """The second stream of one step, and the addresses of the weights whose gradients may be computed there."""

    def __init__(self, stream: torch.cuda.Stream, weights: Collection[int]) -> None:
        self.stream, self.weights = stream, weights
        self.uses: Counter[int] = Counter()  # of each weight, by its address
        self.unfinished: deque[tuple[Any, object]] = deque()

    def run(self, work: Callable[[], Any], reads: object) -> Any:
        """What `work` computes on the second stream, after all that the current one has done. What it reads is kept
        until the current stream has waited for it."""
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            found = work()
        self.unfinished.append((self.stream.record_event(), reads))
        if len(self.unfinished) > _BEHIND:
            main.wait_event(self.unfinished[0][0])
            self.unfinished.popleft()
        return found


class Use(NamedTuple):
    """A layer's use of a weight in a step."""

    step: Aside
    address: int

    def computed(self, work: Callable[[], Any], reads: object) -> Any:
        """The weight's gradient, beside the rest if it is the only one of the weight."""
        return work() if self.step.uses[self.address] != 1 else self.step.run(work, reads)


def used(weights: Tensor) -> Use | None:
    """Note that a layer uses this weight [K, …] in the calling thread's step, if its gradient may be beside."""
    step = _step.get()
    if step is None or weights.data_ptr() not in step.weights:
        return None
    step.uses[weights.data_ptr()] += 1
    return Use(step, weights.data_ptr())


@contextlib.contextmanager
def beside(stream: torch.cuda.Stream | None, weights: Collection[int] = ()) -> Iterator[None]:
    """A step in which the gradients of the weights at these addresses may be computed on a second stream; afterwards
    the current one has waited for them. None: everything on the current one."""
    step = None if stream is None else Aside(stream, weights)
    token = _step.set(step)
    try:
        yield
        # A stream that did nothing isn't part of a graph that is being captured, so nothing may wait for it.
        if step is not None and step.unfinished:
            torch.cuda.current_stream().wait_stream(step.stream)
    finally:
        _step.reset(token)
        if step is not None:
            step.unfinished.clear()  # what they read belongs to the graph that holds this step: a circle
