"""Kernels compiled side by side before they are needed, where earlier runs have left none.

Triton compiles a kernel when it is first launched, half a second each, and keeps it on disk. A network has dozens, so
the first run on a machine would wait for one after the other. Instead a step is tried without launching anything: all
kernels it asks for are compiled at once, and then it is done for real.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor

from fednoil.errors import Slower
from fednoil.kernels import available

_QUICK = 0.5  # seconds after which the user is told; kernels on disk are there much sooner
_THREADS = 32  # at most: each compiles in a few hundred megabytes

# What collects the kernels of a trial, while nothing is launched; a real step of another thread has none.
_trial: ContextVar[Any] = ContextVar("trial", default=None)


class _Known:
    """What the process knows about the kernels on disk."""

    complete: ClassVar[set[str]] = set()  # kinds of work whose last trial found all of its kernels
    told = False


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a kernel of Triton's; in a trial only have it compiled."""
    trial = _trial.get()
    if trial is None:
        kernel[grid](*args, **options)
        return
    from triton.runtime._async_compile import active_mode  # pyright: ignore[reportMissingImports]

    token = active_mode.set(trial)
    try:
        kernel.warmup(*args, grid=grid, **options)
    finally:
        active_mode.reset(token)


def empty(like: Tensor, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a kernel's results; zeros in a trial, where nothing writes them: anything else might be taken for an
    index."""
    make = like.new_empty if _trial.get() is None else like.new_zeros
    return make(shape, dtype=dtype or like.dtype)


def current() -> Any:
    """The trial that the calling thread is in, if any, for `in_its_trial`."""
    return _trial.get()


def in_its_trial(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The backward pass in the trial of its forward pass (`ctx.trial`): PyTorch runs it in another thread."""

    @wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        with _during(ctx.trial):
            return backward(ctx, *gradients)

    return run


@contextlib.contextmanager
def _during(trial: Any) -> Iterator[None]:
    token = _trial.set(trial)
    try:
        yield
    finally:
        _trial.reset(token)


def compile_ahead(kind: str, work: Callable[[], object]) -> None:
    """Compile what some work launches, several kernels at a time; it computes with zeros, so nothing that it changes
    may be kept. Once a trial of this kind finds all kernels on disk there is none, until any is missing again."""
    if kind in _Known.complete or not available():
        return
    _Known.complete.add(kind)  # unless Triton says otherwise
    if not _listens():
        return
    from triton import AsyncCompileMode  # pyright: ignore[reportMissingImports]

    threads = ThreadPoolExecutor(min(_THREADS, _cores()))
    trial = AsyncCompileMode(threads)
    try:
        with _during(trial):
            _try(kind, work)
        if wait(trial.raw_futures, _QUICK).not_done and not _Known.told:
            _Known.told = True
            warnings.warn("compiling kernels for this GPU; later runs find them", Slower, stacklevel=2)
        for kernel in trial.future_kernels.values():
            kernel.result(ignore_errors=True)  # it is compiled again when it is launched
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _try(kind: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:  # the work itself will say what is wrong
        _Known.complete.discard(kind)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _listens() -> bool:
    """Whether Triton reports what it compiles; false for versions that can't, or if somebody else listens."""
    try:
        from triton import AsyncCompileMode, knobs  # pyright: ignore[reportMissingImports]  # noqa: F401
    except ImportError:
        return False
    if knobs.compilation.listener is None:
        knobs.compilation.listener = _compiled
    return knobs.compilation.listener is _compiled


def _compiled(*, cache_hit: bool, **_: Any) -> None:
    if not cache_hit:
        _Known.complete.clear()
