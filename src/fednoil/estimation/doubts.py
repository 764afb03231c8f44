"""When not to trust an estimate: doubts about the model behind it."""

from __future__ import annotations

import numpy as np

from fednoil.estimation.belief import mistaken

_WEAK = 1 / 3  # share of mistakes above which the ratio itself is in doubt: such models' ratios are off most
_LEAST = 10  # labels
_CHANCE = 2.0  # standard deviations above chance


def doubts(
    probabilities: np.ndarray,
    given: np.ndarray,
    ratio: float,
    accuracy: float | None,
    by_class: bool = False,
    flags: int | None = None,
) -> list[str]:
    """Warnings about a model with class probabilities [n, C] for samples with `given` labels [n], `ratio` of them
    estimated to be wrong; `accuracy` in percent, if it is known from a test set, as the mean over its classes if
    `by_class`; `flags` labels are flagged.

    The model's own expectation counts, or a test set's result if that is worse: networks are overconfident.
    """
    mistakes = mistaken(probabilities, accuracy)
    how = f"the model is mistaken on about {100 * mistakes:.0f} % of test samples"
    how += " (mean over classes)" if by_class else ""
    if accuracy is None or mistakes > 1 - accuracy / 100:
        how = f"the model expects to be mistaken on about {100 * mistakes:.0f} % of these samples"
    found = []
    if by_chance(probabilities.argmax(1), given, probabilities.shape[1]):
        found.append(
            "the model agrees with these labels no more than chance would: it doesn't know such samples, "
            "or nearly all labels are wrong; don't rely on this audit"
        )
    elif mistakes > _WEAK:
        found.append(f"{how}: flags and noise ratios are unreliable; train longer, or audit with a better model")
    elif mistakes > ratio and flags != 0:
        found.append(f"{how}, more than labels seem wrong: many flags may be the model's own mistakes")
    return found


def unreliable(probabilities: np.ndarray, given: np.ndarray, accuracy: float | None) -> bool:
    """Whether too little is known for a noise ratio: there are hardly any labels, or the model agrees with them by
    chance, or is often mistaken."""
    chance = by_chance(probabilities.argmax(1), given, probabilities.shape[1])
    return len(given) < _LEAST or chance or mistaken(probabilities, accuracy) > _WEAK


def by_chance(predicted: np.ndarray, given: np.ndarray, classes: int) -> bool:
    """Whether predictions [n] agree with labels [n] no better than independent ones with the same class shares; never
    where all labels are of one class, which nothing can agree with any better."""
    if len(given) and bool((given == given[0]).all()):
        return False
    shares = [np.bincount(labels, minlength=classes) / len(given) for labels in (predicted, given)]
    chance = float(shares[0] @ shares[1])
    agreed = float((predicted == given).mean())
    return bool(agreed <= chance + _CHANCE * np.sqrt(chance * (1 - chance) / len(given)))
