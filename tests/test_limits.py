"""What one client can do to a round is limited, by hand-worked updates and in whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fednoil import rounds
from fednoil.config import load_config
from fednoil.executors.base import Job, Result
from fednoil.executors.sequential import Sequential
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners.base import Turn
from fednoil.records.store import Store
from fednoil.rounds import Policy
from fednoil.rounds.limits import Limits
from fednoil.runner import Silent, Simulation, carry_out
from fednoil.seeds import Seed

SENT = {"model/w": torch.tensor([1.0, 1.0]), "model/running": torch.tensor([2.0]), "model/batches": torch.tensor(3)}


def job(client: int) -> Job:
    return Job(client, SENT, {}, Turn(1, 1, Seed(0)))


def result(client: int, x: float, y: float = 0.0, running: float = 2.0) -> Result:
    tensors = {
        "model/w": SENT["model/w"] + torch.tensor([x, y]),
        "model/running": torch.tensor([running]),
        "model/batches": torch.tensor(4),
    }
    return Result(client, tensors, {}, {}, {}, 0.0)


def limits() -> Limits:
    return Limits(frozenset({"w"}))


def test_a_long_update_is_shortened_to_three_times_the_median() -> None:
    """Lengths 1, 2, 5 (of 3 and 4) and 60; of four the lower median is 2, so at most 6."""
    given = [result(0, 1), result(1, 0, 2), result(2, 3, 4), result(3, 0, -60, running=22.0)]
    limit = limits()
    found = limit.updates([job(k) for k in range(4)], given)
    assert [r is g for r, g in zip(found, given, strict=True)] == [True, True, True, False]
    assert torch.allclose(found[3].tensors["model/w"], torch.tensor([1.0, -5.0]))
    assert torch.allclose(found[3].tensors["model/running"], torch.tensor([4.0]))  # a tenth of the way
    assert found[3].tensors["model/batches"] == 4
    assert limit.report() == {3: "its update is shortened to 1/10"}
    assert limit.report() == {}


def test_of_two_nobody_can_say_which_is_long() -> None:
    limit, given = limits(), [result(0, 1), result(1, 60)]
    assert limit.updates([job(0), job(1)], given) == given
    assert limit.updates([], []) == []


def test_buffers_do_not_count_and_no_change_is_no_limit() -> None:
    limit = limits()
    given = [result(0, 0), result(1, 0, running=9.0), result(2, 7)]
    assert limit.updates([job(k) for k in range(3)], given) == given
    assert limit.report() == {}


def test_an_update_that_came_before_is_left_out() -> None:
    limit = limits()
    limit.updates([job(0), job(1)], [result(0, 1), result(1, 2)])
    found = limit.updates([job(0), job(1), job(2)], [result(0, 2), result(1, 1.5), result(2, 1.5)])
    assert [r.client for r in found] == [1]
    words = "its update was sent before, and is left out"
    assert limit.report() == {0: words, 2: words}


def test_what_was_sent_may_come_back_from_several() -> None:
    """As from clients whose turn had no step."""
    limit = limits()
    same = [Result(k, dict(SENT), {}, {}, {}, 0.0) for k in range(3)]
    assert limit.updates([job(k) for k in range(3)], same) == same
    assert limit.report() == {}


def test_a_score_counts_as_twice_the_median_at_most() -> None:
    limit = limits()
    assert limit.scores({0: 0.2, 1: 0.3, 2: 0.4, 3: 1.0}) == {0: 0.2, 1: 0.3, 2: 0.4, 3: pytest.approx(0.7)}
    assert limit.report() == {3: "its score counts as 2 times the median"}
    assert limit.scores({0: 0.1, 1: 1.0}) == {0: 0.1, 1: 1.0}


@pytest.mark.parametrize(("sampling", "largest"), [("score", 20.0), ("score_mean", 1.0)])
def test_scores_are_compared_by_sample(sampling: str, largest: float, values: dict[str, Any]) -> None:
    values["sampling"] = {"name": sampling}
    values["server"]["limits"] = True
    experiment: Any = make_experiment(load_config(values))
    policy = Policy(experiment, make_executor(experiment, torch.device("cpu")))
    given = {k: share * largest for k, share in enumerate((0.2, 0.3, 0.4, 1.0))}
    assert policy.bounded(given, experiment.sampling) == [*list(given.values())[:3], pytest.approx(0.7 * largest)]


def test_a_simulation_has_limits_only_if_asked(values: dict[str, Any]) -> None:
    def record(limits: bool | None) -> Any:
        values["server"] = {"name": "fedavg"} | ({} if limits is None else {"limits": limits})
        experiment = make_experiment(load_config(values))
        executor = make_executor(experiment, torch.device("cpu"))
        return rounds.play(experiment, executor, rounds.start(experiment))[1].limited

    assert record(None) is None
    assert record(False) is None
    assert record(True) == {}


def test_a_simulation_leaves_out_what_was_sent_in_an_earlier_round(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values["server"], values["sampling"] = {"name": "fedavg", "limits": True}, {"fraction": 1.0}
    train, first = Sequential.train, {}

    def replayed(executor: Sequential, jobs: Any, *args: Any) -> list[Result]:
        own = {r.client: r for r in train(executor, jobs, *args)}
        return list((own | {0: first.setdefault(0, own[0])}).values())

    monkeypatch.setattr(Sequential, "train", replayed)
    store = Store()
    carry_out(load_config(values), store, Silent(), Simulation())
    words = "its update was sent before, and is left out"
    assert [record.limited for record in store.records] == [{}, *[{"0": words}] * (len(store.records) - 1)]


@pytest.mark.parametrize("server", ["fedavg", "krum", "median", "rfa"])
def test_a_node_that_lies_is_limited_in_a_federation(server: str, federated: dict[str, Any], tmp_path: Path) -> None:
    """Client 2 reports the largest score, and sends an update 60 times as long in round 1 and once more in round 2."""
    pytest.importorskip("flwr")
    from flwr.app import RecordDict
    from loop_grid import LoopGrid, federate, partitions

    from fednoil.flower.messages import Body, Form, model_arrays, pack, unpack

    federated["sampling"]["fraction"] = 1.0
    federated["train"]["rounds"] = 2
    federated["server"] = {"name": server}
    config = load_config(federated)
    start = make_experiment(config).initial_model()
    form, old = Form(model_arrays(start)), list[Any]()

    def spoil(node: int, order: Any, reply: Any) -> Any:
        kind = order.metadata.message_type
        if node == 898 and kind == "query.score":
            reply.content["numbers"]["score"] = 20.0
        if node == 898 and kind == "train":
            arrays = unpack(form, RecordDict({"model": reply.content["model"]})).arrays
            sent = start if not old else arrays
            arrays = {n: sent[n] + 60 * (t - sent[n]) for n, t in arrays.items()}
            old.append(pack(form, Body(arrays))["model"])
            reply.content["model"] = old[0]
        return reply

    one, two = federate(config, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    assert "its update is shortened to 1/" in one["limited"]["client-2"]
    assert "its update was sent before, and is left out" in two["limited"]["client-2"]
    assert "client-2" in one["trained"]
    assert "client-2" not in two["trained"]
    assert set(one["limited"]) == {"client-2"}
