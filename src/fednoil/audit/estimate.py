"""From class probabilities to wrong labels: for each sample the chance that its given label is wrong, for each client
its noise.

A client's labels are taken for the output of a channel: the image has a true class c by the model's probabilities q(c),
and the client writes down g with chance T[c, g]. T and the client's share of each class are unknown and fitted by
expectation-maximisation, so that a client that always errs in one direction, or has few of some class, is
understood as such. T leans towards errors that go to all other classes alike, or from each class mostly to one other;
towards which of them and how much is found from the data (empirical Bayes, with Dirichlet priors on the rows). Without
this the model's own confusions would be taken for the client's. Nothing here needs true labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

_ROUNDS = 60
_FLOOR = 1e-4  # the least chance of a class: a model is never quite sure
# A channel in one direction has more room to take the model's own confusions for the client's, so it is given softer
# probabilities; both temperatures were chosen in experiments/audit.
_EVEN, _PAIRED = 1.0, 1.3
_STRENGTHS = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0])  # pseudo-counts of a row of T
_FLAG = 0.5
_DRAWS, _DRAWN_FROM, _DRAW_ROUNDS = 40, 2000, 15  # of the interval


@dataclass(frozen=True)
class Estimate:
    """What is thought of one client's labels.

    For each sample the chance that its label is wrong, whether it is `flagged` as such, and the `suggested` class: of a
    flagged label the most probable other one, else the most probable. `matrix` [C, C] counts samples by given and
    estimated true class. `ratio` is the estimated share of wrong labels, and `interval` where it may lie: no confidence
    interval with a known level, see `_half_width`.
    """

    p_wrong: np.ndarray
    flagged: np.ndarray
    suggested: np.ndarray
    matrix: np.ndarray
    ratio: float
    interval: tuple[float, float]


def estimate(
    probabilities: np.ndarray, given: np.ndarray, rng: np.random.Generator, accuracy: float | None = None
) -> Estimate:
    """What class probabilities [n, C] say of one client's given labels [n]; `rng` is for the interval alone.

    `accuracy` is the model's on such images in percent, if it is known: an early round's model is right more often than
    it says, and is then taken at its accuracy.
    """
    whole, probabilities = np.ones(len(given)), _sharpened(probabilities, accuracy)
    q = _soft(probabilities, _EVEN)
    channel = _fit(q, given, whole, _ROUNDS)
    if _lean(_counts(_posterior(q, given, *channel), given))[2]:
        q = _soft(probabilities, _PAIRED)
        channel = _fit(q, given, whole, _ROUNDS)
    posterior = _posterior(q, given, *channel)
    own = np.arange(len(given))
    wrong = np.clip(1 - posterior[own, given], 0, 1)
    half = _half_width(probabilities, wrong, _spread(q, given, channel, rng), accuracy)
    ratio = float(wrong.mean())
    flagged = wrong > _FLAG
    others = posterior.copy()
    others[own[flagged], given[flagged]] = -1
    interval = (max(0.0, ratio - half), min(1.0, ratio + half))
    return Estimate(wrong, flagged, others.argmax(1), _counts(posterior, given).T, ratio, interval)


def _half_width(probabilities: np.ndarray, wrong: np.ndarray, spread: float, accuracy: float | None) -> float:
    """How far the ratio may be off: 1.96 standard deviations of channel and labels, and the model's own mistakes.

    The first alone held the truth for 65 % of the clients of IID runs (experiments/audit), because it takes the model's
    probabilities for right. So the share of images on which the model itself expects to be mistaken is added, in
    squares, or half the share that a test set has shown: models are surer than they are right. A model that knows
    nothing then gives an interval that says nothing.
    """
    known = 0.0 if accuracy is None else 1 - accuracy / 100
    mistaken = max(1 - float(probabilities.max(1).mean()), known / 2)
    return float(np.sqrt(1.96**2 * (wrong @ (1 - wrong) / len(wrong) ** 2 + spread) + mistaken**2))


def _sharpened(probabilities: np.ndarray, accuracy: float | None) -> np.ndarray:
    """The probabilities [n, C], made sharper where the model expects to be right less often than it is.

    Labels would else be explained by its hesitation. Never softer: it has seen these labels, and agrees with them more
    than with others' (what that did to the ratios is in experiments/audit).
    """
    target = 0.0 if accuracy is None else min(accuracy / 100, 0.99)
    low, high = 0.02, 1.0  # temperatures
    if probabilities.max(1).mean() >= target:
        return probabilities
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if _soft(probabilities, middle).max(1).mean() > target else (low, middle)
    return _soft(probabilities, high)


def _soft(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """The probabilities [n, C] softened: networks are surer than they are right."""
    q = (np.asarray(probabilities, np.float64) + _FLOOR) ** (1 / temperature)
    return q / q.sum(1, keepdims=True)


def _fit(
    q: np.ndarray,
    given: np.ndarray,
    weights: np.ndarray,
    rounds: int,
    start: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The channel T [C, C], true by given, and the classes' shares over the model's [C], by weighted samples."""
    classes = q.shape[1]
    average = np.average(q, axis=0, weights=weights)
    channel = start or (_even(0.5, classes), np.ones(classes))
    for _ in range(rounds):
        counts = _counts(_posterior(q, given, *channel) * weights[:, None], given)
        total = counts.sum()
        centre, strength, _ = _lean(counts)
        matrix = (counts + strength * centre) / (counts.sum(1, keepdims=True) + strength)
        share = (counts.sum(1) + 1) / (total + classes)
        channel = (matrix, share / average)
    return channel


def _posterior(q: np.ndarray, given: np.ndarray, matrix: np.ndarray, lift: np.ndarray) -> np.ndarray:
    """P(true class | image, given label) [n, C]."""
    joint = q * lift * matrix.T[given]
    return joint / joint.sum(1, keepdims=True)


def _counts(weights: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Expected samples by true and given class [C, C], from chances or weights [n, C]."""
    return weights.T @ np.eye(weights.shape[1])[given]


def _even(ratio: float, classes: int) -> np.ndarray:
    """The channel whose errors, in all `ratio`, go to all other classes alike."""
    ratio = min(max(ratio, 1e-3), 1 - 1e-3)
    matrix = np.full((classes, classes), ratio / (classes - 1))
    np.fill_diagonal(matrix, 1 - ratio)
    return matrix


def _lean(counts: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """The channel that T leans towards and how many samples of a row it is worth, by what makes the counts likely.

    Errors go to all other classes alike, or (True) from each class mostly to one other, which has to be worth its
    choice.
    """
    classes = len(counts)
    even = _even(1 - np.trace(counts) / counts.sum(), classes)
    others = counts - np.diag(np.diag(counts))
    wrong, most = others.sum(), others.max(1).sum()
    share = min(max((most - wrong / (classes - 1)) / max(wrong * (1 - 1 / max(classes - 1, 2)), 1e-9), 0.0), 1.0)
    one = np.zeros_like(counts)
    one[np.arange(classes), others.argmax(1)] = 1 - even[0, 0]
    paired = (1 - share) * even + share * (one + np.eye(classes) * even[0, 0])
    (likely, strength), (as_pairs, pair_strength) = _evidence(counts, even), _evidence(counts, paired)
    if as_pairs - classes * np.log(max(classes - 1, 1)) > likely:
        return paired, pair_strength, True
    return even, strength, False


def _evidence(counts: np.ndarray, centre: np.ndarray) -> tuple[float, float]:
    """The log-probability of the rows of counts under Dirichlet priors around `centre`, and the best strength."""
    prior = _STRENGTHS[:, None, None] * np.maximum(centre, 1e-6)
    rows = counts.sum(1)
    likelihood = _gammaln(_STRENGTHS)[:, None] - _gammaln(_STRENGTHS[:, None] + rows)
    likelihood = (likelihood + (_gammaln(prior + counts) - _gammaln(prior)).sum(2)).sum(1)
    best = int(likelihood.argmax())
    return float(likelihood[best]), float(_STRENGTHS[best])


def _spread(
    q: np.ndarray, given: np.ndarray, channel: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> float:
    """The variance of the ratio that comes from not knowing the channel, by Rubin's Bayesian bootstrap."""
    total = len(given)
    size = min(total, _DRAWN_FROM)
    rows = np.sort(rng.choice(total, size, replace=False))
    q, given, own = q[rows], given[rows], np.arange(size)
    ratios = []
    for _ in range(_DRAWS):
        weights = rng.exponential(size=size)
        posterior = _posterior(q, given, *_fit(q, given, weights / weights.mean(), _DRAW_ROUNDS, channel))
        ratios.append(1 - posterior[own, given].mean())
    return float(np.var(ratios)) * size / total


def _gammaln(values: np.ndarray) -> np.ndarray:
    """log Γ, element by element."""
    return torch.lgamma(torch.from_numpy(values)).numpy()
