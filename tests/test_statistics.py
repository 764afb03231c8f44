"""What clients and server do about models in between: BatchNorm statistics measured anew, and a server's step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import assert_same
from test_stack import stacked
from torch import nn

from fednoil import rounds
from fednoil.config import load_config, merge
from fednoil.errors import UserError
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.models.network import Network
from fednoil.servers.base import ServerState, Update
from fednoil.tensors import Tensors, message_bytes

CPU = torch.device("cpu")


def made(values: dict[str, Any], **server: Any) -> Experiment:
    values["model"] = {"name": "test_rounds:bn_model"}
    values["server"] |= server
    return make_experiment(load_config(values))


def play(experiment: Experiment, count: int = 1) -> tuple[rounds.RunState, dict[str, Any]]:
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    for _ in range(count):
        state, record = rounds.play(experiment, executor, state)
    return state, record


def test_statistics_of_a_layer_by_hand() -> None:
    """Inputs 1, 3 and then 5, 5, 11: means 2 and 7, variances 2 and 12 (unbiased); by samples 5 and 8."""
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1))
    net = Network(module, (0.0,), (1 / 255,), CPU)  # so that a pixel's value is what the layer sees
    net.train()
    batches = [torch.tensor(v, dtype=torch.uint8).view(-1, 1, 1, 1) for v in ([1, 3], [5, 5, 11])]
    with torch.no_grad():
        found = net.statistics(batches)
    assert found["1.running_mean"].item() == pytest.approx(5)
    assert found["1.running_var"].item() == pytest.approx((2 * 2 + 12 * 3) / 5)
    assert module[1].momentum == 0.1
    assert net.others["1.running_mean"].item() == pytest.approx(5)


def test_measured_statistics_are_those_of_the_averaged_model(values: dict[str, Any]) -> None:
    """Weights are the average's; the first BatchNorm sees convolved images, whose mean is worked out here."""
    averaged, _ = play(made(values))
    experiment = made(values, statistics="measure")
    measured, record = play(experiment)
    executor = make_executor(experiment, CPU)
    net = executor.bench.nets["model"]
    net.load(averaged.server.tensors, "model")
    means = []
    for k in record.selected:
        client = executor.clients[k]
        with torch.no_grad():
            seen = net.module[0](net.inputs(client.pool[client.index]))  # the convolution
        means.append(seen.mean((0, 2, 3)))
    expected = torch.stack(means).mean(0)  # all clients have as many samples
    name = "model/1.running_mean"
    assert torch.allclose(measured.server.tensors[name], expected, atol=1e-5)
    assert not torch.allclose(averaged.server.tensors[name], expected, atol=1e-5)
    weights = {n for n in measured.server.tensors if "running" not in n}
    assert_same({n: measured.server.tensors[n] for n in weights}, {n: averaged.server.tensors[n] for n in weights})


def test_measuring_costs_a_message_each_way(values: dict[str, Any]) -> None:
    state, plain = play(made(values))
    _, record = play(made(values, statistics="measure"))
    model, statistics = state.server.tensors, {n: t for n, t in state.server.tensors.items() if "running" in n}
    assert record.bytes_down - plain.bytes_down == 2 * message_bytes(model, {})
    assert record.bytes_up - plain.bytes_up == 2 * message_bytes(statistics, {})


def test_both_executors_measure_alike(values: dict[str, Any]) -> None:
    experiment = made(values, statistics="measure")
    state = rounds.start(experiment)
    jobs = [rounds.make_job(experiment, state, k, 1) for k in range(4)]
    wanted, got = (executor.statistics(jobs) for executor in (make_executor(experiment, CPU), stacked(experiment, 2)))
    assert wanted.keys() == got.keys() == {0, 1, 2, 3}
    for client, tensors in wanted.items():
        assert_same(got[client], tensors)


def test_a_model_without_batch_norm_has_nothing_to_measure(values: dict[str, Any]) -> None:
    plain = play(make_experiment(load_config(values)))[0]
    asked = play(make_experiment(load_config(merge(values, {"server": {"statistics": "measure"}}))))[0]
    assert_same(plain.server.tensors, asked.server.tensors)


@pytest.mark.parametrize(("step", "expected"), [(1.0, 3.0), (0.5, 2.0), (0.25, 1.5)])
def test_the_servers_step(experiment: Experiment, step: float, expected: float) -> None:
    """From 1 to the clients' mean of 3; a counter is not averaged."""
    config = experiment.server.config.model_copy(update={"step": step})
    server = type(experiment.server)(config, experiment.task)

    def message(value: float, count: int) -> Tensors:
        return {"model/w": torch.tensor([value]), "model/n": torch.tensor(count)}

    updates = [Update(k, message(v, 5 + k), {"samples": 10.0}) for k, v in enumerate((2.0, 4.0))]
    after = server.aggregate(ServerState(message(1.0, 2)), 1, updates).tensors
    assert after["model/w"].item() == expected
    assert after["model/n"].item() == 6


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"step": 0}, "server.step = 0"),
        ({"step": 1.5}, "server.step = 1.5"),
        ({"statistics": "guess"}, "server.statistics = 'guess': must be 'average' or 'measure'"),
        ({"name": "cfl", "statistics": "measure"}, "server.statistics = 'measure': the server 'cfl' has a model for"),
        ({"name": "cfl", "step": 0.5}, "server.step = 0.5: the server 'cfl' has a model for each cluster"),
    ],
)
def test_bad_values_get_one_clear_line(values: dict[str, Any], server: dict[str, Any], message: str) -> None:
    values["server"] |= server
    with pytest.raises(UserError) as error:
        load_config(values)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
