"""Updates that are no longer than a clip, and Gaussian noise."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from fednoil.seeds import Seed, open_uniform
from fednoil.tensors import Tensors

Normal = Callable[[int], np.ndarray]  # so many standard normal numbers: float64 [count]


def clipped(sent: Tensors, update: Tensors, most: float, trained: frozenset[str]) -> Tensors:
    """The update, whose change of the trained parameters is shortened to length `most` if it is longer."""
    names = [name for name in update if name in sent and name.split("/", 1)[-1] in trained]
    squares = [(update[n].double() - sent[n].double()).square().sum() for n in names]
    length = float(torch.stack(squares).sum().sqrt()) if squares else 0.0
    if length <= most:
        return update
    share = most / length
    return {n: torch.lerp(sent[n].to(t), t, share) if n in names else t for n, t in update.items()}


def noised(model: Tensors, std: float, normal: Normal) -> Tensors:
    """The model with Gaussian noise on every number; all its tensors are trained parameters."""
    return {name: (t.double() + std * noise_like(t, normal)).to(t.dtype) for name, t in model.items()}


def noise_like(tensor: Tensor, normal: Normal) -> Tensor:
    """Standard normal noise in a tensor's shape: float64."""
    return torch.from_numpy(normal(tensor.numel())).reshape(tensor.shape).to(tensor.device)


def system_noise(count: int) -> np.ndarray:
    """Standard normal numbers from the system's entropy: noise from a run's seed could be subtracted by all who know
    it."""
    words = np.frombuffer(os.urandom(8 * count), np.uint64)
    return _normal(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def seeded_noise(seed: Seed) -> Normal:
    """Standard normal numbers from a seed, other ones at each call: a simulation can be repeated."""
    calls = iter(range(1 << 30))

    def normal(count: int) -> np.ndarray:
        key = torch.tensor(seed.child(next(calls)).key())
        return _normal(open_uniform(key, count).numpy())

    return normal


def _normal(uniform: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri  # a fifth of a second, for runs that have noise

    return ndtri(uniform)


def majority(count: int) -> int:
    """More than half of so many clients: as many as must stay until the end of a secure sum."""
    return count // 2 + 1


def shared_std(std: float, count: int) -> float:
    """The std of the noise that each of `count` clients adds, so that the sum over any majority of them has `std`."""
    return std / sqrt(majority(count))
