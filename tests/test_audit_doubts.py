"""When an audit says that it should not be believed."""

from __future__ import annotations

import numpy as np
import pytest

from fednoil.estimation.doubts import by_chance, doubts

LABELS = np.arange(90) % 3


def sure(predicted: np.ndarray, chance: float) -> np.ndarray:
    """Probabilities [n, 3] with so much for the predicted class."""
    return np.where(np.eye(3, dtype=bool)[predicted], chance, (1 - chance) / 2)


def test_agreement_by_chance_worked_out() -> None:
    """Three classes of 30: chance is 1/3 with the standard deviation √(2/9/90) = .0497, so the border is 38 of 90."""
    for agreeing, wanted in ((38, True), (39, False)):
        predicted = np.where(np.arange(90) < agreeing, LABELS, (LABELS + 1) % 3)
        assert by_chance(predicted, LABELS, 3) is wanted


@pytest.mark.parametrize(
    ("said", "accuracy", "ratio", "expected"),
    [
        (0.95, 90.0, 0.3, None),
        (0.95, None, 0.3, None),
        (0.95, 80.0, 0.1, "is mistaken on about 20 % of test samples, more than labels seem wrong"),
        (0.85, 90.0, 0.1, "expects to be mistaken on about 15 % of these samples, more than labels seem wrong"),
        (0.95, 60.0, 0.6, "is mistaken on about 40 % of test samples: flags and noise ratios are unreliable"),
        (0.55, None, 0.6, "expects to be mistaken on about 45 % of these samples: flags"),
    ],
)
def test_a_weak_model_is_reported(said: float, accuracy: float | None, ratio: float, expected: str | None) -> None:
    found = doubts(sure(LABELS, said), LABELS, ratio, accuracy)
    assert [expected in line for line in found] == ([] if expected is None else [True])  # type: ignore[operator]


def test_labels_of_one_class_are_no_chance() -> None:
    """A site with one class, and a model that agrees: nothing could agree with it any better."""
    one = np.zeros(30, int)
    assert doubts(sure(one, 0.95), one, 0.0, 95.0, flags=0) == []


def test_a_mean_over_classes_is_called_one() -> None:
    (found,) = doubts(sure(LABELS, 0.95), LABELS, 0.1, 44.0, by_class=True)
    assert "is mistaken on about 56 % of test samples (mean over classes)" in found
    (found,) = doubts(sure(LABELS, 0.55), LABELS, 0.6, None, by_class=True)
    assert "mean over classes" not in found


def test_flags_are_not_doubted_where_there_are_none() -> None:
    probabilities = sure(LABELS, 0.85)
    assert doubts(probabilities, LABELS, 0.1, 90.0, flags=0) == []
    assert len(doubts(probabilities, LABELS, 0.1, 90.0, flags=1)) == 1


def test_a_model_of_other_images_is_reported_whatever_it_says() -> None:
    found = doubts(sure(np.zeros(90, int), 0.99), LABELS, 0.66, 95.0)
    assert len(found) == 1
    assert "no more than chance" in found[0]
