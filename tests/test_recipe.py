"""The study's recipe for CIFAR-10: D^x drawn class by class, pseudo-labels from some round on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import assert_same
from hypothesis import given
from hypothesis import strategies as st
from made_fednoil import learner, split

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners.base import Task
from fednoil.study.recipe import Recipe, RecipeConfig, by_class
from fednoil.testing import check_learner

NAME = "fednoil.study.recipe:Recipe"


def recipe(**keys: Any) -> Recipe:
    return Recipe(RecipeConfig(**keys), Task(10, (1, 28, 28), 32, 0.05, 150))


def end(values: dict[str, Any], **keys: Any) -> dict[str, torch.Tensor]:
    """The model after two rounds."""
    values["learner"] = {"name": NAME, "frac": 0.5, "xi": 0.2, **keys}
    experiment = make_experiment(load_config(values))
    executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
    for _ in range(2):
        state, _ = rounds.play(experiment, executor, state)
    return state.server.tensors


def test_it_keeps_the_contract() -> None:
    check_learner(NAME, servers=["fedavg"], frac=0.5, xi=0.3, ssl_start=1)


def test_before_pseudo_labels_begin_it_is_as_without_them(values: dict[str, Any]) -> None:
    without = end(values, weight=0.0)
    assert_same(end(values, ssl_start=3), without)
    late = end(values, ssl_start=2)
    assert any(not torch.equal(late[name], without[name]) for name in late)


def test_a_first_round_below_one_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"learner\.ssl_start = 0: must be greater than or equal to 1"):
        end(values, ssl_start=0)


def test_an_order_by_class_by_hand() -> None:
    """Of four 0s and two 1s the 0s are due after 1/8, 3/8, 5/8, 7/8 of all, the 1s after 1/4 and 3/4; with an earlier
    begin of 0.1 the 1s are after 1/20 and 11/20."""
    half = torch.full((3,), 0.5)
    assert by_class(torch.tensor([0, 0, 0, 0, 1, 1]), half).tolist() == [0, 4, 1, 2, 5, 3]
    assert by_class(torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0.5, 0.1, 0.5])).tolist() == [4, 0, 1, 5, 2, 3]
    two = torch.tensor([[1, 0, 1, 0], [2, 2, 2, 0]])
    assert by_class(two, half.expand(2, 3)).tolist() == [[0, 1, 2, 3], [0, 1, 3, 2]]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_any_beginning_of_an_order_by_class_has_classes_by_frequency(labels: list[int], data: st.DataObject) -> None:
    given_labels = torch.tensor(labels)
    begin = torch.tensor(data.draw(st.lists(st.floats(0.01, 0.99), min_size=5, max_size=5)), dtype=torch.float64)
    order = by_class(given_labels, begin)
    assert sorted(order.tolist()) == list(range(len(labels)))
    size = data.draw(st.integers(0, len(labels)))
    found = torch.bincount(given_labels[order[:size]], minlength=5)
    wanted = torch.bincount(given_labels, minlength=5) * size / len(labels)
    assert bool(((found - wanted).abs() < 4).all())
    for one in range(5):  # within a class as they came
        places = [place for place in order.tolist() if labels[place] == one]
        assert places == sorted(places)


def test_a_rare_class_is_drawn_as_often_as_others_over_epochs() -> None:
    """Twenty labels of one class and one of each of nine others, a third of all drawn: each is in every third D^x."""
    labels = torch.tensor([0] * 20 + list(range(1, 10)))[None]
    drawn, _ = split(recipe(), torch.ones(1, 29), labels, 10, range(3000))
    often = torch.bincount(drawn.flatten(), minlength=29) / 3000
    assert float((often - 10 / 29).abs().max()) < 0.04


def test_a_class_that_the_model_never_finds_is_drawn_all_the_same() -> None:
    """Of 100 samples 20 have a class that the model gives no chance. Drawn by confidence they are left out, by class
    they are a fifth of D^x, the likelier of them first."""
    labels = (torch.arange(100) % 5)[None].expand(2, -1)
    weight = torch.where(labels == 0, 1e-9, 0.8).clone()
    weight[:, :50:5] *= 1000  # ten of the twenty
    drawn, _ = split(learner(), weight, labels, 40, range(50))
    assert not bool((labels.flatten()[drawn] == 0).any())
    drawn, rest = split(recipe(), weight, labels, 40, range(50))
    counts = (labels.flatten()[drawn] == 0).sum(1)
    assert 7 <= int(counts.min()) <= int(counts.max()) <= 9
    assert bool((torch.cat([drawn, rest], 1).sort(1).values[:50] == torch.arange(100)).all())
    lost = drawn[labels.flatten()[drawn] == 0] % 100
    assert float((lost < 50).float().mean()) > 0.95
