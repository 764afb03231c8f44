"""Presets of other papers' protocols: their budgets, and that every method has the same."""

from __future__ import annotations

from typing import Any

import pytest

from fednoil.bench.settings import PRESETS, settings_of
from fednoil.config import load_config, preset
from fednoil.config.protocols import PROTOCOL_METHODS, PROTOCOLS, Protocol
from fednoil.errors import UserError

EVERY = [(f"{family}/{name}", protocol) for family, found in PROTOCOLS.items() for name, protocol in found.items()]


@pytest.mark.parametrize(
    ("name", "passes"),
    [("fedcorr/cifar10", 25e6), ("fedcorr/cifar100", 25e6), ("fnbench/cifar10", 3e6), ("fedgr/cifar10", 25e6)],
)
def test_the_budgets_of_the_papers(name: str, passes: float) -> None:
    assert dict(EVERY)[name].sample_passes == passes


def turns(protocol: Protocol, values: dict[str, Any]) -> int:
    """How many clients train in all: one a round in the passes, later as many as usual."""
    rounds, server = values["train"]["rounds"], values["server"]
    single = server.get("passes", 0) * protocol.clients if server["name"] in ("fedcorr", "feddiv") else 0
    return single + (rounds - single) * protocol.each


@pytest.mark.parametrize(("name", "protocol"), EVERY, ids=[name for name, _ in EVERY])
def test_every_method_has_the_same_budget(name: str, protocol: Protocol) -> None:
    for method in PROTOCOL_METHODS:
        values = preset(f"{name}/{method}")
        config = load_config(values)
        assert turns(protocol, values) == protocol.turns, method
        assert values["schedule"] == {"name": "constant", "epochs": protocol.epochs}
        assert config.partition.clients == protocol.clients
    assert preset(name) == preset(f"{name}/{protocol.own}")


@pytest.mark.parametrize(
    ("name", "passes", "visits", "alone", "all_clients"),
    [("cifar10", 5, 5 * 100, 500, 450), ("cifar100", 10, 10 * 50, 450, 450)],
)
def test_fedcorrs_own_stages(name: str, passes: int, visits: int, alone: int, all_clients: int) -> None:
    values = preset(f"fedcorr/{name}")
    assert (values["server"]["passes"], values["server"]["warmup"]) == (passes, alone)
    assert values["train"]["rounds"] == visits + alone + all_clients
    feddiv = preset(f"fedcorr/{name}/feddiv")
    assert (feddiv["server"]["passes"], feddiv["train"]["rounds"]) == (passes, visits + alone + all_clients)


def test_others_stages() -> None:
    assert preset("fnbench/cifar10")["server"] == {"name": "fednoro", "warmup": 20}
    assert preset("fnbench/cifar10/fednoro")["learner"]["ramp"] == 100
    assert preset("fedgr/cifar10")["server"]["passes"] == 10


def test_twenty_settings() -> None:
    assert len(PROTOCOLS["fednoisy"]) == 20


def test_a_run_of_the_ranking_by_itself() -> None:
    values = PRESETS.values("bench/non-iid-two-level/feddiv")
    assert values == settings_of("paper")["non-iid/two-level"].values("feddiv")
    assert PRESETS.values("bench/iid-clean") == PRESETS.values("bench/iid-clean/fednoil-plus")


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(UserError, match="unknown preset 'fedcorr/cifar11'"):
        preset("fedcorr/cifar11")
    with pytest.raises(UserError, match=r"unknown preset 'fedcorr/cifar10/fedcor'.*fedcorr"):
        preset("fedcorr/cifar10/fedcor")
