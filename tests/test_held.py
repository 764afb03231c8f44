"""Which classes a client holds, and what the model says there."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.held import any_class, held_classes, lacking, local_probabilities

CLASSES = 10


def noisy(shares: Tensor, clean: float, count: int) -> tuple[Tensor, Tensor]:
    """True classes in these shares, and labels of which as many as `clean` says are correct and the others any class,
    without chance: [n], [n]."""
    true, given = [], []
    for y, share in enumerate(shares.tolist()):
        for label in range(len(shares)):
            chance = clean if label == y else (1 - clean) / (len(shares) - 1)
            times = round(count * share * chance)
            true += [y] * times
            given += [label] * times
    return torch.tensor(true), torch.tensor(given)


def paired(shares: Tensor, clean: float, count: int) -> tuple[Tensor, Tensor]:
    """The same with one wrong label for each class, the next."""
    true, _ = noisy(shares, 1.0, count)
    place = torch.cat([torch.arange(int((true == y).sum())) for y in range(len(shares))])
    total = torch.bincount(true, minlength=len(shares))[true]
    return true, torch.where(place < clean * total, true, (true + 1) % len(shares))


def sure_of(true: Tensor, chance: float = 0.91) -> Tensor:
    """A model that finds the true class with this probability, and all others equally: [n, C]."""
    rest = (1 - chance) / (CLASSES - 1)
    return torch.full((len(true), CLASSES), rest).scatter(1, true[:, None], chance)


FEW = torch.tensor([0.6, 0.3, 0.1, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)


@pytest.mark.parametrize("clean", [0.3, 0.5, 0.9, 1.0])
def test_classes_are_found_from_labels_alone(clean: float) -> None:
    _, labels = noisy(FEW, clean, 20_000)
    assert held_classes(labels, CLASSES, clean, 1.0).tolist() == pytest.approx(FEW.tolist(), abs=0.01)


def test_what_may_be_chance_is_none() -> None:
    even = torch.arange(600) % CLASSES
    assert held_classes(even, CLASSES, 0.35, 1.0).tolist() == pytest.approx([0.1] * 10)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(CLASSES, (200, 600), generator=generator)
    apart = torch.stack([(held_classes(labels, CLASSES, 0.35, 1.0) - 0.1).abs().mean() for labels in drawn])
    raw = torch.stack([(torch.bincount(labels, minlength=10) / 600 - 0.1).abs().mean() for labels in drawn])
    assert apart.median() < raw.median() / (0.35 - 0.65 / 9) / 2  # less than half of what the labels alone would say


def test_no_class_is_excluded() -> None:
    assert held_classes(torch.zeros(50).long(), CLASSES, 1.0, 1.0).min() >= 1 / (50 + CLASSES)


@pytest.mark.parametrize("clean", [0.3, 0.5, 0.7])
def test_wrong_labels_are_any_class_or_one(clean: float) -> None:
    for shares in (FEW, torch.full((10,), 0.1, dtype=torch.float64)):
        true, labels = noisy(shares, clean, 1000)
        assert any_class(sure_of(true), labels) > 0.9
        true, labels = paired(shares, clean, 1000)
        assert any_class(sure_of(true, 0.99), labels) == 0


def test_own_confusions_of_a_model_are_no_mistakes_of_the_labels() -> None:
    """Where labels are correct, what a model contradicts goes to few classes, and nothing is corrected."""
    true, labels = noisy(FEW, 1.0, 600)
    for chance in (0.2, 0.6, 0.9):
        assert any_class(sure_of(true, chance), labels) < 0.05


def test_two_classes_have_one_wrong_label() -> None:
    labels = torch.tensor([0, 1, 1, 1])
    assert any_class(torch.full((4, 2), 0.5), labels) == 1
    assert local_probabilities(torch.full((4, 2), 0.5), labels, 0.9).isfinite().all()


def test_mistakes_that_go_one_way_are_taken_for_a_class() -> None:
    """Two classes of 300, two of five of the second called the first: with a share of 0.8 it takes two thirds of the
    labels for the first class, and its shares from that. This is why there is `learner.classes`."""
    labels = torch.tensor([0] * 300 + [1] * 180 + [0] * 120)
    assert held_classes(labels, 2, 0.8, 1.0)[0] > 0.8


def test_a_class_that_the_model_does_not_know_is_found() -> None:
    """Images of class 6 look like class 0 to it. A client whose labels are often 6 knows better, one with all classes
    a little, and one with pairs of classes doesn't."""
    seen = F.one_hot(torch.tensor([0, 1, 2, 3, 4, 5, 0, 7, 8, 9]), CLASSES).double() * 0.8 + 0.02
    seen[6] = torch.tensor([0.6, 0, 0, 0, 0, 0, 0.4, 0, 0, 0], dtype=torch.float64) * 0.8 + 0.02
    mostly = torch.tensor([0.1, 0, 0, 0, 0, 0, 0.9, 0, 0, 0], dtype=torch.float64)
    for shares, least in ((mostly, 0.7), (torch.full((10,), 0.1, dtype=torch.float64), 0.4)):
        true, labels = noisy(shares, 0.5, 2000)
        before = seen[true][true == 6][:, 6].mean()
        after = local_probabilities(seen[true], labels, 0.5)[true == 6][:, 6].mean()
        assert after > max(least, float(before) + 0.05)
    true, labels = paired(mostly, 0.5, 2000)
    assert local_probabilities(sure_of(true, 0.99), labels, 0.5).numpy() == pytest.approx(sure_of(true, 0.99).numpy())


def test_a_class_found_less_often_by_chance_gains_nothing() -> None:
    """Of 100 samples a tenth is each class's, give or take 3. One that is found 2 times is lacking: 2 + 1 for 10, whose
    logarithm 1.2 is less by its chance, 0.09 over 1.2."""
    even = torch.full((10,), 0.1, dtype=torch.float64)
    found = torch.tensor([0.02, 0.12, 0.09, 0.11, 0.11, 0.11, 0.11, 0.11, 0.11, 0.11], dtype=torch.float64)
    gains = lacking(found.expand(100, -1), even)
    more = math.log(10 / 3)
    assert gains.tolist() == pytest.approx([more - 0.09 / more, *[0.0] * 9])


@given(st.integers(2, 6), st.integers(1, 40), st.floats(0.01, 0.99), st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_they_are_probabilities_whatever_the_order(classes: int, count: int, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    model = torch.softmax(4 * torch.randn(count, classes, generator=generator), 1)
    local = local_probabilities(model, labels, share)
    assert local.sum(1).numpy() == pytest.approx(1)
    assert (local >= 0).all()
    order, names = torch.randperm(count, generator=generator), torch.randperm(classes, generator=generator)
    back = names.argsort()
    other = local_probabilities(model[order][:, names], back[labels[order]], share)
    assert other.numpy() == pytest.approx(local[order][:, names].numpy(), abs=1e-9)
