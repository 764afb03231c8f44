"""How far to trust the confidence of models in labels that they were not trained on, where no test set shows it.

A network trained on few images is far more confident than it is correct. On labels that it has not seen this can be
told from noise: labels that contradict half-hearted answers are the model's own mistakes, labels that contradict sure
ones as often are wrong. So the temperature is the one with which the model's answers and each client's channel together
explain the given labels best (maximum likelihood, as Guo et al., ICML 2017, for correct labels). Few labels can't tell:
for a model that is hardly ever unsure, its own mistakes and wrong labels look alike. So an interval covers all
temperatures that explain the labels hardly worse. Agreement with labels that a model was trained on shows nothing of
the kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fednoil.estimation.belief import soft
from fednoil.estimation.channel import Channel, fit

_STEPS = 2.0 ** (np.arange(-8, 15) / 4)  # 1/4 to 11
_ROUNDS = 40
_WORSE = 2.0  # of the log-likelihood: about a 95 % interval


def temperatures(clients: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    """One temperature for all clients, each with class probabilities [n, C] and given labels [n], and the lowest and
    the highest that the labels don't speak against."""
    likely = np.array([sum(_explained(soft(q, step), given) for q, given in clients) for step in _STEPS])
    near = _STEPS[likely >= likely.max() - _WORSE]
    return float(_STEPS[likely.argmax()]), float(near[0]), float(near[-1])


def _explained(q: np.ndarray, given: np.ndarray) -> float:
    """The log-likelihood of the given labels, under the channel that explains them best."""
    channel = fit(q, given, np.ones(len(given)), _ROUNDS)
    return float(np.log(_chance(q, given, channel)).sum())


def _chance(q: np.ndarray, given: np.ndarray, channel: Channel) -> np.ndarray:
    """The probability of each given label [n]."""
    true = q * channel.lift
    return (true * channel.matrix.T[given]).sum(1) / true.sum(1)
