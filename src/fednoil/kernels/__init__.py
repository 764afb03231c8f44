"""Kernels for a GPU, written in Triton: what PyTorch does in many small launches or with too much memory traffic.

Each has a plain PyTorch meaning, which is what runs elsewhere; the submodules are imported only where they can run.
`python benchmarks/kernels.py` measures what each file gains: a turn with it against the same turn without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

KERNELS = ("augment", "conv", "linear", "loss", "mixture", "norm", "random", "sgd")  # sgd's is in norm.py
_off: set[str] = set()


@cache
def _available() -> bool:
    return torch.cuda.is_available() and find_spec("triton") is not None


def usable(x: Tensor, kernel: str) -> bool:
    """Whether one of `KERNELS` can work on this tensor."""
    return x.is_cuda and _available() and kernel not in _off


@contextlib.contextmanager
def without(*kernels: str) -> Iterator[None]:
    """Leave some kernels to PyTorch; what is captured or planned before keeps them."""
    unknown = set(kernels) - set(KERNELS)
    if unknown:
        raise ValueError(f"no kernels {sorted(unknown)}; there are {', '.join(KERNELS)}")
    before = set(_off)
    _off.update(kernels)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)


@cache
def processors() -> int:
    """Streaming multiprocessors of the GPU, which a launch has to fill; 100 where Triton's interpreter runs without."""
    return torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 100


def computed(x: Tensor) -> Tensor:
    """The tensor in the dtype that autocast asks for, which custom kernels don't get by themselves."""
    return x.to(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else x
