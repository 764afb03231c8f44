"""Kernels that are compiled side by side before they are launched; Triton is played by stand-ins."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import assert_same
from test_stack import stacked, trained
from torch import Tensor

from fednoil.config import load_config
from fednoil.errors import Slower
from fednoil.executors import capture
from fednoil.executors.capture import Graphs, Portion
from fednoil.executors.stack import Unchanged
from fednoil.experiment import make_experiment
from fednoil.kernels import ahead
from fednoil.kernels.ahead import compile_ahead, launch
from fednoil.learners.base import Nets
from fednoil.learners.erm import Erm
from fednoil.tensors import Tensors

active: ContextVar[Mode | None] = ContextVar("active", default=None)


class Mode:
    """What Triton's AsyncCompileMode does."""

    def __init__(self, executor: Executor, ignore_errors: bool) -> None:
        self.executor, self.raw_futures, self.future_kernels = executor, list[Future[None]](), dict[str, Any]()

    def submit(self, name: str, work: Callable[[], None], finish: Callable[[], None]) -> None:
        if name not in self.future_kernels:
            self.raw_futures.append(future := self.executor.submit(work))
            self.future_kernels[name] = SimpleNamespace(result=lambda ignore_errors: (future.result(), finish()))


class Kernel:
    """A kernel that is on disk or not, and takes some time to compile."""

    def __init__(self, disk: set[str], name: str = "kernel", seconds: float = 0.0) -> None:
        self.disk, self.name, self.seconds = disk, name, seconds
        self.compiled, self.launched = 0, list[Any]()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **options: self.launched.append((grid, args, options))

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> None:
        mode = active.get()
        assert mode is not None
        mode.submit(self.name, self._compile, lambda: None)

    def _compile(self) -> None:
        time.sleep(self.seconds)
        self.compiled += 1
        sys.modules["triton"].knobs.compilation.listener(src=None, cache_hit=self.name in self.disk)
        self.disk.add(self.name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of kernels that are on disk, on a machine with Triton."""
    knobs = SimpleNamespace(compilation=SimpleNamespace(listener=None))
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(AsyncCompileMode=Mode, knobs=knobs))  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "triton.runtime", SimpleNamespace())  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "triton.runtime._async_compile", SimpleNamespace(active_mode=active))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(ahead, "available", lambda: True)
    for name, value in (("trial", None), ("missing", True), ("told", False)):
        monkeypatch.setattr(ahead._State, name, value)
    yield set()
    assert ahead._State.trial is None


def test_a_trial_compiles_each_kernel_once_and_launches_nothing(disk: set[str]) -> None:
    """Also in the thread in which PyTorch takes gradients."""
    kernel, other = Kernel(disk), Kernel(disk, "other")

    def work() -> None:
        launch(kernel, (2, 3), 1, X=4)
        thread = threading.Thread(target=lambda: (launch(kernel, (9,)), launch(other, (1,))))
        thread.start()
        thread.join()

    compile_ahead(work)
    assert (kernel.compiled, other.compiled, kernel.launched, other.launched) == (1, 1, [], [])
    assert active.get() is None
    launch(kernel, (2, 3), 1, X=4)
    assert kernel.launched == [((2, 3), (1,), {"X": 4})]


def test_trials_end_when_all_is_on_disk_and_begin_again_when_something_is_missing(disk: set[str]) -> None:
    disk.add("kernel")
    kernel, tried = Kernel(disk), []

    def work() -> None:
        tried.append(1)
        launch(kernel, (1,))

    for _ in range(3):
        compile_ahead(work)
    assert len(tried) == 1
    Kernel(disk, "new")._compile()
    for _ in range(3):
        compile_ahead(work)
    assert len(tried) == 2


def test_work_sees_zeros_and_its_errors_are_left_to_the_work_itself(disk: set[str]) -> None:
    kernel, seen = Kernel(disk), []

    def work() -> None:
        x = torch.ones(3)
        seen.extend([x.new_empty(10_000), torch.empty_like(x), x.new_empty(2, dtype=torch.int64)])
        launch(kernel, (1,))
        raise RuntimeError("a step that fails")

    compile_ahead(work)
    assert all(not tensor.any() for tensor in seen)
    assert [tensor.dtype for tensor in seen] == [torch.float32, torch.float32, torch.int64]
    assert kernel.compiled == 1


def test_one_line_says_that_it_takes_a_while(disk: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_QUICK", 0.01)
    slow = [Kernel(disk, name, 0.1) for name in "abc"]
    with pytest.warns(Slower, match="compiling 3 kernels for this GPU; later runs find them") as caught:
        compile_ahead(lambda: [launch(kernel, (1,)) for kernel in slow])
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_ahead(lambda: launch(Kernel(disk, "d", 0.1), (1,)))
    assert [kernel.compiled for kernel in slow] == [1, 1, 1]


def test_without_triton_or_with_an_older_one_there_is_no_trial(disk: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    sys.modules["triton"].knobs.compilation.listener = print  # somebody else's
    compile_ahead(lambda: tried.append(1))
    ahead._State.missing = True
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())  # pyright: ignore[reportArgumentType]
    compile_ahead(lambda: tried.append(1))
    ahead._State.missing = True
    monkeypatch.setattr(ahead, "available", lambda: False)
    compile_ahead(lambda: tried.append(1))
    assert not tried


class Caches(Erm):
    """Keeps on itself, for all later steps, what its first one works out."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        if not hasattr(self, "kept"):
            self.kept = torch.tensor(0.0 if ahead._State.trial else 1.0)
        return super().step(nets, pool, batch, state, kind) * self.kept


def test_a_learner_keeps_nothing_of_a_trial(values: dict[str, Any], disk: set[str]) -> None:
    """Its cache would hold what was worked out with zeros."""
    values["learner"] = {"name": f"{__name__}:Caches"}
    executor = stacked(experiment := make_experiment(load_config(values)), 3)
    before, after = (trained(experiment, executor, [0, 1], 1) for _ in range(2))
    assert executor.reason is None
    assert before[0].loss == after[0].loss > 0


@pytest.mark.parametrize("learner", [{"name": "fednoil", "frac": 0.5}, {"name": "elr"}, {"name": "dividemix"}])
def test_a_trial_leaves_no_trace(
    learner: dict[str, Any], values: dict[str, Any], disk: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, where the operations are PyTorch's: before each portion as before a capture."""
    values["learner"] = learner
    experiment, tried, play = make_experiment(load_config(values)), [], Graphs.play
    ahead._State.missing = False
    wanted = trained(experiment, stacked(experiment, 3), [0, 1, 2], 3)

    def after_a_trial(graphs: Graphs, portion: Portion) -> None:
        copy, rows, before = portion.copy(), portion.rows, portion.total.clone()
        with Unchanged(rows.stacked, slice(rows.first, rows.first + rows.count)):
            ahead._State.missing = True
            capture.compile_ahead(lambda: (tried.append(1), copy.run(1)))
            portion.total.copy_(before)
        play(graphs, portion)

    monkeypatch.setattr(Graphs, "play", after_a_trial)
    ahead._State.missing = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = trained(experiment, stacked(experiment, 3), [0, 1, 2], 3)
    assert tried
    for client, result in wanted.items():
        assert_same(got[client].tensors, result.tensors)
        assert got[client].loss == result.loss
