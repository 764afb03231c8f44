"""Kernels for a GPU, written in Triton: what PyTorch does in many small launches or with too much memory traffic.

Each has a plain PyTorch meaning, which is what runs elsewhere; the submodules are imported only where they can run.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def _available() -> bool:
    return torch.cuda.is_available() and find_spec("triton") is not None


def usable(x: Tensor) -> bool:
    """Whether the kernels can work on this tensor."""
    return x.is_cuda and _available()


def computed(x: Tensor) -> Tensor:
    """The tensor in the dtype that autocast asks for, which custom kernels don't get by themselves."""
    return x.to(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else x
