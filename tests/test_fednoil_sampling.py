"""FedNoiL's two levels of sampling: confidence, clients drawn by score, labels drawn by confidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_fednoil import learner, make, split

from fednoil import rounds
from fednoil.executors.base import Job
from fednoil.experiment import Experiment, make_executor
from fednoil.learners.base import Client, Turn
from fednoil.learners.looks import confidences, logits_of
from fednoil.sampling.score import ByScore, ByScoreConfig, ScoreMean, ScoreMeanConfig
from fednoil.seeds import Seed
from fednoil.study.ablation import UniformLocal, UniformLocalConfig
from fednoil.testing import check_learner

CPU = torch.device("cpu")
BY_SCORE = ByScore(ByScoreConfig())


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


class Warmer(ByScore):
    temperature = 2.0


def test_scores_have_the_samplings_temperature(fednoil_values: dict[str, Any]) -> None:
    experiment = make(fednoil_values)
    executor = make_executor(experiment, CPU)
    jobs = [Job(k, experiment.initial_model(), {}, Turn(1, 1, Seed(0))) for k in range(2)]
    for sampling in (BY_SCORE, Warmer(ByScoreConfig())):
        found = executor.scores(jobs, sampling)
        for k, look in found.items():
            tau = {ByScore: 0.5, Warmer: 2.0}[type(sampling)]
            expected = confidences(look.logits, executor.clients[k].labels, tau).sum()
            assert look.score == pytest.approx(float(expected))


def test_labels_are_drawn_by_confidence_without_replacement() -> None:
    """conf (.9, .6, .3, .2): q = (.45, .30, .15, .10); two draws in succession have these inclusion chances."""
    weight = torch.tensor([0.9, 0.6, 0.3, 0.2])
    labelled, rest = split(learner(), weight[None], torch.zeros(1, 4).long(), 2, range(100_000))
    assert torch.equal(torch.cat([labelled, rest], 1).sort(1).values[0], torch.arange(4))
    q = [0.45, 0.30, 0.15, 0.10]
    for i in range(4):
        chance = q[i] + sum(q[j] * q[i] / (1 - q[j]) for j in range(4) if j != i)
        assert float((labelled == i).any(1).float().mean()) == pytest.approx(chance, abs=0.006)
    assert float((labelled[:, 0] == 0).float().mean()) == pytest.approx(0.45, abs=0.006)


def test_uniform_local_sampling_ignores_confidence() -> None:
    state = {"confidence": torch.cat([torch.full((50,), 0.999), torch.full((50,), 1e-6)])}
    client = Client(0, torch.empty(0), torch.arange(100), torch.arange(100) % 10)
    method = UniformLocal(UniformLocalConfig(), learner().task)
    labels = client.labels[None]
    weight = method.weights(state)[None]
    labelled, _ = split(method, weight, labels, 35, range(2000))
    assert float((labelled < 50).float().mean()) == pytest.approx(0.5, abs=0.01)
    weight = learner().weights(state)[None]
    labelled, _ = split(learner(), weight, labels, 35, range(200))
    assert float((labelled < 50).float().mean()) == 1.0


def test_the_ablation_keeps_the_contract() -> None:
    check_learner(UniformLocal, servers=["fedavg"], frac=0.5, xi=0.3)


def test_zero_confidences_are_filled_uniformly() -> None:
    weight = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    labelled, _ = split(learner(), weight[None], torch.zeros(1, 5).long(), 3, range(3000))
    assert bool((labelled == 0).any(1).all())
    counts = torch.bincount(labelled.flatten(), minlength=5)[1:]
    assert float(counts.float().std()) < 100
