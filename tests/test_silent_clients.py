"""Thousands of clients of which most only answer: what they cost a round, and its record."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fednoil import rounds
from fednoil.config import load_config
from fednoil.executors.base import Job
from fednoil.executors.local import Workbench
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.history import RoundRecord
from fednoil.rounds import loop
from fednoil.rounds.state import make_job
from fednoil.sampling import Scoring

CPU = torch.device("cpu")


def crowd(clients: int, sampling: str = "score") -> Experiment:
    """Each client has one or a few samples, and three of them train."""
    return make_experiment(
        load_config(
            {
                "partition": {"clients": clients},
                "noise": {"kind": "symmetric", "ratios": [0.5]},
                "model": {"name": "cnn", "width": 1},
                "sampling": {"name": sampling, "fraction": 3 / clients},
                "learner": {"name": "fednoil"},
                "schedule": {"name": "constant", "epochs": 1},
                "train": {"rounds": 1},
                "run": {"device": "cpu"},
            }
        )
    )


def played(experiment: Experiment) -> RoundRecord:
    return rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))[1]


def test_a_record_does_not_grow_with_clients_that_only_answer() -> None:
    few, some, many = (len(str(played(crowd(clients)).to_json())) for clients in (30, 500, 2000))
    assert many < some + 50  # other numbers, the same keys
    assert many < 2 * few


def test_silent_clients_are_given_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scores a job is made for each of the three that train; with them for everybody."""
    made: list[int] = []

    def noted(experiment: Experiment, state: rounds.RunState, client: int, epochs: int) -> Job:
        made.append(client)
        return make_job(experiment, state, client, epochs)

    monkeypatch.setattr(loop, "make_job", noted)
    record = played(crowd(300, "uniform"))
    assert sorted(made) == sorted(record.selected)
    assert len(made) == 3
    made.clear()
    played(crowd(300))
    assert sorted(made) == list(range(300))


def test_scores_of_many_clients_are_spread_not_listed() -> None:
    record = played(crowd(500))
    assert record.client_scores is None
    assert record.score_quartiles == sorted(record.score_quartiles or [])
    assert len(record.score_quartiles or []) == 5
    assert RoundRecord.from_json(record.to_json()) == record


def test_many_clients_are_scored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many passes as samples need, in any order of jobs, and as each for itself but for rounding."""
    experiment = crowd(600)
    executor: Any = make_executor(experiment, CPU)
    state, sampling = rounds.start(experiment), experiment.sampling
    assert isinstance(sampling, Scoring)
    jobs = [make_job(experiment, state, k, 1) for k in range(600)]
    alone = {k: look for job in jobs for k, look in executor.scores([job], sampling).items()}
    passes = []
    real = Workbench.look

    def counted(bench: Workbench, client: Any) -> torch.Tensor:
        passes.append(len(client))
        return real(bench, client)

    monkeypatch.setattr(Workbench, "look", counted)
    found = executor.scores(jobs, sampling)
    assert passes == [sum(experiment.task.sizes)]
    assert {k: look.score for k, look in found.items()} == pytest.approx(
        {k: look.score for k, look in alone.items()}, rel=1e-5
    )
    assert all(len(look.logits) == size for look, size in zip(found.values(), experiment.task.sizes, strict=True))
    backwards = executor.scores(jobs[::-1], sampling)
    assert {k: look.score for k, look in backwards.items()} == {k: look.score for k, look in found.items()}
