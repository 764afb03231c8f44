"""Two Gaussians on a line, fitted to many rows at once without leaving the device.

The same model and stopping rule as scikit-learn's GaussianMixture with two components; the start is the exact 2-means
split of the sorted values instead of a random one, so the fit has no randomness.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ITERATIONS = 10
_TOLERANCE = 1e-2
_FLOOR = 5e-4  # added to every variance
_LONG, _FINE, _LEAST = 100, 1e-3, 1e-6  # the same of fits that methods of others ask for
_TINY = 10 * torch.finfo(torch.float64).eps


def low_component(values: Tensor, count: Tensor | None = None) -> Tensor:
    """For each row of `values` [R, n]: the chance [R, n] that a value belongs to the component with the lower mean.

    Only the first `count` values of each row take part where it is given, one number or one for each row [R, 1],
    whatever the others are.
    """
    inside = _inside(values, count)
    x = torch.where(inside, values.double(), 0.0)
    upper = _upper_half(x, inside).double()
    resp = torch.stack([1 - upper, upper])
    params = _maximise(x, resp, inside)
    bound = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
    done = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(_ITERATIONS):
        joint = _log_joint(x, params)
        total = joint.logsumexp(0)
        new_params = _maximise(x, (joint - total).exp(), inside)
        params = torch.where(done[None, None], params, new_params)
        new_bound = torch.where(inside, total, 0.0).sum(1) / inside.sum(-1)
        done = done | ((new_bound - bound).abs() < _TOLERANCE)
        bound = new_bound
    joint = _log_joint(x, params)
    posterior = (joint - joint.logsumexp(0)).exp()
    low = params[1].argmin(0)
    return posterior.gather(0, low[None, :, None].expand(1, *x.shape))[0].to(values.dtype)


def fitted(values: Tensor, start: Tensor | None = None, floor: float = _LEAST) -> Tensor:
    """Shares, means and variances of two Gaussians fitted to values [n] until little changes: float64 [3, 2].

    They start from `start`, or from the 2-means split; the first is the one with the lower mean. `floor` is added to
    every variance. A single value has both where it is.
    """
    if len(values) == 1:
        value = values.double().expand(2)
        return torch.stack([torch.full_like(value, 0.5), value, torch.full_like(value, floor)])
    x, inside = values.double()[None], torch.ones(1, len(values), dtype=torch.bool, device=values.device)
    if start is None:
        upper = _upper_half(x, inside).double()
        params = _maximise(x, torch.stack([1 - upper, upper]), inside, floor)
    else:
        params = start.double()[..., None]
    bound = -math.inf
    for _ in range(_LONG):
        joint = _log_joint(x, params)
        total = joint.logsumexp(0)
        params = _maximise(x, (joint - total).exp(), inside, floor)
        before, bound = bound, float(total.mean())
        if abs(bound - before) < _FINE:
            break
    found = params[..., 0]
    return found[:, found[1].argsort(stable=True)]


def lower_posterior(values: Tensor, params: Tensor) -> Tensor:
    """The chance [n] that each value belongs to the first of two Gaussians with `params` [3, 2]."""
    joint = _log_joint(values.double()[None], params.double()[..., None])[:, 0]
    return (joint[0] - joint.logsumexp(0)).exp()


def upper_values(values: Tensor) -> Tensor:
    """Which values [n] belong to the upper of two Gaussians: bool [n]; none where all are equal or there is one."""
    if len(values) < 2 or bool((values == values[0]).all()):
        return torch.zeros_like(values, dtype=torch.bool)
    return lower_posterior(values, fitted(values)) < 0.5


def normalise(losses: Tensor, count: Tensor | None = None) -> Tensor:
    """Each row of [R, n] scaled to 0..1, a row of equal values to zero; only the first `count` take part, as above."""
    inside = _inside(losses, count)
    low = torch.where(inside, losses, math.inf).amin(1, keepdim=True)
    high = torch.where(inside, losses, -math.inf).amax(1, keepdim=True)
    return torch.where(inside, (losses - low) / (high - low).clamp_min(1e-12), 0.0)


def _inside(values: Tensor, count: Tensor | None) -> Tensor:
    """Which columns of values [R, n] take part: [n], or [R, n] if each row has its own count."""
    columns = torch.arange(values.shape[1], device=values.device)
    return columns < (values.shape[1] if count is None else count)


def _upper_half(x: Tensor, inside: Tensor) -> Tensor:
    """Which values [R, n] are in the upper cluster of the best split into two by squared distance."""
    ordered, order = torch.where(inside, x, math.inf).sort(1)
    count, left = inside.sum(-1, keepdim=True), torch.arange(1, x.shape[1], device=x.device)
    sums = torch.where(inside, ordered, 0.0).cumsum(1)
    first, rest = sums[:, :-1], sums[:, -1:] - sums[:, :-1]
    gain = first.square() / left + rest.square() / (count - left)  # the split with the largest leaves least within
    cut = torch.where(inside[..., 1:], gain, -math.inf).argmax(1, keepdim=True) + 1
    return (order.argsort(1) >= cut) & inside  # by rank; a scatter would wait for the host where bits must be the same


def _maximise(x: Tensor, resp: Tensor, inside: Tensor, floor: float = _FLOOR) -> Tensor:
    """Shares, means and variances [3, 2, R] from responsibilities [2, R, n]."""
    resp = torch.where(inside, resp, 0.0)
    size = resp.sum(2) + _TINY
    mean = (resp * x).sum(2) / size
    variance = (resp * (x - mean[..., None]).square()).sum(2) / size + floor
    return torch.stack([size / inside.sum(-1), mean, variance])


def _log_joint(x: Tensor, params: Tensor) -> Tensor:
    """log π_k + log N(x; μ_k, σ²_k): [2, R, n]."""
    share, mean, variance = (p[..., None] for p in params)
    return share.log() - 0.5 * ((x - mean).square() / variance + (2 * math.pi * variance).log())
