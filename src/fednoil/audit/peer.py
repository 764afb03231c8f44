"""cleanlab's method on the same probabilities, as an alternative; an optional extra.

Northcutt, Jiang and Chuang, "Confident Learning", JAIR 2021: a label is an issue if the model is more confident in
another class than it usually is for that class's own samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fednoil.errors import UserError
from fednoil.estimation.wrong import Estimate

_DRAWS = 40


def peer_estimate(
    probabilities: np.ndarray,
    given: np.ndarray,
    rng: np.random.Generator,
    accuracy: float | None = None,
    per_class: Sequence[float | None] = (),
    seen: bool = True,
) -> Estimate:
    """cleanlab's estimate from class probabilities [n, C] and one client's given labels [n].

    `p_wrong` is 1 minus its label quality score, which ranks labels but is not a probability. The interval comes from a
    bootstrap; the model's accuracy, and whether it has `seen` the labels, are not used.
    """
    cleanlab = _cleanlab()
    q = np.asarray(probabilities, np.float64) + 1e-12  # a class with probability 0 may be the only one left
    q = q / q.sum(1, keepdims=True)
    kept, numbers = np.unique(given, return_inverse=True)  # cleanlab needs a sample of every class
    if len(kept) < 2:
        raise UserError(f"--method cleanlab needs given labels of at least two classes; all are class {kept[0]}")
    part = q[:, kept] / q[:, kept].sum(1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes with few samples, which it skips
        issues = cleanlab.filter.find_label_issues(numbers, part, n_jobs=1)
    score = 1 - cleanlab.rank.get_label_quality_scores(numbers, part)
    matrix = np.zeros((q.shape[1],) * 2)
    matrix[np.ix_(kept, kept)] = _joint(cleanlab, numbers, part)
    ratio = 1 - float(np.trace(matrix)) / len(given)
    draws = (rng.integers(len(given), size=len(given)) for _ in range(_DRAWS))
    ratios = [
        1 - float(np.trace(_joint(cleanlab, numbers[d], part[d]))) / len(given)
        for d in draws
        if _whole(numbers[d], kept)
    ]
    spread = 1.96 * float(np.std(ratios)) if ratios else 0.0
    others = q.copy()
    others[np.flatnonzero(issues), given[issues]] = -1
    interval = (max(0.0, ratio - spread), min(1.0, ratio + spread))
    return Estimate(score, issues, others.argmax(1), matrix, ratio, interval)


def _joint(cleanlab: Any, given: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Samples by given and true class, as estimated."""
    return len(given) * cleanlab.count.estimate_joint(given, probabilities)


def _whole(numbers: np.ndarray, kept: np.ndarray) -> bool:
    return len(np.unique(numbers)) == len(kept)


def _cleanlab() -> Any:
    try:
        import cleanlab.count
        import cleanlab.filter
        import cleanlab.rank
    except ImportError:
        raise UserError(
            "--method cleanlab needs the package cleanlab; install it with: pip install 'fednoil[audit]'"
        ) from None
    return cleanlab
