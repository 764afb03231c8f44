"""Short updates, noise on them and what it costs, in a simulation: each number against one worked out another way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from rich.console import Console
from stopped_runs import Stop
from stopped_runs import results as leaves

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_executor, make_experiment
from fednoil.privacy import clipped, majority, shared_std, system_noise
from fednoil.privacy.mechanism import seeded_noise
from fednoil.reporters import Plain
from fednoil.rounds.policy import FederationPolicy, Policy
from fednoil.rounds.selection import select
from fednoil.runner import Silent, run
from fednoil.seeds import Seed
from fednoil.servers import SERVERS
from fednoil.servers.base import Server

Values = dict[str, Any]
DELTA = 1e-5
needs_accountant = pytest.mark.skipif(find_spec("dp_accounting") is None, reason="dp-accounting is not installed")


def test_a_long_update_is_shortened_and_a_short_one_left_alone() -> None:
    """A change of (3, 4) has length 5: with a clip of 1 it is (0.6, 0.8). A counter is no part of it."""
    sent = {"model/w": torch.tensor([1.0, 1.0]), "model/n": torch.tensor(7), "model/mean": torch.zeros(1)}
    update = {"model/w": torch.tensor([4.0, 5.0]), "model/n": torch.tensor(9), "model/mean": torch.full((1,), 50.0)}
    found = clipped(sent, update, 1.0, frozenset({"w"}))
    assert found["model/w"].tolist() == pytest.approx([1.6, 1.8])
    assert (int(found["model/n"]), float(found["model/mean"])) == (9, 50.0)
    assert clipped(sent, update, 5.0, frozenset({"w"})) is update


@pytest.mark.parametrize("normal", [system_noise, seeded_noise(Seed(3))], ids=["system", "seed"])
def test_the_noise_is_normal(normal: Callable[[int], np.ndarray]) -> None:
    """Moments of 200,000 numbers, and the share below each of the law's quantiles."""
    found = normal(200_000)
    assert found.mean() == pytest.approx(0, abs=0.015)
    assert found.std() == pytest.approx(1, abs=0.01)
    for share, quantile in ((0.0227501, -2.0), (0.1586553, -1.0), (0.5, 0.0), (0.8413447, 1.0)):
        assert (found < quantile).mean() == pytest.approx(share, abs=0.007)  # six standard deviations
    assert not np.array_equal(normal(5), normal(5))


@pytest.mark.parametrize("count", [3, 4, 7, 20])
def test_any_majority_adds_the_whole_noise(count: int) -> None:
    each = shared_std(2.0, count)
    assert math.sqrt(majority(count)) * each == pytest.approx(2.0)
    assert math.sqrt(majority(count) - 1) * each < 2.0
    assert 2 * majority(count) > count


def spread(experiment: Any, values: Values) -> tuple[torch.Tensor, torch.Tensor]:
    """All weights after one round, without and with what `values` ask for."""
    found = []
    for keys in ({}, values):
        config = experiment(keys)
        made = make_experiment(config)
        state, _ = rounds.play(made, make_executor(made, torch.device("cpu")), rounds.start(made))
        found.append(made.server.flat(state.server.tensors))
    return found[0], found[1]


@needs_accountant
@pytest.mark.parametrize(
    ("sees", "std"), [("updates", 1 / 4), ("sum", math.sqrt(4 / 3) / 4), ("noise", math.sqrt(4) / 4)]
)
def test_the_mean_has_noise_of_the_promised_size(sees: str, std: float, values: Values) -> None:
    """Four clients, a clip of 1e-6 that leaves nearly no change, noise of 1000 times that: on the sum, on each of them
    so that three are enough, or the whole on each. The std of 10,000 weights tells them apart."""
    values["sampling"]["fraction"], values["model"]["width"] = 1.0, 24
    start = make_experiment(load_config(values))
    before = start.server.flat(start.initial_model())

    def with_keys(keys: Values) -> Any:
        return load_config({**values, "privacy": keys})

    plain, noisy = spread(with_keys, {"sees": sees, "clip": 1e-6, "noise": 1e3})
    assert float((plain - before).norm()) > 0.05
    moved = noisy - before
    assert len(moved) > 5_000
    assert float(moved.std()) == pytest.approx(1e-3 * std, rel=0.04)


@needs_accountant
def test_with_noise_all_clients_count_alike(values: Values) -> None:
    """Without it a client counts by its samples, which would let some move the model by more than C."""
    from fednoil.executors.base import Result
    from fednoil.rounds.private import Private

    values["privacy"] = {"clip": 1.0, "noise": 1e-9}
    experiment = make_experiment(load_config(values))
    start = experiment.initial_model()
    results = [
        Result(k, {n: t + (k + 1) / 100 for n, t in start.items()}, {"samples": size}, {}, {}, 0.0)
        for k, size in enumerate((10.0, 990.0))
    ]
    private = Private(experiment, federated=False)
    (update,) = private.updates(experiment.server.init(start), 1, results)
    for name, tensor in update.tensors.items():
        torch.testing.assert_close(tensor, start[name] + 0.015, atol=1e-6, rtol=0)


def pair_delta(epsilon: float, share: float, std: float) -> float:
    """δ of one round for two clients' worst updates, +1 and −1 on one axis, by summing max(p − e^ε q, 0) over it."""
    x = np.linspace(-1 - 12 * std, 1 + 12 * std, 400_001)

    def density(at: float) -> np.ndarray:
        return np.exp(-((x - at) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))

    p, q = ((1 - share) * density(0) + share * density(at) for at in (1.0, -1.0))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))


@needs_accountant
@pytest.mark.parametrize("noise", [1.0, 2.0, 4.0])
def test_the_cost_of_one_round_covers_the_worst_pair_of_clients(noise: float) -> None:
    """With all clients in the round ε is exact; with a share of them it is a bound, and below that without sampling.
    Half the sensitivity, which is right for clients that come or go, fails here."""
    from fednoil.privacy import epsilon_of

    everyone = epsilon_of({"20/20": 1}, "updates", noise)
    assert pair_delta(everyone, 1.0, noise) == pytest.approx(DELTA, rel=0.01)
    assert everyone == epsilon_of({"7": 1}, "sum", noise)
    some = epsilon_of({"2/20": 1}, "updates", noise)
    assert pair_delta(some, 0.1, noise) <= DELTA
    assert some < everyone
    assert pair_delta(epsilon_of({"20/20": 1}, "updates", 2 * noise), 1.0, noise) > 10 * DELTA


@needs_accountant
def test_rounds_add_up_for_the_client_that_took_part_most() -> None:
    """Gaussian noise of multiplier z in n rounds is that of z/√n in one."""
    from fednoil.privacy import epsilon_of
    from fednoil.privacy.accountant import spend

    assert epsilon_of({"0": 9, "1": 4}, "noise", 6.0) == epsilon_of({"0": 1}, "noise", 2.0)
    assert epsilon_of({"3/20": 9, "3/10": 1}, "updates", 2.0) > epsilon_of({"3/20": 9}, "updates", 2.0)
    assert epsilon_of({}, "sum", 1.0) == 0.0
    assert spend({"2/4": 1}, "updates", 2, 4, [0, 3]) == {"2/4": 2}
    assert spend({"0": 1}, "sum", 2, 4, [0, 3]) == {"0": 2, "3": 1}
    assert spend({"2/4": 1}, "updates", 2, 4, []) == {"2/4": 1}  # nobody's update came


@needs_accountant
def test_every_round_records_its_cost_and_a_resumed_run_goes_on_with_it(values: Values, tmp_path: Path) -> None:
    """Two of four clients a round: ε of {2/4: r} after round r."""
    from fednoil.privacy import epsilon_of

    values["privacy"] = {"clip": 0.5, "noise": 3.0}
    config = load_config(values)
    summary = run(config, tmp_path / "whole", Silent())
    lines = [json.loads(line) for line in (tmp_path / "whole" / "rounds.jsonl").read_text().splitlines()]
    expected = [epsilon_of({"2/4": r}, "updates", 3.0) for r in (1, 2, 3, 4)]
    assert [line["epsilon"] for line in lines] == expected
    assert expected == sorted(expected)
    assert (summary["epsilon"], summary["delta"]) == (expected[-1], DELTA)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "stopped", Stop(3))
    run(config, tmp_path / "stopped", Silent(), resume=True)
    assert leaves(tmp_path / "stopped") == leaves(tmp_path / "whole")


@needs_accountant
def test_the_cost_is_on_the_terminal(values: Values, tmp_path: Path) -> None:
    """After each round, and at the end."""
    from fednoil.privacy import epsilon_of

    values["privacy"], values["train"]["rounds"] = {"clip": 0.5, "noise": 3.0}, 2
    console = Console(file=StringIO(), width=200)
    run(load_config(values), tmp_path / "run", Plain(console))
    said = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    first, second = (epsilon_of({"2/4": r}, "updates", 3.0) for r in (1, 2))
    assert f"  ε = {first:.3g}  " in said[1]
    assert f"  ε = {second:.3g}  " in said[2]
    assert f", ε = {second:.3g} at δ = 1e-05, " in said[3]


def test_a_run_without_noise_has_no_cost(values: Values, tmp_path: Path) -> None:
    summary = run(load_config({**values, "privacy": {"clip": 0.5}}), tmp_path / "run", Silent())
    assert "epsilon" not in summary
    assert '"epsilon"' not in (tmp_path / "run" / "rounds.jsonl").read_text()


@pytest.mark.parametrize(
    ("keys", "others", "said"),
    [
        ({"noise": 1.0}, {}, r"privacy\.noise = 1 is a multiple of privacy\.clip"),
        ({"sees": "noise", "clip": 1.0}, {}, r"privacy\.sees = 'noise' needs privacy\.noise"),
        ({"sees": "all"}, {}, r"privacy\.sees = 'all': must be 'updates', 'sum' or 'noise'"),
        ({"clip": 0}, {}, r"privacy\.clip = 0: must be greater than 0"),
        ({"clip": "short"}, {}, r"privacy\.clip = 'short'"),
        ({"sees": "sum"}, {"server": {"name": "krum"}}, r"server\.name = 'krum' needs each of them; use 'fedavg'"),
        ({"clip": 1, "noise": 1}, {"server": {"name": "median"}}, r"privacy\.noise = 1 leaves .* 'median' needs each"),
        ({"sees": "sum"}, {"server": {"limits": True}}, r"server\.limits = true compares them"),
        ({"clip": 1, "noise": 1}, {"sampling": {"name": "score"}}, r"sampling\.name = 'score' draws .* use 'uniform'"),
        ({"scores": 1}, {}, r"privacy\.scores = 1: sampling\.name = 'uniform' asks for no scores"),
        ({"clip": 1}, {"server": {"name": "centralized"}}, r"'centralized' pools all clients' data"),
        ({}, {"federation": {"update_clip": 1}}, r"'federation\.update_clip' is now called privacy\.clip"),
        ({}, {"federation": {"update_epsilon": 1}}, r"'federation\.update_epsilon' is now called privacy\.noise"),
    ],
)
def test_what_privacy_does_not_allow_is_refused_in_one_line(keys: Values, others: Values, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        load_config({**others, "privacy": keys})
    assert "\n" not in str(error.value)


@needs_accountant
def test_noise_on_batch_norm_is_refused(values: Values) -> None:
    values |= {"model": {"name": "resnet18", "width": 2}, "privacy": {"clip": 1.0, "noise": 1.0}}
    with pytest.raises(UserError, match=r"privacy\.noise needs a model without BatchNorm.*resnet18"):
        make_experiment(load_config(values))


def test_what_clients_report_in_a_review_has_no_noise_and_is_refused(values: Values) -> None:
    """FedNoRo asks every client for the mean loss of each class once, besides the updates."""
    values |= {"server": {"name": "fednoro"}, "privacy": {"sees": "noise", "clip": 1.0, "noise": 1.0}}
    with pytest.raises(UserError, match=r"'fednoro' also sends each client's 'loss 0'; use another"):
        make_experiment(load_config(values))


@pytest.mark.parametrize(("keys", "hidden"), [({"clip": 1.0, "noise": 1.0}, True), ({"clip": 1.0}, False)])
def test_whom_a_federation_draws_does_not_follow_from_the_seed_that_nodes_know(
    keys: Values, hidden: bool, values: Values
) -> None:
    """Twenty draws of two of four for the same round: all the same, or with noise at the server not."""
    experiment = make_experiment(load_config({**values, "privacy": keys}))
    nodes: Any = dict.fromkeys(range(4))
    for policy, differ in ((Policy, False), (FederationPolicy, hidden)):
        made: Any = policy(experiment, cast(Any, None))
        drawn = {tuple(select(experiment, made, rounds.start(experiment), nodes).clients) for _ in range(20)}
        assert (len(drawn) > 1) == differ


def test_without_an_accountant_noise_is_refused(
    values: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    values["privacy"] = {"clip": 1.0, "noise": 1.0}
    with pytest.raises(UserError, match=r"pip install 'fednoil\[privacy\]'"):
        run(load_config(values), tmp_path / "run", Silent())


def test_servers_that_need_more_than_the_mean() -> None:
    """Also one of the user's own that starts from a known one."""

    class Own(SERVERS["fedavg"]):
        def combine(self, updates: Any) -> Any:
            return updates[0].tensors

    assert {name for name, cls in SERVERS.items() if cls.needs_only_mean()} == {"fedavg", "fedprox", "apfl"}
    assert issubclass(Own, Server)
    assert not Own.needs_only_mean()


def test_privacy_is_part_of_an_experiments_hash_and_none_is_not(values: Values) -> None:
    plain = load_config(values).hash()
    assert load_config({**values, "privacy": {}}).hash() == plain
    assert load_config({**values, "privacy": {"clip": 1.0}}).hash() != plain
    values["sampling"]["name"] = "score"
    assert load_config({**values, "privacy": {"scores": 1.0}}).hash() != load_config(values).hash()
