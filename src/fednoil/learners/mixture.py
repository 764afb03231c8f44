"""Two Gaussians on a line, fitted to many rows at once without leaving the device.

The same model and stopping rule as scikit-learn's GaussianMixture with two components; the start is the exact 2-means
split of the sorted values instead of a random one, so the fit has no randomness.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fednoil import kernels

_ITERATIONS = 10
_TOLERANCE = 1e-2
_FLOOR = 5e-4  # added to every variance
_TINY = 10 * torch.finfo(torch.float64).eps


def low_component(values: Tensor) -> Tensor:
    """For each row of `values` [R, n]: the chance [R, n] that a value belongs to the component with the lower mean."""
    x = values.double()
    upper = _upper_half(x).double()
    if kernels.usable(x):
        from fednoil.kernels import mixture

        if x.shape[1] <= mixture.VALUES:
            return mixture.low_component(x, upper, _FLOOR, _TINY, _TOLERANCE, _ITERATIONS).to(values.dtype)
    resp = torch.stack([1 - upper, upper])
    params = _maximise(x, resp)
    bound = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
    done = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(_ITERATIONS):
        joint = _log_joint(x, params)
        total = joint.logsumexp(0)
        new_params = _maximise(x, (joint - total).exp())
        params = torch.where(done[None, None], params, new_params)
        new_bound = total.mean(1)
        done = done | ((new_bound - bound).abs() < _TOLERANCE)
        bound = new_bound
    joint = _log_joint(x, params)
    posterior = (joint - joint.logsumexp(0)).exp()
    low = params[1].argmin(0)
    return posterior.gather(0, low[None, :, None].expand(1, *x.shape))[0].to(values.dtype)


def normalise(losses: Tensor) -> Tensor:
    """Each row of [R, n] scaled to 0..1; a row of equal values becomes all zero."""
    low, high = losses.amin(1, keepdim=True), losses.amax(1, keepdim=True)
    return (losses - low) / (high - low).clamp_min(1e-12)


def _upper_half(x: Tensor) -> Tensor:
    """Which values [R, n] are in the upper cluster of the best split into two by squared distance."""
    ordered, order = x.sort(1)
    count = x.shape[1]
    left = torch.arange(1, count, device=x.device)
    sums = ordered.cumsum(1)
    first, rest = sums[:, :-1], sums[:, -1:] - sums[:, :-1]
    gain = first.square() / left + rest.square() / (count - left)  # the split with the largest leaves least within
    cut = gain.argmax(1, keepdim=True) + 1
    above = torch.arange(count, device=x.device)[None] >= cut
    return torch.zeros_like(above).scatter(1, order, above)


def _maximise(x: Tensor, resp: Tensor) -> Tensor:
    """Shares, means and variances [3, 2, R] from responsibilities [2, R, n]."""
    size = resp.sum(2) + _TINY
    mean = (resp * x).sum(2) / size
    variance = (resp * (x - mean[..., None]).square()).sum(2) / size + _FLOOR
    return torch.stack([size / x.shape[1], mean, variance])


def _log_joint(x: Tensor, params: Tensor) -> Tensor:
    """log π_k + log N(x; μ_k, σ²_k): [2, R, n]."""
    share, mean, variance = (p[..., None] for p in params)
    return share.log() - 0.5 * ((x - mean).square() / variance + (2 * math.pi * variance).log())
