"""Noise on the one number that FedNoiL adds: its law, its range, and what it does to a simulated run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_executor, make_experiment
from fednoil.sampling import SAMPLINGS, Scoring
from fednoil.seeds import Seed, open_uniform


def test_worked_by_hand() -> None:
    """The quantile of Laplace noise of scale b at u is −b·sgn(u−½)·ln(1−2|u−½|): b·ln 2 at ¾, −b·ln 2 at ¼. With
    R = 20 rounds and ε = 10, b = 2; a mean over 50 samples moves 50 times less."""
    assert private_score(30.0, 50, "score", 2.0, 0.75) == pytest.approx(30 + 2 * math.log(2))
    assert private_score(30.0, 50, "score", 2.0, 0.25) == pytest.approx(30 - 2 * math.log(2))
    assert private_score(30.0, 50, "score", 2.0, 0.5) == 30.0
    assert private_score(0.6, 50, "score_mean", 2.0, 0.75) == pytest.approx(0.6 + 2 * math.log(2) / 50)


def test_the_law_is_laplaces() -> None:
    """Mean 0, mean absolute value b, and a density ratio of at most e^(1/b) between neighbouring scores."""
    u = open_uniform(torch.tensor(Seed(1).key()), 100_000).tolist()
    noise = torch.tensor([private_score(5e5, 10**6, "score", 3.0, x) - 5e5 for x in u])
    assert float(noise.mean()) == pytest.approx(0, abs=0.05)
    assert float(noise.abs().mean()) == pytest.approx(3, abs=0.05)
    bins = torch.arange(-6.0, 6.5, 0.5)
    here, there = torch.histogram(noise, bins)[0], torch.histogram(noise + 1, bins)[0]
    assert float((here / there).log().abs().max()) < 1 / 3 + 0.12  # 1/b, and what 100,000 draws leave open


@given(st.floats(0, 20), st.floats(1e-6, 1 - 1e-6), st.floats(0.01, 1e6), st.sampled_from(["score", "score_mean"]))
def test_it_stays_a_score(score: float, u: float, scale: float, sampling: str) -> None:
    most = 20 if sampling == "score" else 1
    assert 0 <= private_score(min(score, most), 20, sampling, scale, u) <= most


def private_score(score: float, size: int, sampling: str, scale: float, u: float) -> float:
    kind = SAMPLINGS[sampling]
    made = kind(kind.Config())
    assert isinstance(made, Scoring)
    return made.private(score, size, scale, u)


def played(values: dict[str, Any]) -> list[float]:
    experiment = make_experiment(load_config(values))
    executor = make_executor(experiment, torch.device("cpu"))
    return rounds.play(experiment, executor, rounds.start(experiment))[1].client_scores


def test_a_simulation_adds_the_same_noise_twice(values: dict[str, Any]) -> None:
    values["sampling"]["name"] = "score"
    plain = played(values)
    values["privacy"] = {"scores": 1e9}
    assert played(values) == pytest.approx(plain, abs=1e-3)
    values["privacy"] = {"scores": 1.0}
    assert played(values) == played(values) != plain


def test_all_rounds_share_epsilon(values: dict[str, Any]) -> None:
    """Twice as many rounds with twice the ε have the same noise, of scale R/ε; with the same ε it is twice as large."""
    values["sampling"]["name"] = "score"
    plain, noise = played(values), {}
    for rounds_, epsilon in ((4, 100.0), (8, 200.0), (8, 100.0)):
        values["train"]["rounds"], values["privacy"] = rounds_, {"scores": epsilon}
        noise[rounds_, epsilon] = [a - b for a, b in zip(played(values), plain, strict=True)]
    assert noise[8, 200.0] == pytest.approx(noise[4, 100.0])
    assert noise[8, 100.0] == pytest.approx([2 * n for n in noise[4, 100.0]])


@pytest.mark.parametrize("epsilon", [0, -1, "much"])
def test_epsilon_is_above_zero(values: dict[str, Any], epsilon: object) -> None:
    values["sampling"]["name"] = "score"
    values["privacy"] = {"scores": epsilon}
    with pytest.raises(UserError, match=r"privacy\.scores"):
        load_config(values)
