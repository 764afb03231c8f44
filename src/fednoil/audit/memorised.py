"""Whether a model has memorised the labels that it is to judge: wrong ones then seem plausible to it."""

from __future__ import annotations

import numpy as np

from fednoil.experiment import Experiment
from fednoil.rounds import RunState
from fednoil.tensors import Tensors

_GAP = 15.0  # points


def memorised(experiment: Experiment, state: RunState, bundle: Tensors) -> str:
    """A warning if the model agrees with far more of the labels it was trained on than of those in the test set, both
    as a mean over classes; "" otherwise, and without a test set."""
    tested = state.final_per_class(experiment.config.run.select)
    given, found = bundle["given"].numpy(), bundle["probabilities"].numpy().argmax(1)
    pairs = [
        (100 * float((found[given == c] == c).mean()), known)
        for c, known in enumerate(tested)
        if known is not None and (given == c).any()
    ]
    if not pairs:
        return ""
    trained, outside = (float(value) for value in np.mean(pairs, axis=0))
    if trained - outside < _GAP:
        return ""
    kind = "held-out" if experiment.setting.dataset.about.held_out else "test"
    return (
        f"the model agrees with {trained:.0f} % of the labels it was trained on, and {outside:.0f} % of {kind} ones: "
        "it may have memorised wrong labels"
    )
