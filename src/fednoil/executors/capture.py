"""Steps as CUDA graphs: captured when their shapes first occur, replayed after that.

Each client's graphs run on its own stream, ordered only by `Streams` and `Graphs.join`. Without a GPU the same steps
run one by one.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fednoil.errors import Slower, gpu_is_full
from fednoil.executors.attributes import Attributes
from fednoil.executors.stack import Rows, Unchanged
from fednoil.kernels.ahead import compile_ahead
from fednoil.tensors import Tensors

Signature = tuple[object, ...]
_GRAPHS = 128  # graphs kept; clients of many sizes would fill the memory otherwise


class NotCapturable(Exception):
    """Why a learner's step can't be captured as a graph."""


@dataclass(frozen=True)
class Portion:
    """Steps that some rows do at once, and the tensors these steps read and write, [K, ...] over clients."""

    rows: Rows
    kind: str
    trains: tuple[str, ...]  # not the phase itself: a kept graph would keep its whole plan
    batch: Tensors  # [K, steps, ...]
    pool: Tensor
    state: Tensors
    total: Tensor  # [K]: the sums of the losses
    active: Tensor | None  # [K, steps]: false where a client is frozen
    steps: int

    @property
    def signature(self) -> Signature:
        """What must be equal for two portions to share a graph."""
        shapes = tuple((n, t.dtype, t.shape) for tensors in (self.batch, self.state) for n, t in tensors.items())
        frozen = self.active is not None
        return (self.rows.first, self.rows.count, self.kind, self.trains, self.steps, frozen, shapes)

    def copy(self) -> Portion:
        """The same steps on copies of their tensors, except the pool and the losses."""
        batch = {name: _by_steps(tensor) for name, tensor in self.batch.items()}
        state = {name: tensor.clone() for name, tensor in self.state.items()}
        return replace(self, batch=batch, state=state, active=None if self.active is None else _by_steps(self.active))

    def run(self, steps: int) -> None:
        """Run the first steps, one by one."""
        for s in range(steps):
            row = {name: tensor[:, s] for name, tensor in self.batch.items()}
            active = None if self.active is None else self.active[:, s]
            self.rows.step(self.kind, self.trains, row, self.pool, self.state, self.total, active)


@dataclass(frozen=True)
class Captured:
    """A graph, and the portion whose tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    portion: Portion


class Graphs:
    """The graphs of a bench, the streams of its seats, and what they hold."""

    def __init__(self, device: torch.device, parallel: int) -> None:
        self.used = device.type == "cuda"  # on a CPU the same steps run one by one, for tests
        # Before those that work beside them (`fednoil.kernels.aside`).
        self.streams = [torch.cuda.Stream(priority=-1) for _ in range(parallel)] if self.used else []
        self.pools: dict[int, Any] = {}  # the memory that the graphs of a seat share
        self.captured: dict[Signature, Captured] = {}
        self.held: list[object] = []  # memory that streams still read must not be reused

    def __len__(self) -> int:
        return len(self.captured)

    def clear(self) -> None:
        """Forget all graphs."""
        if self.used:
            torch.cuda.synchronize()
        self.captured.clear()

    def join(self) -> None:
        """Make the current stream wait for all seats."""
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)
        self.held.clear()

    def on_streams(self, first: int, count: int) -> Streams:
        """The streams on which neighbouring seats work as one."""
        return Streams(self.streams[first : first + count])

    def play(self, portion: Portion) -> None:
        """Run the steps of a portion: by a graph, or one by one without a GPU."""
        if not self.used:
            with _explained():
                portion.run(portion.steps)
            return
        key = portion.signature
        if key not in self.captured:
            if len(self.captured) >= _GRAPHS:
                torch.cuda.synchronize()
                del self.captured[next(iter(self.captured))]  # the one unused for longest
            self.captured[key] = self._capture(portion)
        captured = self.captured[key] = self.captured.pop(key)
        inside = captured.portion
        _copy(portion.batch, inside.batch)
        _copy(portion.state, inside.state)
        if portion.active is not None and inside.active is not None:
            inside.active.copy_(portion.active)
        captured.graph.replay()
        _copy(inside.state, portion.state)

    def _capture(self, portion: Portion) -> Captured:
        """Capture steps on the current stream; networks and state are left as they were."""
        portion, graph = portion.copy(), torch.cuda.CUDAGraph()
        with _explained():
            warm_up(portion)
            torch.cuda.synchronize()
            self._record(graph, portion)
        return Captured(graph, portion)

    def _record(self, graph: torch.cuda.CUDAGraph, portion: Portion) -> None:
        """Record all steps in the graph; if that fails, leave PyTorch as if it had never been tried."""
        pool, collects = self._pool(portion.rows.first), gc.isenabled()
        gc.disable()  # a graph of an earlier run that is freed now would spoil this one
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            portion.run(portion.steps)
            graph.capture_end()
        except BaseException:
            del self.pools[portion.rows.first]
            _end_for_good(graph, pool)
            raise
        finally:
            if collects:
                gc.enable()

    def _pool(self, seat: int) -> Any:
        """The memory pool for a graph of this seat: that of its other graphs, or a new one if there are none (PyTorch
        can't reuse a pool once no graph uses it)."""
        if seat not in self.pools or all(captured.portion.rows.first != seat for captured in self.captured.values()):
            self.pools[seat] = torch.cuda.graph_pool_handle()
        return self.pools[seat]


def warm_up(portion: Portion) -> None:
    """Do a step, so that libraries choose and allocate what a graph can't, and kernels are compiled; networks and
    losses are left as they were."""
    rows, before = portion.rows, portion.total.clone()

    def step() -> None:
        with Unchanged(rows.stacked, slice(rows.first, rows.first + rows.count)):
            portion.run(1)

    def trial() -> None:
        own = Attributes(rows.bench.learner)
        try:
            step()
        finally:
            own.restore()

    compile_ahead("capture", trial)
    step()
    portion.total.copy_(before)


class Streams:
    """Work on the first of some streams, after all of them and before all of them."""

    def __init__(self, streams: Sequence[torch.cuda.Stream]) -> None:
        self.streams = streams
        self.context = torch.cuda.stream(streams[0] if streams else None)

    def __enter__(self) -> None:
        if self.streams:
            for other in (torch.cuda.current_stream(), *self.streams[1:]):
                self.streams[0].wait_stream(other)
        self.context.__enter__()

    def __exit__(self, *error: object) -> None:
        self.context.__exit__(*error)  # pyright: ignore[reportArgumentType]
        for other in self.streams[1:]:
            other.wait_stream(self.streams[0])


def _end_for_good(spoilt: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a capture that failed, wherever it did. The first error is the one to report, so none of this may raise.

    A failed capture that is ended as usual leaves two things behind. PyTorch goes on treating `pool` as one that is
    being allocated from: it refuses to capture into it again, and no longer frees memory when it runs short. And its
    own random generator stays in capture mode: drawing from it later fails, until a capture succeeds.
    """
    with contextlib.suppress(RuntimeError):  # ended as usual: frees the stream; PyTorch stops at the error
        spoilt.capture_end()
    with contextlib.suppress(RuntimeError):  # nothing to do if nothing was begun or all was ended
        device = torch.cuda.current_device()
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    with contextlib.suppress(RuntimeError):
        torch.cuda.current_stream().synchronize()
        whole, number = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
        torch.cuda.current_stream().synchronize()
        whole.capture_begin(capture_error_mode="thread_local")
        number.add_(1)  # an empty graph would cause a warning
        whole.capture_end()
    spoilt.reset()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn a step's error into the reason why it can't be captured: run eagerly, it worked."""
    try:
        yield
    except Exception as error:
        if gpu_is_full(error) or isinstance(error, Slower):
            raise
        raise NotCapturable(_why(error)) from error


def _why(error: Exception) -> str:
    """PyTorch's error about a step that it can't map or capture, in terms of the learner."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    low = text.lower()
    if any(word in low for word in ("dynamic", "data-dependent", "nonzero", "boolean mask")):
        return f"its step has shapes or branches that depend on values ({text})"
    if any(word in low for word in (".item()", "data pointer", "captur")):
        return f"its step waits for a value on the host ({text})"
    return f"its step can't be captured ({text})"


def _by_steps(tensor: Tensor) -> Tensor:
    """A copy of a tensor [K, steps, ...] with each step contiguous, so that reading one takes fewer launches."""
    return tensor.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)


def _copy(source: Tensors, target: Tensors) -> None:
    if target:
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            list(target.values()), [source[name] for name in target]
        )
