"""The clients' optimiser against torch.optim and worked numbers: SGD, AdamW, groups of parameters, rates that fall."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conftest import assert_same
from torch import nn

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.executors.optimiser import RATE, Optimiser, Shares
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners.base import Phase, Turn
from fednoil.models.network import Network
from fednoil.seeds import Seed

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("form", "shares"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("linear", [1, 0.7525, 0.505, 0.2575, 0.01]),  # 1 − 0.99 · (r − 1)/4
        ("cosine", [1, 0.855018, 0.505, 0.154982, 0.01]),  # 0.01 + 0.99 · (1 + cos(π(r − 1)/4))/2
        ("exponential", [1, 0.316228, 0.1, 0.031623, 0.01]),  # 0.01^((r − 1)/4)
        ("step", [1, 1, 1, 0.1, 0.01]),  # from round 4 (3 ≥ 5/2) and round 5 (4 ≥ 15/4) on
        ("warmup", [0.5, 0.855018, 0.505, 0.154982, 0.01]),  # half in the one round of the rise, then as cosine
    ],
)
def test_the_share_of_a_round(form: Any, shares: list[float]) -> None:
    optimiser = Optimiser(rounds=5, lr_rounds=form)
    assert [optimiser.round_share(r) for r in range(1, 6)] == pytest.approx(shares, abs=1e-6)


def test_steps_come_at_half_and_three_quarters_of_the_rounds() -> None:
    """Of eight rounds the fifth and the seventh: four and six are done."""
    optimiser = Optimiser(rounds=8, lr_rounds="step")
    assert [optimiser.round_share(r) for r in range(1, 9)] == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_a_single_round_has_the_whole_rate() -> None:
    assert Optimiser(rounds=1, lr_rounds="cosine").round_share(1) == 1


def phase(steps: int, *trains: str) -> Phase:
    return Phase({"index": torch.arange(steps)}, trains=trains or ("model",))


def test_every_phase_that_trains_has_the_rate_of_its_round() -> None:
    """0.2 falls to 0.01 of it in the last of 3 rounds: 0.2 · 0.505 in the second."""
    optimiser = Optimiser(rounds=3, lr=0.2, lr_rounds="linear")
    a, looks, b = optimiser.paced(
        [phase(2, "a"), Phase({"x": torch.zeros(1)}, trains=()), phase(4, "b")], Turn(2, 1, Seed(0)), CPU
    )
    assert a.tensors[RATE].tolist() == pytest.approx([0.101] * 2)
    assert b.tensors[RATE].tolist() == pytest.approx([0.101] * 4)
    assert a.tensors[RATE].dtype == torch.float32
    assert RATE not in looks.tensors


def test_a_constant_rate_is_no_part_of_the_plan() -> None:
    phases = [phase(3)]
    assert Optimiser(optimizer="adamw").paced(phases, Turn(1, 1, Seed(0)), CPU) == phases


class Grouped(nn.Module):
    """Two layers, of which the first has a tenth of the rate and no decay."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)
        self.parameter_groups = {"body.": {"lr": 0.1, "weight_decay": 0.0}}


def torch_groups(module: nn.Module, optimiser: Optimiser) -> list[dict[str, Any]]:
    """The module's parameters for torch.optim, each in its own group."""
    groups = []
    for name, parameter in module.named_parameters():
        body = name.startswith("body.") and hasattr(module, "parameter_groups")
        decay = 0.0 if body else optimiser.weight_decay
        groups.append({"params": [parameter], "weight_decay": decay, "share": 0.1 if body else 1.0})
    return groups


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), Grouped])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_are_those_of_pytorch(name: Any, make: Any) -> None:
    """Also for several clients side by side, each with its own rate."""
    torch.manual_seed(0)
    optimiser = Optimiser(optimizer=name, lr=1, momentum=0.5, weight_decay=0.1)
    wanted = make()
    net = Network(copy.deepcopy(wanted), (0.0,), (1.0,), CPU)
    groups = torch_groups(wanted, optimiser)
    theirs = torch.optim.SGD(groups, momentum=0.5) if name == "sgd" else torch.optim.AdamW(groups)
    memory, shares = optimiser.memory(net.params), optimiser.shares(net)
    two = net.params.repeat(2, 1)
    two_memory = {part: tensor.repeat(2, 1) for part, tensor in memory.items()}
    for rate in (0.3, 0.2, 0.05, 0.1):
        gradient = torch.randn_like(net.params)
        named = net.named(gradient)
        for (parameter_name, parameter), group in zip(wanted.named_parameters(), theirs.param_groups, strict=True):
            parameter.grad = named[parameter_name].clone()
            group["lr"] = rate * group["share"]
        theirs.step()
        optimiser.step(net.params, gradient.clone(), memory, shares, torch.tensor(rate))
        rates = torch.tensor([[rate], [0.0]])
        optimiser.step(two, gradient.repeat(2, 1), two_memory, shares, rates)
        for parameter_name, tensor in net.named(net.params).items():
            torch.testing.assert_close(tensor, wanted.get_parameter(parameter_name).detach())
        torch.testing.assert_close(two[0], net.params)
    assert not torch.equal(two[0], two[1])


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_rate_as_a_tensor_is_the_same_rate(name: Any) -> None:
    optimiser, start = Optimiser(optimizer=name, lr=0.25, weight_decay=0.1), torch.randn(20)
    found = []
    for rate in (None, torch.tensor(0.25)):
        params, memory = start.clone(), optimiser.memory(start)
        for _ in range(3):
            optimiser.step(params, torch.full_like(params, 0.5), memory, Shares(), rate)
        found.append(params)
    torch.testing.assert_close(*found)


def test_adamw_has_its_own_rate_and_decay_unless_they_are_set() -> None:
    plain, adamw, own = Optimiser(), Optimiser(optimizer="adamw"), Optimiser(optimizer="adamw", lr=0.5, weight_decay=0)
    assert (plain.lr, plain.weight_decay) == (0.05, 1e-4)
    assert (adamw.lr, adamw.weight_decay) == (1e-3, 1e-2)
    assert (own.lr, own.weight_decay) == (0.5, 0)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"bodi.": {"lr": 0.1}}, "have 'bodi.', but no trained parameter's name starts with it"),
        ({"body.": {"rate": 0.1}}, "['body.'] has rate = 0.1; give shares of 'lr' and 'weight_decay'"),
        ({"body.": {"lr": -1}}, "['body.'] has lr = -1"),
        ({"body.": 0.1}, "must be a dictionary of dictionaries"),
        (["body."], "must be a dictionary of dictionaries"),
    ],
)
def test_groups_that_nothing_can_be_made_of(groups: Any, message: str) -> None:
    module = Grouped()
    module.parameter_groups = groups
    with pytest.raises(UserError) as error:
        Optimiser().shares(Network(module, (0.0,), (1.0,), CPU))
    assert message in str(error.value)


def test_the_rates_reach_the_steps(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of 20 samples, batches of 8, two epochs: six steps a turn; round 2 of 4 has 0.67 of the rate."""
    values["train"] |= {"lr": 0.3, "lr_rounds": "linear"}
    experiment = make_experiment(load_config(values))
    seen: list[float] = []
    step = Optimiser.step

    def spy(optimiser: Optimiser, params: Any, grads: Any, memory: Any, shares: Any, rate: Any = None) -> None:
        seen.append(float(rate))
        step(optimiser, params, grads, memory, shares, rate)

    monkeypatch.setattr(Optimiser, "step", spy)
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    for expected in (0.3, 0.201):
        seen.clear()
        state, _ = rounds.play(experiment, executor, state)
        assert seen == pytest.approx([expected] * 12)


def test_each_turn_begins_with_an_empty_memory(values: dict[str, Any]) -> None:
    """The same job twice leaves the same model: neither moments nor the count of steps last."""
    values["train"] |= {"optimizer": "adamw"}
    experiment = make_experiment(load_config(values))
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    first, again = (executor.train([rounds.make_job(experiment, state, 0, 2)])[0] for _ in range(2))
    assert_same(first.tensors, again.tensors)
    assert float(executor.bench.nets["model"].memory["steps"]) == 6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"lr_rounds": "sine"}, "train.lr_rounds = 'sine': must be 'constant', 'linear', 'cosine', 'exponential'"),
        ({"optimizer": "adam"}, "train.optimizer = 'adam': must be 'sgd' or 'adamw'"),
    ],
)
def test_bad_values_get_one_clear_line(values: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    values["train"] |= keys
    with pytest.raises(UserError) as error:
        load_config(values)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
