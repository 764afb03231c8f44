"""From class probabilities to wrong labels: the probability that each given label is wrong, and each client's noise.

The model's probabilities are calibrated to its accuracy (`belief`), the client's labels are modelled as the output of a
noisy channel (`channel`), and Bayes' rule gives the probabilities. One thing remains: the model was trained on these
labels and repeats some of the wrong ones, so more are missed the noisier a client is. If errors go to all classes
equally, labels that the model would hardly confuse show how many wrong ones there are, and the model's agreement with
the given labels is discounted until the probabilities match; not where each was judged by a model that had not seen it.
Nothing here needs true labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fednoil.estimation.belief import believed, confusions, mistaken
from fednoil.estimation.channel import Channel, counts, even, fit, posterior

_ROUNDS = 60
_FLAG = 0.5
_LEARNT = 0.5  # weight of the model's probability for the given label, which it was trained on
_DISCOUNT = 1e-3  # lowest factor on the given label's probability
_DRAWS, _DRAWN_FROM, _DRAW_ROUNDS = 40, 2000, 15  # for the interval


@dataclass(frozen=True)
class Estimate:
    """The estimate for one client's labels.

    For each sample the probability that its label is wrong, whether it is `flagged`, and the `suggested` class: for a
    flagged label the most probable other class, otherwise the most probable. `matrix` [C, C] counts samples by given
    and estimated true class. `ratio` is the estimated share of wrong labels, and `interval` a range for it, not a
    confidence interval with a known level: see `_half_width`.
    """

    p_wrong: np.ndarray
    flagged: np.ndarray
    suggested: np.ndarray
    matrix: np.ndarray
    ratio: float
    interval: tuple[float, float]


def estimate(
    probabilities: np.ndarray,
    given: np.ndarray,
    rng: np.random.Generator,
    accuracy: float | None = None,
    per_class: Sequence[float | None] = (),
    seen: bool = True,
) -> Estimate:
    """What class probabilities [n, C] say about one client's given labels [n]; `rng` is only for the interval.

    `accuracy` is the model's on such images in percent, and `per_class` that on each class; if they are known, the
    model's probabilities are calibrated to them. `seen`: the model was trained on these labels.
    """
    said, q, channel, chances, spread = _chances(probabilities, given, accuracy, per_class, seen)
    if spread is None:
        spread = _spread(q, given, channel, rng)
    own = np.arange(len(given))
    wrong = np.clip(1 - chances[own, given], 0, 1)
    half, ratio = _half_width(said, wrong, spread, accuracy), float(wrong.mean())
    flagged = wrong > _FLAG
    others = chances.copy()
    others[own[flagged], given[flagged]] = -1
    interval = (max(0.0, ratio - half), min(1.0, ratio + half))
    return Estimate(wrong, flagged, others.argmax(1), counts(chances, given).T, ratio, interval)


def ratio_of(
    probabilities: np.ndarray, given: np.ndarray, accuracy: float | None = None, per_class: Sequence[float | None] = ()
) -> float:
    """The estimated share of wrong labels alone, without the interval, which takes most of the time."""
    *_, chances, _ = _chances(probabilities, given, accuracy, per_class)
    return float(np.clip(1 - chances[np.arange(len(given)), given], 0, 1).mean())


def _chances(
    probabilities: np.ndarray,
    given: np.ndarray,
    accuracy: float | None,
    per_class: Sequence[float | None],
    seen: bool = True,
) -> tuple[np.ndarray, np.ndarray, Channel, np.ndarray, float | None]:
    """The model's calibrated probabilities, sharpened and blurred, the client's channel, P(true class | image, given
    label) [n, C], and the variance of the ratio if it isn't the channel's."""
    said, q = believed(probabilities, accuracy, per_class)
    channel = fit(q, given, np.ones(len(given)), _ROUNDS)
    chances = posterior(q, given, channel)
    repeated = seen and channel.alike
    least, spread = _unmistakable(said, given, mistaken(said, accuracy)) if repeated else (0.0, 0.0)
    if least > 1 - chances[np.arange(len(given)), given].mean():
        return said, q, channel, _discounted(q, given, channel, least), spread
    return said, q, channel, chances, None


def _unmistakable(said: np.ndarray, given: np.ndarray, mistakes: float) -> tuple[float, float]:
    """The noise ratio from labels that the model would hardly confuse with its own prediction, and its variance.

    If errors go to all C − 1 other classes equally, each such pair of classes gets its share. A pair counts if it is
    confused less than if all of the model's mistakes were spread evenly, and neither class is the one that the other is
    confused with most. So neither the model's confusions nor what it has learnt from similar classes' labels matters.
    The variance is that of which wrong labels fall on such pairs. Without any the ratio is 0.
    """
    classes, own = said.shape[1], np.arange(len(given))
    both = confusions(said)
    both = (both + both.T) / 2
    apart = both < mistakes / (classes - 1)
    np.fill_diagonal(apart, False)
    nearest = both.argmax(1)
    apart[np.arange(classes), nearest] = apart[nearest, np.arange(classes)] = False
    seen = said.copy()
    seen[own, given] *= _LEARNT
    pairs = counts(np.eye(classes)[seen.argmax(1)], given)
    reached = max(float(pairs.sum(1) @ apart.sum(1)) / (classes - 1), 1e-9)  # samples, if all labels were wrong
    ratio = min(float(pairs[apart].sum()) / reached, 1.0)
    return ratio, ratio * (1 - reached / len(given)) / reached


def _discounted(q: np.ndarray, given: np.ndarray, channel: Channel, ratio: float) -> np.ndarray:
    """P(true class | image, given label) [n, C], with given labels discounted until `ratio` of them are wrong."""
    own, channel = np.arange(len(given)), replace(channel, matrix=even(ratio, q.shape[1]))
    low, high, chances = np.log(_DISCOUNT), 0.0, q
    for _ in range(30):
        middle, less = (low + high) / 2, q.copy()
        less[own, given] *= np.exp(middle)
        chances = posterior(less, given, channel)
        low, high = (low, middle) if 1 - chances[own, given].mean() < ratio else (middle, high)
    return chances


def _half_width(said: np.ndarray, wrong: np.ndarray, spread: float, accuracy: float | None) -> float:
    """How far the ratio may be off: 1.96 standard deviations of channel and labels, and the model's own mistakes.

    The first alone is far too narrow, because it assumes that the model's probabilities are correct. So the share of
    images on which the model itself expects to be mistaken is added, in squares, or half the share in a test set if
    that is larger: models are overconfident. A model that knows nothing then gives an interval that excludes nothing.
    """
    known = max(mistaken(said, None), mistaken(said, accuracy) / 2)
    return float(np.sqrt(1.96**2 * (wrong @ (1 - wrong) / len(wrong) ** 2 + spread) + known**2))


def _spread(q: np.ndarray, given: np.ndarray, channel: Channel, rng: np.random.Generator) -> float:
    """The variance of the ratio that comes from not knowing the channel, by Rubin's Bayesian bootstrap."""
    total = len(given)
    size = min(total, _DRAWN_FROM)
    rows = np.sort(rng.choice(total, size, replace=False))
    q, given, own = q[rows], given[rows], np.arange(size)
    ratios = []
    for _ in range(_DRAWS):
        weights = rng.exponential(size=size)
        chances = posterior(q, given, fit(q, given, weights / weights.mean(), _DRAW_ROUNDS, channel))
        ratios.append(1 - chances[own, given].mean())
    return float(np.var(ratios)) * size / total
