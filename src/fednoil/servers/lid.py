"""The local dimension of predictions around each of them, which is higher where labels are wrong (Ma et al., ICML
2018). It is the local intrinsic dimension, estimated from the distances to the nearest neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEIGHBOURS = 20


def dimensions(points: Tensor, neighbours: int = _NEIGHBOURS, epsilon: float = 0.0) -> Tensor:
    """−k / Σ_j ln(r_j / r_k) of each of the points [n, C] by its k nearest others: float64 [n]; 0 where some of these
    are the same point. `epsilon` is added to r_k and to the sum."""
    count = min(neighbours, len(points) - 1)
    if count < 1:
        return torch.zeros(len(points), dtype=torch.float64, device=points.device)
    found, every = [], points.double()
    for rows in every.split(1000):
        apart = torch.cdist(rows, every, compute_mode="donot_use_mm_for_euclid_dist")
        near = apart.topk(count + 1, largest=False).values[:, 1:]  # without the point itself
        logs = (near / (near[:, -1:] + epsilon)).log().sum(1) + epsilon
        found.append(torch.where((near[:, 0] > 0) & (logs < 0), -count / logs, 0.0))
    return torch.cat(found)
