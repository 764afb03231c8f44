"""How far a model's class probabilities are believed, before they are held against labels.

A model hesitates after few rounds and is too sure after many. Where its accuracy is known from a test set it is taken
at that: a hesitant model's probabilities are sharpened, and a sure one's are blurred, not evenly but between classes
that it confuses itself. Which those are is seen without any label, from where it puts its second thoughts.
"""

from __future__ import annotations

import numpy as np

_FLOOR = 1e-6  # the least chance of a class; a larger one would make the most suspicious labels all alike
_MOST = 0.4  # of what is said to be a class may be mistaken; chosen in experiments/audit


def believed(probabilities: np.ndarray, accuracy: float | None) -> tuple[np.ndarray, np.ndarray]:
    """What the model says [n, C], no less sure than it is right, and what to make of it [n, C]: no more sure either.

    `accuracy` is in percent; without it both are the probabilities.
    """
    said = _sharpened(probabilities, accuracy)
    return said, said @ _mistakes(said, accuracy)


def mistaken(probabilities: np.ndarray, accuracy: float | None) -> float:
    """The share of images on which the model is wrong, by its own account or by a test set if that is worse."""
    known = 0.0 if accuracy is None else 1 - accuracy / 100
    return max(1 - float(probabilities.max(1).mean()), known)


def confusions(said: np.ndarray) -> np.ndarray:
    """What share of a class's probability is on images where another one is thought of too: [C, C], the diagonal 0."""
    both = said.T @ said
    np.fill_diagonal(both, 0)
    return both / np.maximum(said.sum(0), 1)[:, None]


def soft(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """The probabilities [n, C] with each class possible, softer with a temperature above 1."""
    q = (np.asarray(probabilities, np.float64) + _FLOOR) ** (1 / temperature)
    return q / q.sum(1, keepdims=True)


def _sharpened(probabilities: np.ndarray, accuracy: float | None) -> np.ndarray:
    """The probabilities [n, C], made sharper where the model expects to be right less often than it is.

    Labels would else be explained by its hesitation.
    """
    target = 0.0 if accuracy is None else min(accuracy / 100, 0.99)
    low, high = 0.02, 1.0  # temperatures
    if probabilities.max(1).mean() >= target:
        return soft(probabilities, 1.0)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if soft(probabilities, middle).max(1).mean() > target else (low, middle)
    return soft(probabilities, high)


def _mistakes(said: np.ndarray, accuracy: float | None) -> np.ndarray:
    """The chance [C, C] that an image is of a class, by the class that the model says.

    A model that is right less often than it expects makes the other mistakes too between classes that it confuses, in
    proportion. A temperature would spread them over all classes, and explain labels that no model mistakes.
    """
    classes, often, size = said.shape[1], confusions(said), said.sum(0)
    each = often.sum(1)
    more = max(mistaken(said, accuracy) - mistaken(said, None), 0.0)
    share = np.minimum(more * each * size.sum() / max(float(each @ size), 1e-9), _MOST)[:, None]
    to = often * np.maximum(size, 1)[:, None] + (1 - np.eye(classes)) / classes  # one sample's worth goes anywhere
    return (1 - share) * np.eye(classes) + share * to / to.sum(1, keepdims=True)
