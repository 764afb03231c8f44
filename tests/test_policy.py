"""What a round makes of clients that are missing, don't answer or send what can't be averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import assert_same

from fednoil import rounds
from fednoil.config import load_config
from fednoil.evaluation import Evaluation
from fednoil.executors.base import Account, Federation, HeldOut, Job, Look, Progress, Result
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.rounds import FederationPolicy, Policy, policy_of
from fednoil.rounds.played import Played, Selection
from fednoil.rounds.quality import selection_quality
from fednoil.sampling import Scoring
from fednoil.servers.base import ServerState
from fednoil.tensors import Tensors

CPU = torch.device("cpu")


class Away(Federation):
    """The clients of a simulation, of which some are missing, silent or send infinite numbers."""

    def __init__(self, experiment: Experiment) -> None:
        self.policy = FederationPolicy(experiment, self)
        self.inner: Any = make_executor(experiment, CPU)
        self.missing: set[int] = set()
        self.silent: set[int] = set()
        self.infinite: set[int] = set()

    def members(self, round_idx: int) -> list[int]:
        return [k for k in range(4) if k not in self.missing]

    def name(self, client: int) -> str:
        return f"site-{client}"

    def size(self, client: int) -> int:
        return 20

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        found = self.inner.scores(jobs, sampling)
        return {k: Look(look.score) for k, look in found.items() if k not in self.silent}

    def review(self, jobs: Sequence[Job]) -> list[Result]:
        return [r for r in self.inner.review(jobs) if r.client not in self.silent]

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        results = [r for r in self.inner.train(jobs) if r.client not in self.silent]
        return [
            replace(r, tensors={n: t * torch.inf for n, t in r.tensors.items()}) if r.client in self.infinite else r
            for r in results
        ]

    def test_logits(self, model: Tensors) -> torch.Tensor:
        return self.inner.test_logits(model)

    def held_out(self, jobs: Sequence[Job]) -> dict[int, HeldOut]:
        raise AssertionError("there is a test set")

    def noise_ratios(self, jobs: Sequence[Job]) -> dict[int, float]:
        return {job.client: job.client / 10 for job in jobs}

    def account(self) -> Account:
        return Account(dict.fromkeys(self.silent, "no reply"), {}, 5, 7)


@pytest.fixture
def everyone(values: dict[str, Any]) -> Experiment:
    """All four clients are drawn in every round."""
    values["sampling"] = {"fraction": 1.0}
    values["federation"] = {"min_replies": 2, "evaluate_every": 2}
    values["train"]["rounds"] = 5
    return make_experiment(load_config(values))


def test_an_executor_without_a_policy_is_a_simulation(everyone: Experiment) -> None:
    federation = Away(everyone)
    assert policy_of(everyone, federation) is federation.policy
    assert type(policy_of(everyone, federation.inner)) is Policy


def test_a_round_goes_on_with_those_who_answer(everyone: Experiment) -> None:
    federation, start = Away(everyone), rounds.start(everyone)
    federation.missing, federation.silent = {0}, {2}
    after, record = rounds.play(everyone, federation, start)
    assert (record.nodes, record.trained) == (["site-1", "site-2", "site-3"], ["site-1", "site-3"])
    assert (record.failed, record.selected) == ({"site-2": "no reply"}, [1, 2, 3])
    assert (record.bytes_down, record.bytes_up) == (5, 7)
    assert record.kept is None
    assert record.train_loss is None
    results = federation.inner.train([rounds.make_job(everyone, start, k, record.local_epochs) for k in (1, 3)])
    assert_same(after.server.tensors, everyone.server.combine(results))


def test_as_many_are_drawn_as_of_all_who_were_asked(values: dict[str, Any]) -> None:
    """Three of four, though one has sent no score: of three it would be two."""
    values["sampling"] = {"name": "score", "fraction": 0.75}
    experiment = make_experiment(load_config(values))
    federation = Away(experiment)
    federation.silent = {2}
    _, record = rounds.play(experiment, federation, rounds.start(experiment))
    assert record.selected == [0, 1, 3]


@pytest.mark.parametrize(("members", "recorded"), [([0, 1, 2, 3], True), ([0, 1, 2, 7], False), ([0, 1], False)])
def test_scores_are_recorded_by_number_if_they_are_those_of_all(
    values: dict[str, Any], members: list[int], recorded: bool
) -> None:
    values["noise"] = {"kind": "unknown"}
    experiment, shares = make_experiment(load_config(values)), [1 / len(members)] * len(members)
    played = Played(1, {}, Selection([], members, shares, shares), [], kept=False)
    assert ("client_scores" in selection_quality(experiment, played)) == recorded


def test_the_ranking_is_of_those_who_could_be_drawn(values: dict[str, Any]) -> None:
    """Of clients 1 to 3 the last is the cleanest."""
    values["noise"] = {"kind": "symmetric", "ratios": [0.1, 0.8, 0.6, 0.2]}
    experiment, shares = make_experiment(load_config(values)), [0.5, 0.3, 0.2]
    played = Played(1, {}, Selection([], [1, 2, 3], shares, shares), [], kept=False)
    found = selection_quality(experiment, played)
    assert (found["best_client_share"], found["worst_client_share"]) == pytest.approx((20, 50))


def test_beside_an_average_the_last_model_is_tested_too(everyone: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    def accuracy_is_the_weight(_: Any, __: Any, server: ServerState, *rest: Any) -> Evaluation:
        return Evaluation(float(server.tensors["w"]), 0.0)

    monkeypatch.setattr("fednoil.rounds.policy.evaluate", accuracy_is_the_weight)
    last, average = {"w": torch.tensor(30.0)}, {"w": torch.tensor(40.0)}
    policy = Policy(everyone, make_executor(everyone, CPU))
    found = policy.evaluate(rounds.RunState(1, ServerState(last), average=average))
    assert found == Evaluation(40.0, 0.0, last=30.0)
    assert policy.evaluate(rounds.RunState(1, ServerState(last))) == Evaluation(30.0, 0.0)


@pytest.mark.parametrize("spoilt", ["silent", "infinite"])
def test_too_few_replies_or_an_infinite_mean_leave_the_model(everyone: Experiment, spoilt: str) -> None:
    federation, state = Away(everyone), rounds.start(everyone)
    setattr(federation, spoilt, {1, 2, 3})
    after, record = rounds.play(everyone, federation, state)
    assert record.kept is True
    assert_same(after.server.tensors, state.server.tensors)
    assert after.round_idx == 1


def test_it_evaluates_in_every_second_round_and_the_last(everyone: Experiment) -> None:
    federation, state, known = Away(everyone), rounds.start(everyone), []
    for _ in range(5):
        state, record = rounds.play(everyone, federation, state)
        known.append(record.test_accuracy is not None)
    assert known == [False, True, False, True, True]
    assert len(state.per_class) == 4


def test_a_federation_audits_after_the_last_round_unless_turned_off(
    everyone: Experiment, values: dict[str, Any]
) -> None:
    federation, state = Away(everyone), rounds.start(everyone)
    federation.missing = {1}
    assert federation.policy.finish(state) == {"noise_ratios": {"site-0": 0.0, "site-2": 0.2, "site-3": 0.3}}
    values["federation"] |= {"audit": False}
    assert Away(make_experiment(load_config(values))).policy.finish(state) == {}
