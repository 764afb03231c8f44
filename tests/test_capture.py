"""Graphs and the memory they share, with a PyTorch that is as strict about both as the one on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fednoil.executors import capture
from fednoil.executors.capture import Graphs, NotCapturable, Portion


class Device:
    """What PyTorch remembers of captures: who records into which pool, who holds one, the stream, the generator."""

    def __init__(self) -> None:
        self.stream, self.generator = "free", "free"
        self.recording: set[tuple[int, int]] = set()
        self.holders: Counter[tuple[int, int]] = Counter()
        self.handles = 0
        self.work: list[Callable[[], None]] = []  # what the graph that is being captured will do

    def handle(self) -> tuple[int, int]:
        self.handles += 1
        return (0, self.handles)

    def end(self, _: int, pool: tuple[int, int]) -> None:
        if pool not in self.recording:
            raise RuntimeError("not currently recording to mempool_id")
        self.recording.remove(pool)

    def release(self, _: int, pool: tuple[int, int]) -> None:
        self.holders[pool] -= 1
        assert self.holders[pool] >= 0

    def synchronize(self) -> None:
        if self.stream != "free":
            self.stream = "spoilt"
            raise RuntimeError("operation not permitted when stream is capturing")


class Graph:
    """A stand-in for a graph that records the work sent to the device, as a capture does."""

    def __init__(self, device: Device) -> None:
        self.device, self.pool, self.whole = device, (0, 0), False
        self.work: list[Callable[[], None]] = []

    def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global") -> None:
        self.pool = pool or self.device.handle()
        self.device.generator = "capturing"
        if self.pool in self.device.holders and not self.device.holders[self.pool]:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.device.holders[self.pool] += 1
        if self.pool in self.device.recording:
            raise RuntimeError("already recording to mempool_id")
        self.device.recording.add(self.pool)
        self.device.stream, self.device.work = "capturing", self.work

    def capture_end(self) -> None:
        before, self.device.stream = self.device.stream, "free"
        if before != "capturing":
            raise RuntimeError("the capture was invalidated, or there was none")
        self.device.end(0, self.pool)
        self.device.generator, self.whole = "free", True

    def replay(self) -> None:
        assert self.whole
        for work in self.work:
            work()

    def reset(self) -> None:
        if self.whole:
            self.device.release(0, self.pool)
        self.whole = False

    __del__ = reset


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    stream = SimpleNamespace(synchronize=device.synchronize)
    fakes: dict[str, Callable[..., Any]] = {
        "Stream": lambda priority=0: stream,
        "current_stream": lambda: stream,
        "current_device": lambda: 0,
        "synchronize": device.synchronize,
        "graph_pool_handle": device.handle,
        "CUDAGraph": lambda: Graph(device),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", device.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", device.release, raising=False)
    plain = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *sizes, device=None: plain(*sizes))
    return device


def portion(seat: int, kind: str = "", step: Callable[..., None] = lambda *_: None) -> Portion:
    rows: Any = SimpleNamespace(first=seat, count=1, stacked=SimpleNamespace(stacks={}, tensors=tuple), step=step)
    return Portion(rows, kind, (), {"x": torch.ones(1, 2)}, torch.ones(1), {}, torch.zeros(1), None, 2)


def test_a_seat_whose_graphs_were_all_forgotten_can_have_new_ones(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_GRAPHS", 1)
    graphs = Graphs(torch.device("cuda"), 2)
    for seat in (0, 1, 0, 1):
        graphs.play(portion(seat))
    assert len(graphs) == 1
    assert sum(device.holders.values()) == 1


def test_the_graphs_of_a_seat_share_memory(device: Device) -> None:
    graphs = Graphs(torch.device("cuda"), 2)
    for seat, kind in ((0, "a"), (1, "a"), (0, "b")):
        graphs.play(portion(seat, kind))
    assert sorted(device.holders.values()) == [1, 2]


def test_the_graph_that_was_unused_for_longest_is_forgotten(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_GRAPHS", 2)
    graphs = Graphs(torch.device("cuda"), 1)
    for kind in "abac":
        graphs.play(portion(0, kind))
    assert [key[2] for key in graphs.captured] == ["a", "c"]


class Adds:
    """Two clients whose step adds its batch to their parameter, their state and their loss, unless they are frozen."""

    def __init__(self, device: Device) -> None:
        self.device, self.first, self.count = device, 0, 2
        self.params = torch.zeros(2, 1)
        self.stacked = SimpleNamespace(tensors=lambda: (self.params, *(self.params.clone() for _ in range(2))))

    def step(self, kind: str, trains: Any, row: Any, pool: Any, state: Any, total: Any, active: Any) -> None:
        def work() -> None:
            added = row["x"] if active is None else torch.where(active, row["x"], 0.0)
            for tensor in (self.params[:, 0], state["sum"], total):
                tensor.add_(added)

        if self.device.stream == "capturing":
            self.device.work.append(work)
        else:
            work()


def test_a_graph_does_what_the_steps_do(device: Device) -> None:
    """Eight steps that add 1 + … + 8 to each client; then ten times that, the second client only in its first three
    steps; then twice that, the other way round, with the graph of the second time."""
    rows: Any = Adds(device)
    graphs, total = Graphs(torch.device("cuda"), 2), torch.zeros(2)
    x, state = torch.arange(1.0, 9.0).expand(2, 8), {"sum": torch.tensor([0.5, 0.25])}
    few = torch.arange(8) < torch.tensor([[8], [3]])
    for factor, active, wanted in ((1, None, [36, 36]), (10, few, [396, 96]), (2, few.flip(0), [408, 168])):
        graphs.play(Portion(rows, "", (), {"x": factor * x}, torch.ones(1), state, total, active, 8))
        assert total.tolist() == rows.params[:, 0].tolist() == wanted
        assert (state["sum"] - torch.tensor([0.5, 0.25])).tolist() == wanted
    assert len(graphs) == 2  # one of them knows of frozen clients


@pytest.mark.parametrize("error", [NotCapturable, KeyboardInterrupt])
def test_a_capture_that_fails_leaves_no_trace(device: Device, error: type[BaseException]) -> None:
    graphs = Graphs(torch.device("cuda"), 2)
    graphs.play(portion(0))

    def step(*_: object) -> None:
        if device.stream == "capturing":
            if error is KeyboardInterrupt:
                raise error
            device.synchronize()

    for _ in range(2):  # the second fails for the same reason, not for one that the first has left
        with pytest.raises(error, match="waits for a value on the host" if error is NotCapturable else None):
            graphs.play(portion(0, "other", step))
        assert (device.stream, device.generator, device.recording) == ("free", "free", set())
    graphs.play(portion(0, "third"))
    assert sum(device.holders.values()) == len(graphs) == 2


def test_a_full_gpu_is_no_fault_of_the_step(device: Device) -> None:
    """Otherwise the run would continue eagerly, with a wrong reason."""
    graphs = Graphs(torch.device("cuda"), 1)

    def step(*_: object) -> None:
        if device.stream == "capturing":
            raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.play(portion(0, step=step))
    assert (device.stream, device.generator, device.recording) == ("free", "free", set())
