"""From probabilities to wrong labels: a channel worked out by hand, limits, known noise found again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from fednoil import metrics
from fednoil.audit import ESTIMATORS
from fednoil.estimation.belief import _displaced, _shares, believed, confusions
from fednoil.estimation.channel import Channel, fit, lean, posterior
from fednoil.estimation.wrong import _half_width, _spread, _unmistakable, estimate


def made(kind: str, ratio: float, count: int, classes: int = 6, sure: float = 0.9) -> tuple[np.ndarray, ...]:
    """True labels, given labels by a channel, and the probabilities of a model that is as sure as networks are."""
    rng = np.random.default_rng(5)
    predicted = rng.integers(classes, size=count)
    q = np.full((count, classes), (1 - sure) / (classes - 1))
    q[np.arange(count), predicted] = sure
    true = np.array([rng.choice(classes, p=row) for row in q])
    wrong = np.roll(np.eye(classes), 2, axis=1) if kind == "pair" else (1 - np.eye(classes)) / (classes - 1)
    channel = (1 - ratio) * np.eye(classes) + ratio * wrong
    given = np.array([rng.choice(classes, p=channel[label]) for label in true])
    return true, given, q


def test_a_posterior_worked_out() -> None:
    """q = (.8, .2), given label 1; T = ((.9, .1), (.4, .6)): .8·.1 = .08 against .2·.6 = .12, so .4 and .6."""
    got = posterior(np.array([[0.8, 0.2]]), np.array([1]), Channel(np.array([[0.9, 0.1], [0.4, 0.6]]), np.ones(2)))
    assert got[0] == pytest.approx([0.4, 0.6])


def test_a_posterior_of_a_client_with_few_of_a_class_worked_out() -> None:
    """The same, with half as many of class 0 as the model expects and twice as many of class 1: .04 against .24."""
    channel = Channel(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0.5, 2.0]))
    assert posterior(np.array([[0.8, 0.2]]), np.array([1]), channel)[0] == pytest.approx([1 / 7, 6 / 7])


def test_half_an_interval_worked_out() -> None:
    """Four labels, wrong by half each: √(4 · ¼)/4 · 1.96 = .49; variances of the channel and of mistakes are added."""
    sure, wrong = np.eye(4), np.full(4, 0.5)
    assert _half_width(sure, wrong, 0.0, None) == pytest.approx(0.49)
    assert _half_width(sure, wrong, 0.01, None) == pytest.approx((0.49**2 + 1.96**2 * 0.01) ** 0.5)
    assert _half_width(sure, wrong, 0.0, 40.0) == pytest.approx((0.49**2 + 0.3**2) ** 0.5)


@pytest.mark.parametrize(("kind", "ratio"), [("symmetric", 0.2), ("symmetric", 0.6), ("pair", 0.3), ("pair", 0.45)])
def test_known_noise_is_found_again(kind: str, ratio: float) -> None:
    true, given, q = made(kind, ratio, 1500)
    found = estimate(q, given, np.random.default_rng(0))
    realised = float((true != given).mean())
    assert found.ratio == pytest.approx(realised, abs=0.03)
    assert found.interval[0] < found.ratio < found.interval[1]
    assert found.matrix.sum() == pytest.approx(1500)
    wrong = true != given
    by_confidence = metrics.detection(1 - q[np.arange(1500), given], wrong, wrong)["auroc"]
    assert metrics.detection(found.p_wrong, found.flagged, wrong)["auroc"] > by_confidence - 0.01
    assert (found.suggested[wrong & found.flagged] == true[wrong & found.flagged]).mean() > 0.75


def test_a_channel_in_one_direction_is_recognised() -> None:
    """Where every class goes to one other, T leans that way; where errors are even, it leans to all alike."""
    paired = np.eye(6) * 60 + np.roll(np.eye(6), 2, axis=1) * 40
    centre, _, one_way = lean(paired)
    assert one_way
    assert centre[0, 2] > 5 * centre[0, 1]
    centre, strength, one_way = lean(np.eye(6) * 50 + 10.0)
    assert not one_way
    assert centre[0, 1] == pytest.approx(centre[0, 2])
    assert strength == 3000


def test_a_tenth_of_the_errors_may_go_another_way() -> None:
    """40 % of each class's labels are wrong, in one direction: .9 · .4 + .1 · .4/5 there, and .1 · .4/5 elsewhere."""
    centre, _, _ = lean(np.eye(6) * 60 + np.roll(np.eye(6), 2, axis=1) * 40)
    assert centre[0] == pytest.approx([0.6, 0.008, 0.368, 0.008, 0.008, 0.008])


def test_a_class_that_a_client_lacks_stays_possible() -> None:
    """Eight images, all of class 0: (8 + 1)/(8 + 2) of the client's samples, and 1/10 of class 1, over the model's."""
    q = np.tile([1 - 1e-6, 1e-6], (8, 1))
    channel = fit(q, np.zeros(8, dtype=int), np.ones(8), 1)
    assert channel.lift == pytest.approx([0.9, 0.1 / 1e-6], rel=1e-4)
    assert channel.matrix.sum(1) == pytest.approx([1, 1])


def test_errors_towards_two_classes_each_are_not_alike() -> None:
    """From each class 20 % go to the next and 20 % to the one after it: in no single direction, and not to all."""
    channel = 0.6 * np.eye(6) + 0.2 * np.roll(np.eye(6), 1, axis=1) + 0.2 * np.roll(np.eye(6), 2, axis=1)
    _, strength, one_way = lean(500 * channel)
    assert not one_way
    assert strength == 1
    given = np.array([np.random.default_rng(i).choice(6, p=channel[i % 6]) for i in range(1200)])
    said = np.full((1200, 6), 0.002)
    said[np.arange(1200), np.arange(1200) % 6] = 0.99
    assert not fit(said, given, np.ones(1200), 20).alike


def test_no_class_is_given_up() -> None:
    """At most four of five images of a class count as missed, and two where only the accuracy on all is known."""
    said = np.full((60, 3), 0.2)
    said[np.arange(60), np.arange(60) % 3] = 0.6
    assert np.diag(_displaced(said, None, [0.0, 100.0, None])) == pytest.approx([0.2, 1.0, 1.0])
    assert np.diag(_displaced(said, 0.0, ())) == pytest.approx([0.6] * 3)


def test_the_spread_of_a_part_is_scaled_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variance falls with the samples: drawn from 500 of 2,000 it is four times that of all, and is taken so."""
    _, given, q = made("symmetric", 0.4, 2000)
    channel = fit(q, given, np.ones(2000), 60)
    monkeypatch.setattr("fednoil.estimation.wrong._DRAWS", 200)
    whole = _spread(q, given, channel, np.random.default_rng(0))
    monkeypatch.setattr("fednoil.estimation.wrong._DRAWN_FROM", 500)
    assert _spread(q, given, channel, np.random.default_rng(0)) == pytest.approx(whole, rel=0.5)


def test_a_class_without_wrong_labels_chooses_no_direction() -> None:
    """Two of 20 classes have nine wrong labels each, in one direction: worth two choices, though not 20."""
    found = np.diag(np.full(20, 15.0))
    found[3, 7] = found[5, 1] = 9.0
    centre, _, one_way = lean(found)
    assert one_way
    assert centre[3, 7] > 5 * centre[3, 8]


def test_what_a_model_confuses_worked_out() -> None:
    """Two images, said (.8, .2, 0) and (.6, 0, .4): of class 0's 1.4 there is .16 with class 1 and .24 with class 2."""
    both = np.array([[0.8, 0.2, 0.0], [0.6, 0.0, 0.4]])
    assert confusions(both)[0] == pytest.approx([0, 0.16 / 1.4, 0.24 / 1.4])
    assert confusions(both)[1] == pytest.approx([0.16, 0, 0])  # by one sample, if there is less


def test_a_model_that_is_too_sure_is_blurred_between_what_it_confuses() -> None:
    """Sure of 95 % and right on 85 %: 10 % more go to the class that is confused, hardly any to others."""
    said = np.full((6000, 6), 1e-9)
    said[np.arange(6000), np.arange(6000) % 6] = 0.95
    said[np.arange(6000), np.arange(6000) % 6 ^ 1] = 0.05
    _, q = believed(said, 85.0)
    assert q.max(1).mean() == pytest.approx(0.95 * 0.9 + 0.05 * 0.1, abs=0.002)
    assert q[0, 1] == pytest.approx(0.05 * 0.9 + 0.95 * 0.1, abs=0.005)
    assert q[0, 2:].sum() < 0.02
    for accuracy in (None, 95.0, 99.0):
        assert believed(said, accuracy)[1][0, 2:].sum() < 1e-4


def test_a_clients_shares_of_classes_worked_out() -> None:
    """Half of class 0's images are said to be of class 1: what is said to be 40 and 60 % is really 80 and 20 %."""
    assert _shares(np.array([0.4, 0.6]), np.array([[0.5, 0.5], [0.0, 1.0]])) == pytest.approx([0.8, 0.2], abs=1e-3)


def missing(count: int) -> tuple[np.ndarray, ...]:
    """True labels, mostly of class 0, given ones of which 30 % are wrong, and a model that takes two of three images of
    class 0 for class 1."""
    rng = np.random.default_rng(4)
    true = np.where(rng.random(count) < 0.7, 0, rng.integers(6, size=count))
    given = np.where(rng.random(count) < 0.3, (true + 3) % 6, true)
    said = np.where((true == 0) & (rng.random(count) < 2 / 3), 1, true)
    q = np.full((count, 6), 0.002)
    q[np.arange(count), said] = 0.9
    q[np.arange(count), np.where(said < 2, 1 - said, said)] += 0.092
    return true, given, q / q.sum(1, keepdims=True)


def test_a_class_that_a_model_misses_is_known_by_its_accuracy() -> None:
    """By the accuracy on all classes most right labels of class 0 seem wrong, by that on each class they don't."""
    true, given, q = missing(1500)
    wrong = float((true != given).mean())
    known = [100 / 3, 100.0, 100.0, 100.0, 100.0, None]
    overall, each = (estimate(q, given, np.random.default_rng(0), 89.0, classes) for classes in ((), known))
    assert overall.ratio > wrong + 0.2
    assert each.ratio == pytest.approx(wrong, abs=0.1)
    right, old = (float((found.suggested == true).mean()) for found in (each, overall))
    assert right > 0.9 > old + 0.2


def test_labels_that_no_model_mistakes_worked_out() -> None:
    """Classes 0 and 1 are confused, 2 and 3 too; 12 of 20 labels are from the other two: 12 · 3/2 of 20, or 90 %."""
    said = np.full((20, 4), 1e-6)
    said[np.arange(20), np.arange(20) % 4] = 0.9
    said[np.arange(20), np.arange(20) % 4 ^ 1] = 0.1
    given = np.arange(20) % 4
    given[:12] = given[:12] ^ 2
    said[0] = 0.35, 0.05, 0.6, 0.0  # its label, 2, has been learnt: the model's word for it is worth half
    ratio, variance = _unmistakable(said, given, 0.3)
    assert ratio == pytest.approx(0.9)
    assert variance == pytest.approx(0.9 * (1 - 2 / 3) / (20 * 2 / 3))
    assert _unmistakable(said[:, :2], given % 2, 0.3)[0] == 0  # two classes: there is no pair but the confused one


def learnt(count: int) -> tuple[np.ndarray, ...]:
    """True and given labels, half of them wrong, and a sure model that confuses 0 with 1 and 2 with 3, and has learnt
    six of ten wrong labels where they are between those."""
    rng = np.random.default_rng(3)
    true, sure = rng.integers(4, size=count), 0.97
    given = np.where(rng.random(count) < 0.5, (true + rng.integers(1, 4, size=count)) % 4, true)
    said = np.where(rng.random(count) < 0.15, true ^ 1, true)
    said = np.where((given == true ^ 1) & (rng.random(count) < 0.6), given, said)
    q = np.full((count, 4), 1e-5)
    q[np.arange(count), said], q[np.arange(count), said ^ 1] = sure, 1 - sure
    return true, given, q


def test_what_a_model_has_learnt_of_wrong_labels_is_not_believed() -> None:
    """The channel alone takes learnt labels as correct; labels that the model can't mistake show how many aren't."""
    true, given, q = learnt(3000)
    wrong = true != given
    believed_q = believed(q, 85.0)[1]
    channel = fit(believed_q, given, np.ones(3000), 60)
    assert channel.alike
    alone = 1 - posterior(believed_q, given, channel)[np.arange(3000), given].mean()
    found = estimate(q, given, np.random.default_rng(0), 85.0)
    assert alone < wrong.mean() - 0.03
    assert found.ratio == pytest.approx(wrong.mean(), abs=0.02)
    assert found.ratio == pytest.approx(found.p_wrong.mean())
    assert found.interval[0] < wrong.mean() < found.interval[1]
    unseen = estimate(q, given, np.random.default_rng(0), 85.0, seen=False)
    assert unseen.ratio == pytest.approx(alone)  # what was not learnt is not discounted


@settings(max_examples=20, deadline=None)
@over(st.integers(2, 5), st.integers(1, 40), st.integers(0, 10**6))
def test_whatever_comes_chances_are_chances(classes: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(classes, 0.2), count)
    found = estimate(q, rng.integers(classes, size=count), rng)
    assert np.isfinite(found.p_wrong).all()
    assert ((found.p_wrong >= 0) & (found.p_wrong <= 1 + 1e-9)).all()
    assert 0 <= found.interval[0] <= found.ratio <= found.interval[1] <= 1
    assert found.matrix.sum() == pytest.approx(count)


def test_clean_labels_that_a_model_is_sure_of_are_left_alone() -> None:
    true, _, q = made("symmetric", 0.0, 400, sure=0.999)
    given = q.argmax(1)
    found = estimate(q, given, np.random.default_rng(0))
    assert found.flagged.sum() == 0
    assert found.ratio < 0.02
    assert (found.suggested == given).all()
    assert len(true) == 400


def test_a_model_that_knows_nothing_says_nothing_of_the_ratio() -> None:
    rng = np.random.default_rng(0)
    found = estimate(np.full((60, 4), 0.25), rng.integers(4, size=60), rng)
    assert found.interval[1] - found.interval[0] > 0.7


@pytest.mark.parametrize("sure", [1.0, 0.25])
def test_one_sample_or_one_class_is_enough(sure: float) -> None:
    for count in (1, 30):
        q = np.full((count, 4), (1 - sure) / 3)
        q[:, 1] = sure
        for label in (1, 2):
            found = estimate(q, np.full(count, label), np.random.default_rng(0))
            assert np.isfinite([found.ratio, *found.interval, *found.p_wrong]).all()
            assert ((found.p_wrong > 0.5) == found.flagged).all()
            assert ((found.suggested != label) == found.flagged).all()


def test_cleanlab_has_the_same_form() -> None:
    pytest.importorskip("cleanlab")
    true, given, q = made("symmetric", 0.3, 600)
    found = ESTIMATORS["cleanlab"](q, given, np.random.default_rng(0))
    assert found.matrix.sum() == pytest.approx(600)
    assert found.ratio == pytest.approx(float((true != given).mean()), abs=0.1)
    assert 0 < found.interval[0] < found.ratio < found.interval[1] < 1
    assert found.flagged.dtype == bool
    assert metrics.detection(found.p_wrong, found.flagged, true != given)["auroc"] > 0.9


def test_detection_worked_out() -> None:
    """Chances .9 .8 .7 .1 of labels wrong, right, wrong, right.

    AUROC: of four pairs three are in order. Average precision: (1/1 + 2/3)/2. Flags on the first two: F1 = 2·1/(2 + 2).
    """
    got = metrics.detection(
        np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, True, False, False]), np.array([True, False, True, False])
    )
    assert got == pytest.approx({"auroc": 0.75, "average_precision": 5 / 6, "f1": 0.5})
    ties = metrics.detection(np.full(4, 0.5), np.zeros(4, bool), np.array([True, False, True, False]))
    assert ties == pytest.approx({"auroc": 0.5, "average_precision": 0.5, "f1": 0.0})
    assert metrics.detection(np.zeros(2), np.zeros(2, bool), np.zeros(2, bool)) == {}


def test_a_test_set_that_shows_more_mistakes_widens_the_interval() -> None:
    """A model that is sure of 90 % and right on 40 %: half of the 60 % counts, which is more than its own 10 %."""
    _, given, q = made("symmetric", 0.4, 1500)
    alone, known, good = (estimate(q, given, np.random.default_rng(0), a) for a in (None, 40.0, 90.0))
    assert alone.interval == good.interval
    width = (known.interval[1] - known.interval[0]) / 2
    assert 0.3 < width < 0.32


def test_a_model_that_hesitates_is_taken_at_its_accuracy() -> None:
    """An early model says .9 of nothing and is right on 90 %: without knowing that, no label would seem wrong."""
    true, given, q = made("symmetric", 0.4, 1500)
    hesitant = q**0.25 / (q**0.25).sum(1, keepdims=True)
    wrong = true != given
    alone, known = (estimate(hesitant, given, np.random.default_rng(0), a) for a in (None, 90.0))
    assert hesitant.max() < 0.4
    assert alone.ratio < 0.2
    assert known.ratio == pytest.approx(wrong.mean(), abs=0.04)
    sure, as_sure = (estimate(q, given, np.random.default_rng(0), a) for a in (None, 90.0))
    assert sure.ratio == pytest.approx(as_sure.ratio)
