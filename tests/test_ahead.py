"""Kernels that are compiled side by side before they are launched; Triton is played by stand-ins."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import assert_same
from test_stack import stacked, trained
from torch import Tensor

from fednoil.config import load_config
from fednoil.executors.capture import Graphs, Portion, warm_up
from fednoil.executors.stack import Rows
from fednoil.experiment import make_experiment
from fednoil.kernels import ahead
from fednoil.kernels.ahead import compile_ahead, current, empty, in_its_trial, launch
from fednoil.learners.base import Nets
from fednoil.learners.erm import Erm
from fednoil.models.layers import _stacked
from fednoil.tensors import Tensors

active: ContextVar[Mode | None] = ContextVar("active", default=None)


class Mode:
    """What Triton's AsyncCompileMode does."""

    def __init__(self, executor: Executor) -> None:
        self.executor, self.raw_futures, self.future_kernels = executor, list[Future[None]](), dict[str, Any]()

    def submit(self, name: str, work: Callable[[], None], finish: Callable[[], None]) -> None:
        if name not in self.future_kernels:
            self.raw_futures.append(future := self.executor.submit(work))
            self.future_kernels[name] = SimpleNamespace(result=partial(ended, future, finish))


def ended(future: Future[None], finish: Callable[[], None], ignore_errors: bool = False) -> None:
    if future.exception() is None or not ignore_errors:
        future.result()
        finish()


class Kernel:
    """A kernel that is on disk or not; it is compiled when `begin` is set."""

    def __init__(self, disk: set[str], name: str = "kernel", begin: threading.Event | None = None) -> None:
        self.disk, self.name, self.begin = disk, name, begin
        self.compiled, self.ready, self.launched = 0, False, list[Any]()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **options: self.launched.append((grid, args, options))

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> None:
        mode = active.get()
        assert mode is not None
        mode.submit(self.name, self.compile, lambda: setattr(self, "ready", True))

    def compile(self) -> None:
        assert self.begin is None or self.begin.wait(20)
        assert self.name != "broken"
        self.compiled += 1
        sys.modules["triton"].knobs.compilation.listener(src=None, cache_hit=self.name in self.disk)
        self.disk.add(self.name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of kernels that are on disk, on a machine with Triton."""
    knobs = SimpleNamespace(compilation=SimpleNamespace(listener=None))
    modules = {"": SimpleNamespace(AsyncCompileMode=Mode, knobs=knobs), ".runtime": SimpleNamespace()}
    modules[".runtime._async_compile"] = SimpleNamespace(active_mode=active)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"triton{name}", module)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(ahead, "available", lambda: True)
    monkeypatch.setattr(ahead._Known, "complete", set())
    monkeypatch.setattr(ahead._Known, "told", False)
    return set()


class Kernels(torch.autograd.Function):
    """Launches one kernel forwards and one backwards, as `fednoil.kernels.conv` does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Kernel, second: Kernel, seen: list[Tensor]) -> Tensor:
        ctx.trial, ctx.second, ctx.seen = current(), second, seen
        launch(first, (2, 3), 1, X=4)
        return empty(x, x.shape)

    @staticmethod
    @in_its_trial
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        launch(ctx.second, (1,))
        ctx.seen.append(dx := empty(dy, dy.shape))
        return dx, None, None, None


def test_a_trial_compiles_each_kernel_once_and_launches_nothing(disk: set[str]) -> None:
    """Also in a backward pass, which PyTorch runs in a thread of its own on a GPU, here in another one."""
    first, second, seen = Kernel(disk), Kernel(disk, "second"), list[Tensor]()

    def work() -> None:
        for _ in range(2):
            y = Kernels.apply(torch.ones(9, requires_grad=True), first, second, seen)
            seen.append(y.detach())
            thread = threading.Thread(target=y.sum().backward)
            thread.start()
            thread.join()

    compile_ahead("a", work)
    assert (first.compiled, second.compiled, first.launched, second.launched) == (1, 1, [], [])
    assert (first.ready, second.ready, active.get(), current()) == (True, True, None, None)
    assert len(seen) == 4
    assert not any(tensor.any() for tensor in seen)
    work()
    assert (first.launched[0], len(first.launched), len(second.launched)) == (((2, 3), (1,), {"X": 4}), 2, 2)


def test_what_another_thread_launches_meanwhile_is_launched(disk: set[str]) -> None:
    own, other = Kernel(disk), Kernel(disk, "other")

    def work() -> None:
        launch(own, (1,))
        thread = threading.Thread(target=lambda: launch(other, (1,)))
        thread.start()
        thread.join()

    compile_ahead("a", work)
    assert (own.compiled, len(own.launched), other.compiled, len(other.launched)) == (1, 0, 0, 1)


def test_trials_of_a_kind_end_when_all_is_on_disk_and_begin_again_when_something_is_missing(disk: set[str]) -> None:
    disk.add("kernel")
    kernel, tried = Kernel(disk), []

    def play(times: int) -> int:
        for _ in range(times):
            for kind in "ab":
                compile_ahead(kind, lambda: (tried.append(1), launch(kernel, (1,))))
        return len(tried)

    assert play(3) == 2
    Kernel(disk, "new").compile()
    assert play(3) == 4


def test_errors_are_left_to_the_work_itself(disk: set[str]) -> None:
    """A step that fails is tried again, and a kernel that can't be compiled spoils no other."""
    disk.add("kernel")
    kernel, broken, tried = Kernel(disk), Kernel(disk, "broken"), []

    def work() -> None:
        tried.append(1)
        launch(broken, (1,))
        launch(kernel, (1,))
        raise RuntimeError("a step that fails")

    for _ in range(2):
        compile_ahead("a", work)
    assert (len(tried), kernel.ready, broken.ready) == (2, True, False)


def test_one_line_says_that_it_takes_a_while(disk: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_QUICK", 0.01)
    begin = threading.Event()
    slow = [Kernel(disk, name, begin) for name in "abc"]
    monkeypatch.setattr(ahead.warnings, "warn", lambda text, *_, **__: (said.append(text), begin.set()))
    said = list[str]()
    compile_ahead("a", lambda: [launch(kernel, (1,)) for kernel in slow])
    assert said == ["compiling kernels for this GPU; later runs find them"]
    assert all(kernel.ready for kernel in slow)
    late = threading.Event()
    threading.Timer(0.1, late.set).start()
    compile_ahead("a", lambda: launch(Kernel(disk, "d", late), (1,)))
    assert len(said) == 1


def test_ctrl_c_waits_for_no_kernel(disk: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_cores", lambda: 1)
    begin = threading.Event()
    slow = [Kernel(disk, name, begin) for name in "abc"]
    threading.Timer(0.5, begin.set).start()

    def work() -> None:
        for kernel in slow:
            launch(kernel, (1,))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_ahead("a", work)
    begin.wait()
    assert sum(kernel.compiled for kernel in slow[1:]) == 0


@pytest.mark.parametrize("why", ["no GPU", "no Triton", "an older Triton", "somebody else listens"])
def test_without_what_it_needs_there_is_no_trial(disk: set[str], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "no GPU":
        monkeypatch.setattr(ahead, "available", lambda: False)
    elif why == "somebody else listens":
        sys.modules["triton"].knobs.compilation.listener = print
    else:
        other = None if why == "no Triton" else SimpleNamespace(knobs=sys.modules["triton"].knobs)
        monkeypatch.setitem(sys.modules, "triton", other)  # pyright: ignore[reportArgumentType]
    tried: list[int] = []
    compile_ahead("a", lambda: tried.append(1))
    assert not tried


class Caches(Erm):
    """Keeps on itself, for all later steps, what its first one works out."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.known, self.several = dict[bool, Tensor](), list[float]()

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        worth = 0.0 if current() else 1.0  # what was worked out with zeros
        if not hasattr(self, "kept"):
            self.kept = torch.tensor(worth)
            self.several.append(worth)
        together = _stacked.get()  # not while a step is looked at
        if together not in self.known:
            self.known[together] = torch.tensor(worth)
        return super().step(nets, pool, batch, state, kind) * self.kept * self.known[together] * min(self.several)


LEARNERS = [{"name": "fednoil", "frac": 0.5}, {"name": "elr"}, {"name": "dividemix"}, {"name": f"{__name__}:Caches"}]


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_a_trial_leaves_no_trace(
    learner: dict[str, Any], values: dict[str, Any], disk: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, where the operations are PyTorch's: while a step is looked at, and before each portion, as before it is
    captured."""
    values["learner"] = learner
    play, step, tried = Graphs.play, Rows.step, list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "available", lambda: False)
        wanted = trained(experiment := make_experiment(load_config(values)), stacked(experiment, 3), [0, 1, 2], 3)

    def after_a_warm_up(graphs: Graphs, portion: Portion) -> None:
        ahead._Known.complete.clear()
        warm_up(portion.copy())
        play(graphs, portion)

    def noted(rows: Rows, *arguments: Any) -> None:
        tried.append("trial" if current() else "step")
        step(rows, *arguments)

    monkeypatch.setattr(Graphs, "play", after_a_warm_up)
    monkeypatch.setattr(Rows, "step", noted)
    executor = stacked(experiment := make_experiment(load_config(values)), 3)
    got = trained(experiment, executor, [0, 1, 2], 3)
    assert executor.reason is None
    assert tried[:3] == ["trial", "step", "step"]  # tried, warmed up, done
    for client, result in wanted.items():
        assert_same(got[client].tensors, result.tensors)
        assert got[client].loss == result.loss > 0
