"""Whether a model has memorised the labels that it is to judge: wrong ones then seem plausible to it."""

from __future__ import annotations

import numpy as np

from fednoil.experiment import Experiment
from fednoil.rounds.state import RunState
from fednoil.tensors import Tensors

_GAP = 15.0  # points
_ALIKE = 3.0


def agreements(experiment: Experiment, state: RunState, bundle: Tensors) -> tuple[float, float] | None:
    """How many of the labels that it was trained on the model agrees with, and of those in the test set, both in
    percent as a mean over classes; None without a test set."""
    tested = state.final_per_class(experiment.config.run.select)
    given, found = bundle["given"].numpy(), bundle["probabilities"].numpy().argmax(1)
    pairs = [
        (100 * float((found[given == c] == c).mean()), known)
        for c, known in enumerate(tested)
        if known is not None and (given == c).any()
    ]
    if not pairs:
        return None
    trained, outside = (float(value) for value in np.mean(pairs, axis=0))
    return trained, outside


def alike(shares: tuple[float, float] | None) -> bool:
    """Whether labels that the model was trained on tell as much of it as labels that it has not seen."""
    return shares is not None and shares[0] - shares[1] < _ALIKE


def memorised(shares: tuple[float, float] | None, kind: str) -> str:
    """A warning if the model agrees with far more of the labels it was trained on than of the others, which are of this
    kind; "" otherwise."""
    if shares is None or shares[0] - shares[1] < _GAP:
        return ""
    return _warning(shares, kind, "it may have memorised wrong labels")


def learnt(shares: tuple[float, float] | None) -> str:
    """A warning if it agrees with more of them than of held-out labels, as wrong as they are, by less than that; ""
    otherwise."""
    if shares is None or not _ALIKE <= shares[0] - shares[1] < _GAP:
        return ""
    return _warning(shares, "held-out", "it may have learnt some wrong labels, which it then finds correct")


def _warning(shares: tuple[float, float], kind: str, what: str) -> str:
    trained, outside = shares
    return (
        f"the model agrees with {trained:.0f} % of the labels it was trained on, and {outside:.0f} % of {kind} ones: "
        f"{what}"
    )
