"""Calibration of a model's class probabilities before they are compared with labels.

A model is underconfident after few rounds and overconfident after many. If its accuracy is known from a test set, its
probabilities are calibrated to it: an underconfident model's are sharpened, an overconfident one's are blurred, not
evenly but between the classes that it confuses. Its second choices show which those are, without any label. A client
with mostly images of a class that the model misses seems to have other classes; given the accuracy on each class, its
true class shares are estimated from the predictions, again without any label.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FLOOR = 1e-6  # least probability of a class; with a larger one the most suspicious labels would be indistinguishable
_MOST = 0.8  # share of a class's images that may be missed; half of it if only the overall accuracy is known
_ROUNDS = 50


def believed(
    probabilities: np.ndarray, accuracy: float | None, per_class: Sequence[float | None] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities [n, C] sharpened to the model's accuracy, and the same blurred to it [n, C].

    `accuracy` is in percent, as is the accuracy on each class's images [C]; None if unknown.
    """
    said = _sharpened(probabilities, accuracy)
    displaced = _displaced(said, accuracy, per_class)
    true = _shares(said.mean(0), displaced)[:, None] * displaced
    return said, said @ (true / true.sum(0)).T  # Bayes' rule: the true class given the predicted one


def mistaken(probabilities: np.ndarray, accuracy: float | None) -> float:
    """The share of images on which the model is wrong, by its own estimate, or by a test set if that is worse."""
    known = 0.0 if accuracy is None else 1 - accuracy / 100
    return max(1 - float(probabilities.max(1).mean()), known)


def confusions(said: np.ndarray) -> np.ndarray:
    """The share of a class's probability on images that also get probability for another class: [C, C], diagonal 0."""
    both = said.T @ said
    np.fill_diagonal(both, 0)
    return both / np.maximum(said.sum(0), 1)[:, None]


def soft(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """The probabilities [n, C] with each class possible, softer with a temperature above 1."""
    q = (np.asarray(probabilities, np.float64) + _FLOOR) ** (1 / temperature)
    return q / q.sum(1, keepdims=True)


def _sharpened(probabilities: np.ndarray, accuracy: float | None) -> np.ndarray:
    """The probabilities [n, C], sharpened if the model is correct more often than it expects.

    Otherwise its lack of confidence would explain the labels.
    """
    target = 0.0 if accuracy is None else min(accuracy / 100, 0.99)
    low, high = 0.02, 1.0  # temperatures
    if probabilities.max(1).mean() >= target:
        return soft(probabilities, 1.0)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if soft(probabilities, middle).max(1).mean() > target else (low, middle)
    return soft(probabilities, high)


def _displaced(said: np.ndarray, accuracy: float | None, per_class: Sequence[float | None]) -> np.ndarray:
    """How the images of each class are distributed over predicted classes [C, C].

    Images that are missed more often than the model expects go to the classes that it confuses with theirs, in
    proportion. A temperature would spread them over all classes, and explain labels that no model would predict.
    """
    classes, size, often = said.shape[1], said.sum(0), confusions(said)
    both = often * np.maximum(size, 1)[:, None]
    right = said**2  # by its own estimate
    found = (right.sum(0) + right.sum() / len(said)) / (size + 1)  # of a class's images
    expected = mistaken(said, accuracy) - mistaken(said, None)
    missed = np.minimum(expected * often.sum(1) * size.sum() / max(float(both.sum()), 1e-9), _MOST / 2)
    for c, known in enumerate(per_class):
        if known is not None:
            missed[c] = min(max(1 - known / 100 / found[c], 0.0), _MOST)
    to = both + (1 - np.eye(classes)) / classes  # one sample's worth goes anywhere
    return (1 - missed[:, None]) * np.eye(classes) + missed[:, None] * to / to.sum(1, keepdims=True)


def _shares(said: np.ndarray, displaced: np.ndarray) -> np.ndarray:
    """The client's shares of true classes [C] that explain its shares of predicted ones [C] (Saerens et al., 2002)."""
    shares = (said + 0.01) / (said + 0.01).sum()
    for _ in range(_ROUNDS):
        shares = shares * (displaced @ (said / (shares @ displaced)))
        shares = np.maximum(shares / shares.sum(), 1e-9)
    return shares
