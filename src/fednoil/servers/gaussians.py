"""Two Gaussians with full covariances, fitted to points in several dimensions, as scikit-learn's GaussianMixture does.

Each fit starts from a 2-means split with random first centres; 1e-6 on the diagonals keeps covariances invertible where
there are fewer points than dimensions.
"""

from __future__ import annotations

import numpy as np

_ITERATIONS = 100
_TOLERANCE = 1e-3
_FLOOR = 1e-6


def two_groups(points: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of two Gaussians each of the points [K, D] belongs to, int64 [K], and their means [2, D]."""
    rng = np.random.default_rng(seed)
    resp = np.eye(2)[_two_means(points, rng)]
    bound = -np.inf
    for _ in range(_ITERATIONS):
        shares, means, covariances = _maximise(points, resp)
        joint = _log_joint(points, shares, means, covariances)
        total = np.logaddexp.reduce(joint, axis=1, keepdims=True)
        resp, before, bound = np.exp(joint - total), bound, float(total.mean())
        if abs(bound - before) < _TOLERANCE:
            break
    shares, means, covariances = _maximise(points, resp)
    return _log_joint(points, shares, means, covariances).argmax(1), means


def _two_means(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A 2-means split: the first centre is drawn evenly, the second by its squared distance from the first."""
    first = points[rng.integers(len(points))]
    far = np.square(points - first).sum(1)
    second = points[rng.choice(len(points), p=far / far.sum())] if far.sum() > 0 else first
    centres = np.stack([first, second])
    group = np.zeros(len(points), np.int64)
    for _ in range(_ITERATIONS):
        new = np.square(points[:, None] - centres).sum(2).argmin(1)
        if (new == group).all():
            break
        group = new
        centres = np.stack([points[group == g].mean(0) if (group == g).any() else centres[g] for g in (0, 1)])
    return group


def _maximise(points: np.ndarray, resp: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares [2], means [2, D] and covariances [2, D, D] from responsibilities [K, 2]."""
    size = resp.sum(0) + 10 * np.finfo(float).eps
    means = resp.T @ points / size[:, None]
    away = points[None] - means[:, None]
    covariances = np.einsum("kg,gki,gkj->gij", resp, away, away) / size[:, None, None]
    return size / len(points), means, covariances + _FLOOR * np.eye(points.shape[1])


def _log_joint(points: np.ndarray, shares: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """log π_g + log N(x; μ_g, Σ_g): [K, 2]."""
    found = []
    for share, mean, covariance in zip(shares, means, covariances, strict=True):
        lower = np.linalg.cholesky(covariance)
        white = np.linalg.solve(lower, (points - mean).T)
        size = 2 * np.log(np.diag(lower)).sum() + points.shape[1] * np.log(2 * np.pi)
        found.append(np.log(share) - 0.5 * (np.square(white).sum(0) + size))
    return np.stack(found, 1)
