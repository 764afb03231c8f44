"""FedNoiL's two levels of sampling: confidence, clients drawn by score, labels drawn by confidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_fednoil import learner, make, plus

from fednoil import rounds
from fednoil.executors.base import Job
from fednoil.experiment import Experiment, make_executor
from fednoil.learners.base import Client, Turn
from fednoil.learners.labelled_set import by_class, led_by
from fednoil.learners.looks import confidences, logits_of
from fednoil.sampling.score import Score, ScoreConfig, ScoreMean, ScoreMeanConfig
from fednoil.seeds import Seed, Seeds

CPU = torch.device("cpu")
BY_SCORE = Score(ScoreConfig())


@pytest.mark.parametrize(
    ("temperature", "expected"), [(1.0, (0.665241, 0.244728, 0.090031)), (0.5, (0.866813, 0.117310, 0.015876))]
)
def test_confidence_oracle(experiment: Experiment, temperature: float, expected: tuple[float, ...]) -> None:
    class Fixed:
        def eval(self) -> None:
            pass

        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            return torch.tensor([2.0, 1.0, 0.0]).expand(len(images), 3)

    client = make_executor(experiment, CPU).clients[0]
    three = type(client)(0, client.pool, client.index[:3], torch.tensor([0, 1, 2]))
    logits = logits_of(experiment.learner, {"model": Fixed()}, three)  # type: ignore[dict-item]
    got = confidences(logits, three.labels, temperature)
    assert got.tolist() == pytest.approx(expected, abs=1e-6)


def test_scores_are_sums_or_means() -> None:
    confidence = torch.tensor([0.9, 0.6, 0.3, 0.2])
    assert BY_SCORE.scores([confidence])[0] == pytest.approx(2.0)
    assert ScoreMean(ScoreMeanConfig()).scores([confidence])[0] == pytest.approx(0.5)
    assert BY_SCORE.shares([400, 300, 200, 100]) == [0.4, 0.3, 0.2, 0.1]
    assert BY_SCORE.shares([0.0, 0.0]) == [0.5, 0.5]


def test_clients_are_drawn_one_after_another() -> None:
    """s = (400, 300, 200, 100), m = 2: inclusion and pair probabilities of successive sampling."""
    draws = [tuple(sorted(BY_SCORE.draw([0.4, 0.3, 0.2, 0.1], 2, Seed(0).child(i)))) for i in range(20_000)]
    expected = {(0, 1): 0.371429, (0, 2): 0.233333, (0, 3): 0.111111, (1, 2): 0.160714, (1, 3): 0.07619}
    expected[(2, 3)] = 0.047222
    for pair, probability in expected.items():
        assert draws.count(pair) / 20_000 == pytest.approx(probability, abs=4 * (probability / 20_000) ** 0.5)


def test_perfect_scores_lower_the_noise_of_the_selected() -> None:
    """With s_k = number of clean labels, 6 of 20: mean noise .6192 on symmetric-high, .4872 on pair-high."""
    for ratios, expected in (((0.5, 0.6, 0.7, 0.8), 0.6192), ((0.3, 0.5, 0.6, 0.8), 0.4872)):
        noise = np.repeat(ratios, 5)
        p = BY_SCORE.shares(list(1 - noise))
        means = [noise[BY_SCORE.draw(p, 6, Seed(1).child(i))].mean() for i in range(6000)]
        assert np.mean(means) == pytest.approx(expected, abs=0.002)


def test_score_round_asks_everyone_and_counts_it(fednoil_values: dict[str, Any]) -> None:
    experiment = make(fednoil_values)
    state, record = rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))
    size = sum(t.numel() * 4 for t in state.server.tensors.values())
    assert record.bytes_down == 4 * (size + 8) + 2 * 16
    assert record.bytes_up == 2 * (size + 16) + 4 * 8
    assert len(record.client_scores) == 4
    assert all(0 < s < 20 for s in record.client_scores)  # a client has 20 samples


def test_scores_are_made_with_the_received_model(fednoil_values: dict[str, Any]) -> None:
    experiment = make(fednoil_values)
    executor, model = make_executor(experiment, CPU), experiment.initial_model()
    jobs = [Job(k, model, {}, Turn(1, 1, Seed(0))) for k in range(4)]
    first = {k: look.score for k, look in executor.scores(jobs, BY_SCORE).items()}
    executor.train(jobs)  # leaves other weights on the workbench
    assert {k: look.score for k, look in executor.scores(jobs[::-1], BY_SCORE).items()} == first


class Warmer(Score):
    temperature = 2.0


def test_scores_have_the_samplings_temperature(fednoil_values: dict[str, Any]) -> None:
    experiment = make(fednoil_values)
    executor = make_executor(experiment, CPU)
    jobs = [Job(k, experiment.initial_model(), {}, Turn(1, 1, Seed(0))) for k in range(2)]
    for sampling in (BY_SCORE, Warmer(ScoreConfig())):
        found = executor.scores(jobs, sampling)
        for k, look in found.items():
            tau = {Score: 0.5, Warmer: 2.0}[type(sampling)]
            expected = confidences(look.logits, executor.clients[k].labels, tau).sum()
            assert look.score == pytest.approx(float(expected))


def test_labels_are_drawn_by_confidence_without_replacement() -> None:
    """conf (.9, .6, .3, .2): q = (.45, .30, .15, .10); two draws in succession have these inclusion chances."""
    weight = torch.tensor([0.9, 0.6, 0.3, 0.2])
    labelled, rest = learner().split(weight[None], torch.zeros(1, 4).long(), 2, Seeds((Seed(0),)), range(100_000))
    assert torch.equal(torch.cat([labelled, rest], 1).sort(1).values[0], torch.arange(4))
    q = [0.45, 0.30, 0.15, 0.10]
    for i in range(4):
        chance = q[i] + sum(q[j] * q[i] / (1 - q[j]) for j in range(4) if j != i)
        assert float((labelled == i).any(1).float().mean()) == pytest.approx(chance, abs=0.006)
    assert float((labelled[:, 0] == 0).float().mean()) == pytest.approx(0.45, abs=0.006)


def test_uniform_local_sampling_ignores_confidence() -> None:
    state = {"confidence": torch.cat([torch.full((50,), 0.999), torch.full((50,), 1e-6)])}
    client = Client(0, torch.empty(0), torch.arange(100), torch.arange(100) % 10)
    method = learner(local_sampling="uniform")
    labels = client.labels[None]
    weight = method.weights(state)[None]
    labelled, _ = method.split(weight, labels, 35, Seeds((Seed(0),)), range(2000))
    assert float((labelled < 50).float().mean()) == pytest.approx(0.5, abs=0.01)
    weight = learner().weights(state)[None]
    labelled, _ = learner().split(weight, labels, 35, Seeds((Seed(0),)), range(200))
    assert float((labelled < 50).float().mean()) == 1.0


def test_zero_confidences_are_filled_uniformly() -> None:
    weight = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    labelled, _ = learner().split(weight[None], torch.zeros(1, 5).long(), 3, Seeds((Seed(0),)), range(3000))
    assert bool((labelled == 0).any(1).all())
    counts = torch.bincount(labelled.flatten(), minlength=5)[1:]
    assert float(counts.float().std()) < 100


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
    drawn, _ = plus(aside=0.0, draw="class").split(torch.ones(1, 29), labels, 10, Seeds((Seed(0),)), range(3000))
    often = torch.bincount(drawn.flatten(), minlength=29) / 3000
    assert float((often - 10 / 29).abs().max()) < 0.04


@pytest.mark.parametrize(("draw", "share"), [("class", 8), ("floor", 4)])
def test_a_class_that_the_model_never_finds_is_drawn_all_the_same(draw: str, share: int) -> None:
    """Of 100 samples 20 have a class that the model gives no chance. Drawn by confidence they are left out, by class
    they are a fifth of D^x, and with a floor half of that, the likelier of them first."""
    labels = (torch.arange(100) % 5)[None].expand(2, -1)
    weight = torch.where(labels == 0, 1e-9, 0.8).clone()
    weight[:, :50:5] *= 1000  # ten of the twenty
    seeds = Seeds((Seed(0), Seed(1)))
    drawn, _ = learner().split(weight, labels, 40, seeds, range(50))
    assert not bool((labels.flatten()[drawn] == 0).any())
    drawn, rest = plus(aside=0.0, draw=draw).split(weight, labels, 40, seeds, range(50))
    counts = (labels.flatten()[drawn] == 0).sum(1)
    assert share - 1 <= int(counts.min()) <= int(counts.max()) <= share + 1
    assert bool((torch.cat([drawn, rest], 1).sort(1).values[:50] == torch.arange(100)).all())
    lost = drawn[labels.flatten()[drawn] == 0] % 100
    assert float((lost < 50).float().mean()) > 0.95


def test_an_order_that_is_led_by_some_places() -> None:
    assert led_by(torch.tensor([4, 1]), 6).tolist() == [4, 1, 0, 2, 3, 5]
    assert led_by(torch.tensor([[2], [0]]), 3).tolist() == [[2, 0, 1], [0, 1, 2]]
    assert led_by(torch.tensor([2, 0, 1]), 3).tolist() == [2, 0, 1]


def test_a_floor_by_hand() -> None:
    """Of four 0s and two 1s that the model gives no chance four are drawn, half of them by class. The first 1 is due
    at b/2 and is among the first two if that is before the second 0, (1 + a)/4: with a and b in (0, 1) in 3 of 4 D^x.
    The second 1 is due after 1/2, two 0s before that, so no D^x has it."""
    labels, weight = torch.tensor([[0, 0, 0, 0, 1, 1]]), torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]])
    drawn, _ = plus(aside=0.0, draw="floor").split(weight, labels, 4, Seeds((Seed(0),)), range(10_000))
    often = torch.bincount((drawn >= 4).sum(1), minlength=3) / 10_000
    assert often.tolist() == pytest.approx([0.25, 0.75, 0.0], abs=0.02)


def test_a_floor_that_is_met_changes_nothing() -> None:
    """Every class has the same chances, so that each D^x has more than half of its share as it is: 20 of 200 each."""
    labels, seeds = (torch.arange(1000) % 5)[None], Seeds((Seed(0),))
    weight = torch.where(torch.arange(1000) < 500, 0.9, 0.1)[None]
    as_published, _ = learner().split(weight, labels, 200, seeds, range(50))
    drawn, _ = plus(aside=0.0, draw="floor").split(weight, labels, 200, seeds, range(50))
    assert torch.equal(drawn.sort(1).values, as_published.sort(1).values)
    by_frequency, _ = plus(aside=0.0, draw="class").split(weight, labels, 200, seeds, range(50))
    assert not torch.equal(by_frequency.sort(1).values, as_published.sort(1).values)


def test_high_temperature_makes_sampling_uniform(
    fednoil_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Score, "temperature", 1e9)
    experiment = make(fednoil_values)
    _, record = rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))
    assert record.client_scores == pytest.approx([20 / 4] * 4, rel=1e-5)
