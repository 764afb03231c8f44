"""What a run's labels and its model would allow: `python experiments/audit/limits.py DIR...` writes limits.csv.

For each collected run, in percent: on how many samples the models were right over the rounds where the given label is
right and where it is wrong, and how many of the wrong labels they say themselves. Then the mean error of the noise
ratio over clients, in points: ours; with the true channel and shares of classes, each client's own; with our chances
set right by isotonic regression on the true labels of all clients together, so that what is left differs from client
to client; and for somebody who knows the rate at which labels were made wrong, and not which: what chance alone
leaves.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from comparison import about, collected, known_accuracies, load
from sklearn.isotonic import IsotonicRegression
from table import LIMITS, add, write_page

from fednoil.audit.belief import believed
from fednoil.audit.channel import Channel, counts, posterior
from fednoil.audit.estimate import estimate


def limits(path: Path) -> dict[str, Any]:
    """One run's row."""
    data = load(path)
    given, true, spans = data["given"], data["true"], data["spans"]
    wrong, said, known = given != true, data["mean"].argmax(1), known_accuracies(data)
    ratios = np.array([wrong[rows].mean() for rows in spans])
    found = [estimate(data["mean"][rows], given[rows], np.random.default_rng(0), *known).p_wrong for rows in spans]
    chances = np.concatenate(found)
    calibrated = IsotonicRegression(out_of_bounds="clip").fit(chances, wrong).predict(chances)
    told = [_told(data["mean"][rows], given[rows], true[rows], known) for rows in spans]

    def off(estimates: list[np.ndarray]) -> float:
        return 100 * float(np.abs(np.array([chance.mean() for chance in estimates]) - ratios).mean())

    spread = np.sqrt(2 / np.pi * ratios * (1 - ratios) / data["sizes"])  # of a binomial, mean absolute deviation
    return {
        **about(data),
        "right_on_right": 100 * float((said == true)[~wrong].mean()),
        "right_on_wrong": 100 * float((said == true)[wrong].mean()),
        "repeated": 100 * float((said == given)[wrong].mean()),
        "ours": off(found),
        "channel_known": off(told),
        "calibrated": off([calibrated[rows] for rows in spans]),
        "rate_known": 100 * float(spread.mean()),
    }


def _told(probabilities: np.ndarray, given: np.ndarray, true: np.ndarray, known: tuple[Any, ...]) -> np.ndarray:
    """The chance that each label is wrong, by what the model says and the client's true channel and shares."""
    q = believed(probabilities, *known)[1]
    real = counts(np.eye(q.shape[1])[true], given) + 1e-3
    channel = Channel(real / real.sum(1, keepdims=True), real.sum(1) / real.sum() / q.mean(0))
    return 1 - posterior(q, given, channel)[np.arange(len(given)), given]


if __name__ == "__main__":
    add(LIMITS, [limits(path) for path in collected(sys.argv[1:])])
    write_page()
