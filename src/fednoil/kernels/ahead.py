"""Kernels compiled side by side before they are needed, where earlier runs have left none.

Triton compiles a kernel when it is first launched, half a second each, and keeps it on disk. A network has dozens, so
the first run on a machine would wait for one after the other. Instead a step is tried without launching anything: all
kernels it asks for are compiled at once, and then it is done for real.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fednoil.errors import Slower
from fednoil.kernels import available

_QUICK = 0.5  # seconds after which the user is told; kernels on disk are there much sooner


class _State:
    """What the process knows; not a thread's own, because PyTorch takes gradients in another thread."""

    trial: Any = None  # what collects the kernels while nothing is launched
    missing = True  # whether kernels may have to be compiled: nothing is known yet, or the last ones had to be
    told = False


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a kernel of Triton's, or only have it compiled (`compile_ahead`)."""
    if _State.trial is None:
        kernel[grid](*args, **options)
        return
    from triton.runtime._async_compile import active_mode  # pyright: ignore[reportMissingImports]

    token = active_mode.set(_State.trial)
    try:
        kernel.warmup(*args, grid=grid, **options)
    finally:
        active_mode.reset(token)


def compile_ahead(work: Callable[[], object]) -> None:
    """Compile what some work launches, several kernels at a time; it computes with zeros, so nothing that it changes
    may be kept. Once all kernels of such a trial were on disk there is none, until one is missing again."""
    if not _State.missing or not available():
        return
    _State.missing = False  # unless Triton says otherwise
    if not _listens():
        return
    from triton import AsyncCompileMode  # pyright: ignore[reportMissingImports]

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        trial = _State.trial = AsyncCompileMode(threads, ignore_errors=True)
        try:
            with _Zeros():
                work()
        except Exception:  # the work itself will say what is wrong
            pass
        finally:
            _State.trial = None
        if (late := wait(trial.raw_futures, _QUICK).not_done) and not _State.told:
            _State.told = True
            warnings.warn(f"compiling {len(late)} kernels for this GPU; later runs find them", Slower, stacklevel=2)
        for kernel in trial.future_kernels.values():
            kernel.result(ignore_errors=True)


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
    _State.missing |= not cache_hit


class _Zeros(TorchFunctionMode):
    """Zeros where a kernel would write its results: what was in memory could be an index that leads nowhere."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        function = {torch.Tensor.new_empty: torch.Tensor.new_zeros, torch.empty_like: torch.zeros_like}.get(
            function, function
        )
        return function(*args, **kwargs or {})
