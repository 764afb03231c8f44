"""Robust servers against the specification's worked numbers (methods.md §8, §10) and brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same

from fednoil import rounds
from fednoil.config import load_config
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners import LEARNERS
from fednoil.learners.base import Task
from fednoil.servers import SERVERS
from fednoil.servers.base import Server, Update
from fednoil.servers.coordinate import median, trimmed_mean
from fednoil.servers.krum import krum_scores, tolerated
from fednoil.servers.rfa import weiszfeld

SIX = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.4], [10, 10]])
FIVE = torch.tensor([[1.0, 10], [2, 20], [3, 30], [4, 40], [100, -500]])


def server(name: str, **keys: Any) -> Server:
    cls = SERVERS[name]
    return cls(cls.Config(name=name, **keys), Task(2, (1, 1, 1), 1, 0.1, 1, parameters=frozenset({"w"})))


def updates(rows: torch.Tensor, samples: list[float] | None = None) -> list[Update]:
    """Messages of one trainable vector, a BatchNorm statistic that must not count for distances, and a counter."""
    sizes = samples or [1.0] * len(rows)
    return [
        Update(
            k,
            {"model/w": row, "model/mean": 1000.0 * (k + 1) * torch.ones(1), "model/n": torch.tensor(k)},
            {"samples": n},
        )
        for k, (row, n) in enumerate(zip(rows, sizes, strict=True))
    ]


def test_krum_oracle() -> None:
    assert krum_scores(SIX, 1).tolist() == pytest.approx([2.41, 2.41, 2.61, 2.61, 1.43, 524], abs=1e-5)
    winner = server("krum").combine(updates(SIX))
    assert_same(winner, updates(SIX)[4].tensors)


def test_multikrum_oracle() -> None:
    mean = server("multikrum", keep=3).combine(updates(SIX))
    assert mean["model/w"].tolist() == pytest.approx([0.5, 0.133333], abs=1e-6)
    assert mean["model/mean"].item() == pytest.approx(1000 * (1 + 2 + 5) / 3)
    assert mean["model/n"].item() == 4


def test_krum_scores_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    for count in range(3, 12):
        points = rng.normal(size=(count, 7))
        f = tolerated(None, count)
        expected = []
        for i in range(count):
            others = sorted(((points[i] - points[j]) ** 2).sum() for j in range(count) if j != i)
            expected.append(sum(others[: max(1, count - f - 2)]))
        assert krum_scores(torch.tensor(points), f).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("count", "f"), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1), (10, 3), (30, 9)])
def test_krum_tolerates_what_the_number_of_updates_allows(count: int, f: int) -> None:
    assert tolerated(None, count) == f
    assert tolerated(99, 30) == 13
    assert count < 3 or 2 * f + 2 < count
    rows = torch.randn(count, 3)
    assert any(torch.equal(server("krum").combine(updates(rows))["model/w"], row) for row in rows)


def test_median_and_trimmed_mean_oracles() -> None:
    assert median(FIVE).tolist() == [3, 20]
    assert median(FIVE[:4]).tolist() == [2.5, 25]
    assert trimmed_mean(FIVE, 0.2).tolist() == [3, 20]
    assert trimmed_mean(FIVE, 0.0).tolist() == pytest.approx([22, -80])
    assert server("median").combine(updates(FIVE))["model/w"].tolist() == [3, 20]
    assert server("trimmed_mean", trim=0.2).combine(updates(FIVE))["model/n"].item() == 4


@pytest.mark.parametrize(
    ("iterations", "expected"), [(1, 1.324170), (2, 0.743584), (3, 0.570095), (4, 0.522398), (200, 0.5)]
)
def test_weiszfeld_oracle(iterations: int, expected: float) -> None:
    points, equal = torch.tensor([[0.0, 0], [1, 0], [0, 1], [10, 10]]), torch.ones(4)
    z, weights = weiszfeld(points, equal, iterations, 1e-5, 0.0)
    assert z.tolist() == pytest.approx([expected] * 2, abs=2e-4 if iterations > 100 else 1e-6)
    assert float(weights.sum()) == pytest.approx(1)
    if iterations == 4:
        assert float((points - z).norm(dim=1).mean()) == pytest.approx(3.889442, abs=1e-6)


def test_rfa_weighs_buffers_like_parameters_and_counts_samples() -> None:
    combined = server("rfa", iterations=1).combine(updates(torch.tensor([[0.0], [4.0]]), [3.0, 1.0]))
    # z0 = 1; distances 1 and 3; weights .75/1 and .25/3, normalised .9 and .1
    assert combined["model/w"].item() == pytest.approx(0.4)
    assert combined["model/mean"].item() == pytest.approx(1100)


@pytest.mark.parametrize("name", SERVERS)
def test_equal_models_come_out_unchanged(name: str) -> None:
    same = torch.tensor([[1.5, -2.0]]).repeat(6, 1)
    assert server(name).combine(updates(same))["model/w"].tolist() == pytest.approx([1.5, -2.0])


@pytest.mark.parametrize("name", ["krum", "multikrum", "median", "trimmed_mean", "rfa"])
def test_one_wild_update_does_little_harm(name: str) -> None:
    rows = torch.cat([torch.randn(5, 4) * 0.1, torch.full((1, 4), 1e4)])
    assert float(server(name).combine(updates(rows))["model/w"].abs().max()) < 25


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("learner", LEARNERS)
def test_any_server_runs_with_any_learner(values: dict[str, Any], name: str, learner: str) -> None:
    values["server"] = {"name": name, "client_fraction": 0.75, "sampling": "score"}
    values["learner"] = {"name": learner}
    states = []
    for _ in range(2):
        experiment = make_experiment(load_config(values))
        executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
        for _ in range(2):
            state, record = rounds.play(experiment, executor, state)
        states.append(state)
    assert_same(states[0].server.tensors, states[1].server.tensors)
    assert len(record["selected"]) == 3
