"""Whom to train in a round: how many, by which chances, and a sampling of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_executor, make_experiment
from fednoil.records.older import in_todays_keys
from fednoil.sampling.base import SamplingConfig, Scoring
from fednoil.sampling.score import ByScore, ByScoreConfig, ScoreMean, ScoreMeanConfig
from fednoil.sampling.uniform import Uniform, UniformConfig
from fednoil.seeds import Seed


@pytest.mark.parametrize(
    ("fraction", "clients", "wanted"),
    [
        (0.3, 20, 6),
        (0.3, 100, 30),
        (0.3, 4, 1),  # 1.2
        (0.3, 5, 2),  # 1.5
        (0.3, 8, 2),  # 2.4
        (0.01, 20, 1),
        (1.0, 7, 7),
        (None, 1, 1),
        (None, 4, 4),
        (None, 10, 10),
        (None, 11, 10),
        (None, 20, 10),
        (None, 34, 10),
        (None, 35, 11),  # 10.5 is rounded up
        (None, 100, 30),
    ],
)
def test_how_many_train(fraction: float | None, clients: int, wanted: int) -> None:
    """All of up to ten; of more three tenths, but not fewer than ten; or the share that was asked for."""
    assert Uniform(UniformConfig(fraction=fraction)).count(clients) == wanted


def test_equal_chances() -> None:
    """Each of 20 clients is among the 6 of a round in three tenths of 2000 rounds, give or take 5 deviations."""
    uniform = Uniform(UniformConfig())
    shares = uniform.shares([1.0] * 20)
    assert shares == [1 / 20] * 20
    drawn = [uniform.draw(shares, 6, Seed(0).child("round", r)) for r in range(2000)]
    assert all(len(set(d)) == 6 for d in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    assert np.all(np.abs(counts - 600) < 5 * np.sqrt(2000 * 0.3 * 0.7))


@pytest.mark.parametrize(("sampling", "unit"), [(ByScore(ByScoreConfig()), 1.0), (ScoreMean(ScoreMeanConfig()), 1 / 8)])
def test_how_far_one_sample_moves_a_score(sampling: Scoring, unit: float) -> None:
    confidences = torch.tensor([0.0, 0.25, 0.5, 0.5, 0.75, 1.0, 1.0, 0.5])
    other = confidences.clone()
    other[0] = 1.0
    before, after = sampling.scores([confidences, other])
    assert after - before == unit == sampling.sensitivity(8)
    assert float(sampling.score(torch.ones(8))) == sampling.largest(8)


class Best(ByScore):
    """The clients with the highest scores."""

    def draw(self, shares: Sequence[float], count: int, seed: Seed) -> Any:
        return np.argsort(-np.array(shares))[:count]


def test_a_sampling_of_the_users_own(values: dict[str, Any]) -> None:
    values["sampling"] = {"name": f"{__name__}:Best", "fraction": 0.5}
    values["privacy"] = {"scores": 1e9}
    experiment = make_experiment(load_config(values))
    _, record = rounds.play(experiment, make_executor(experiment, torch.device("cpu")), rounds.start(experiment))
    assert record.selected == sorted(np.argsort(record.client_scores)[-2:].tolist())


class Odd(SamplingConfig):
    pass


@pytest.mark.parametrize(
    ("section", "keys", "message"),
    [
        ("sampling", {"name": "scores"}, r"sampling.name = 'scores' is unknown.*did you mean 'score'"),
        ("sampling", {"name": f"{__name__}:Odd"}, "is not a class derived from fednoil.sampling.base.Sampling"),
        ("sampling", {"epsilon": 1.0}, "'sampling.epsilon' is now called privacy.scores"),
        ("sampling", {"fraction": 0}, "sampling.fraction = 0: must be greater than 0"),
        ("server", {"sampling": "score"}, "'server.sampling' is now called sampling.name"),
        ("server", {"client_fraction": 0.3}, "'server.client_fraction' is now called sampling.fraction"),
        ("server", {"score_epsilon": 1}, "'server.score_epsilon' is now called privacy.scores"),
    ],
)
def test_bad_keys_get_one_line(section: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config({section: keys})


def test_recorded_runs_are_read_in_todays_keys() -> None:
    """A run that was recorded when sampling was the server's."""
    server = {"name": "fedavg", "sampling": "score", "client_fraction": 0.3, "score_epsilon": 2.0, "average": 0.0}
    now = in_todays_keys({"server": server})
    assert now["server"] == {"name": "fedavg", "average": 0.0}
    assert now["sampling"] == {"name": "score", "fraction": 0.3}
    assert now["privacy"] == {"scores": 2.0}
    assert in_todays_keys({"server": {**server, "sampling": "uniform"}})["sampling"] == {
        "name": "uniform",
        "fraction": 0.3,
    }
    assert in_todays_keys(now) == now
