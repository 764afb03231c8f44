"""GPU kernels in Triton for what PyTorch does in many small launches or with too much memory traffic.

Each has an equivalent in plain PyTorch, which runs everywhere else; submodules are imported only where they can run.
`python benchmarks/kernels.py` measures what each gains end to end: a turn with it against a turn without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

KERNELS = ("conv", "norm", "sgd", "head", "views")
_off: set[str] = set()


@cache
def available() -> bool:
    """Whether there is Triton and a GPU that it serves: NVIDIA's from compute capability 8.0 on, tested as such."""
    there = torch.cuda.is_available() and torch.version.hip is None and find_spec("triton") is not None
    return there and torch.cuda.get_device_capability() >= (8, 0)


def usable(x: Tensor, kernel: str) -> bool:
    """Whether one of `KERNELS` can work on this tensor."""
    return x.is_cuda and available() and kernel not in _off


@contextlib.contextmanager
def without(*kernels: str) -> Iterator[None]:
    """Use PyTorch instead of some kernels; graphs captured and plans made before keep them."""
    unknown = set(kernels) - set(KERNELS)
    if unknown:
        raise ValueError(f"unknown kernels {sorted(unknown)}; choose from {', '.join(KERNELS)}")
    before = set(_off)
    _off.update(kernels)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)


@cache
def processors() -> int:
    """The GPU's streaming multiprocessors, which a launch has to fill; 100 in Triton's interpreter without a GPU."""
    return torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 100


def computed(x: Tensor) -> Tensor:
    """The tensor in autocast's dtype: custom kernels aren't cast automatically."""
    return x.to(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else x
