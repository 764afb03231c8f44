"""A client's labels as the output of a noisy channel: an image of true class c gets label g with probability T[c, g].

T and the client's share of each class are fitted by expectation-maximisation to class probabilities and given labels,
so a client that always errs in one direction, or has few samples of a class, is recognised. T is regularised towards
errors that go to all other classes equally, or from each class mostly to one other; which of them, and how strongly, is
estimated from the data (empirical Bayes, with Dirichlet priors on the rows). Without this the model's own confusions
would be attributed to the client.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

_STRENGTHS = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0])  # pseudo-counts of a row of T
_MOST = 0.9  # share of errors in a class's one direction; the rest keeps a wrong direction from hiding the right one


@dataclass(frozen=True)
class Channel:
    """T [C, C], true by given class, and the classes' shares relative to the model's [C].

    `alike`: whether errors go to all other classes equally; true if the rows favour that by more than one label per
    class.
    """

    matrix: np.ndarray
    lift: np.ndarray
    alike: bool = False


def fit(q: np.ndarray, given: np.ndarray, weights: np.ndarray, rounds: int, start: Channel | None = None) -> Channel:
    """The channel between class probabilities [n, C] and given labels [n], from weighted samples."""
    classes = q.shape[1]
    average = np.average(q, axis=0, weights=weights)
    channel = start or Channel(even(0.5, classes), np.ones(classes))
    for _ in range(rounds):
        found = counts(posterior(q, given, channel) * weights[:, None], given)
        centre, strength, paired = lean(found)
        matrix = (found + strength * centre) / (found.sum(1, keepdims=True) + strength)
        share = (found.sum(1) + 1) / (found.sum() + classes)
        channel = Channel(matrix, share / average, not paired and strength > classes)
    return channel


def posterior(q: np.ndarray, given: np.ndarray, channel: Channel) -> np.ndarray:
    """P(true class | image, given label) [n, C]."""
    joint = q * channel.lift * channel.matrix.T[given]
    return joint / joint.sum(1, keepdims=True)


def counts(weights: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Expected samples by true and given class [C, C], from probabilities or weights [n, C]."""
    return weights.T @ np.eye(weights.shape[1])[given]


def even(ratio: float, classes: int) -> np.ndarray:
    """The channel with a share `ratio` of errors that go to all other classes equally."""
    ratio = min(max(ratio, 1e-3), 1 - 1e-3)
    matrix = np.full((classes, classes), ratio / (classes - 1))
    np.fill_diagonal(matrix, 1 - ratio)
    return matrix


def lean(found: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """The channel that T is regularised towards, and how many samples per row it counts for: the most likely ones.

    Errors go to all other classes equally, or (True) from each class mostly to one other, if that is likely enough to
    justify choosing it. A class without wrong labels chooses none.
    """
    classes = len(found)
    alike = even(1 - np.trace(found) / found.sum(), classes)
    others = found - np.diag(np.diag(found))
    wrong, most = others.sum(), others.max(1).sum()
    share = min(max((most - wrong / (classes - 1)) / max(wrong * (1 - 1 / max(classes - 1, 2)), 1e-9), 0.0), _MOST)
    one = np.zeros_like(found)
    one[np.arange(classes), others.argmax(1)] = 1 - alike[0, 0]
    paired = (1 - share) * alike + share * (one + np.eye(classes) * alike[0, 0])
    (likely, strength), (as_pairs, pair_strength) = _likelihood(found, alike), _likelihood(found, paired)
    choices = int((others.sum(1) > 1).sum())
    if as_pairs - choices * np.log(max(classes - 1, 1)) > likely:
        return paired, pair_strength, True
    return alike, strength, False


def _likelihood(found: np.ndarray, centre: np.ndarray) -> tuple[float, float]:
    """The log-probability of the rows of counts under Dirichlet priors around `centre`, and the best strength."""
    prior = _STRENGTHS[:, None, None] * np.maximum(centre, 1e-6)
    rows = found.sum(1)
    likelihood = _gammaln(_STRENGTHS)[:, None] - _gammaln(_STRENGTHS[:, None] + rows)
    likelihood = (likelihood + (_gammaln(prior + found) - _gammaln(prior)).sum(2)).sum(1)
    best = int(likelihood.argmax())
    return float(likelihood[best]), float(_STRENGTHS[best])


def _gammaln(values: np.ndarray) -> np.ndarray:
    """log Γ, element by element."""
    return torch.lgamma(torch.from_numpy(values)).numpy()
