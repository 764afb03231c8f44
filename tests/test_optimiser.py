"""The clients' optimiser: rates that fall, Nesterov, clipping; against worked numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.executors.optimiser import RATE, Optimiser
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
    """0.2 falls to 0.05 of it in the last of 3 rounds: 0.2 · 0.525 in the second."""
    optimiser = Optimiser(rounds=3, lr=0.2, lr_rounds="linear", lr_rounds_end=0.05)
    a, looks, b = optimiser.paced(
        [phase(2, "a"), Phase({"x": torch.zeros(1)}, trains=()), phase(4, "b")], Turn(2, 1, Seed(0)), CPU
    )
    assert a.tensors[RATE].tolist() == pytest.approx([0.105] * 2)
    assert b.tensors[RATE].tolist() == pytest.approx([0.105] * 4)
    assert a.tensors[RATE].dtype == torch.float32
    assert RATE not in looks.tensors


def test_a_constant_rate_is_no_part_of_the_plan() -> None:
    phases = [phase(3)]
    assert Optimiser(nesterov=True, clip=1.0).paced(phases, Turn(1, 1, Seed(0)), CPU) == phases


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_steps_are_those_of_pytorch(nesterov: bool, clip: float | None) -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 3)
    wanted = [nn.Parameter(p.detach().clone()) for p in module.parameters()]
    optimiser = torch.optim.SGD(wanted, lr=1, momentum=0.5, weight_decay=0.1, nesterov=nesterov)
    net = Network(module, (0.0,), (1.0,), CPU)
    for rate in (0.3, 0.2, 0.05):
        gradient = torch.randn_like(net.params)
        net.grads.copy_(gradient)
        for parameter, part in zip(wanted, net.named(gradient).values(), strict=True):
            parameter.grad = part.clone()
        if clip is not None:
            net.clip(clip)
            nn.utils.clip_grad_norm_(wanted, clip)
        net.sgd(torch.tensor(rate), 0.5, 0.1, nesterov)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
        assert torch.allclose(net.params, torch.cat([p.detach().flatten() for p in wanted]), atol=1e-6)


def test_a_rate_as_a_tensor_is_the_same_rate() -> None:
    torch.manual_seed(0)
    nets = [Network(nn.Linear(6, 3), (0.0,), (1.0,), CPU) for _ in range(2)]
    nets[1].params.copy_(nets[0].params)
    for net, rate in zip(nets, (0.25, torch.tensor(0.25)), strict=True):
        net.grads.fill_(0.5)
        net.sgd(rate, 0.5, 0.1)
    assert torch.allclose(nets[0].params, nets[1].params, atol=1e-7)


def test_the_rates_reach_the_steps(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of 20 samples, batches of 8, two epochs: six steps a turn; round 2 of 4 has 2/3 of the rate."""
    values["train"] |= {"lr": 0.3, "lr_rounds": "linear", "lr_rounds_end": 1e-9}
    experiment = make_experiment(load_config(values))
    seen: list[float] = []
    sgd = Network.sgd

    def spy(net: Network, lr: Any, *rest: Any) -> None:
        seen.append(float(lr))
        sgd(net, lr, *rest)

    monkeypatch.setattr(Network, "sgd", spy)
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    for expected in (0.3, 0.2):
        seen.clear()
        state, _ = rounds.play(experiment, executor, state)
        assert seen == pytest.approx([expected] * 12)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"lr_rounds": "sine"}, "train.lr_rounds = 'sine': must be 'constant', 'linear', 'cosine', 'exponential'"),
        ({"lr_rounds_end": 0}, "train.lr_rounds_end = 0"),
        ({"clip": 0}, "train.clip = 0"),
        ({"nesterov": True, "momentum": 0}, "train.nesterov = true needs train.momentum above 0"),
    ],
)
def test_bad_values_get_one_clear_line(values: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    values["train"] |= keys
    with pytest.raises(UserError) as error:
        load_config(values)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
