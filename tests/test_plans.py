"""Plans of several clients at once are those of each alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from conftest import assert_same

from fednoil.config import load_config
from fednoil.executors.local import Workbench
from fednoil.experiment import make_bench, make_executor, make_experiment
from fednoil.learners import fednoil_plus
from fednoil.learners.base import Client, Phase, Trainee, Turn, one_by_one
from fednoil.learners.capabilities import asks, plans
from fednoil.learners.fednoil import FedNoil
from fednoil.seeds import Seed, Seeds
from fednoil.tensors import Tensors

CPU = torch.device("cpu")
EPOCHS = range(1, 4)
READINGS: list[dict[str, Any]] = [
    {"name": "fednoil", "frac": 0.5, "xi": 0.3},
    {"name": "fednoil", "frac": 0.3, "xi": 0.3, "x_augment": "strong"},
    {"name": "fednoil", "frac": 0.4, "x_augment": "none"},
    {"name": "fednoil", "frac": 0.4, "weight": 0.0},
    {"name": "fednoil", "frac": 1.0},
    {"name": "fednoil-plus", "frac": 0.5, "mix": 0.7},
    {"name": "fednoil.study.recipe:Recipe", "frac": 0.5, "ssl_start": 1},
]


def opened(values: dict[str, Any], learner: dict[str, Any], **server: Any) -> tuple[Workbench, list[Client]]:
    values["learner"], values["server"] = learner, {**values["server"], **server}
    experiment = make_experiment(load_config(values))
    bench = make_bench(experiment, CPU)
    bench.load(experiment.initial_model(), {})
    return bench, list(make_executor(experiment, CPU).clients.values())


def turns_of(clients: Sequence[Client]) -> list[Turn]:
    return [Turn(3, 4, Seed(5).child("client", client.id)) for client in clients]


def trainees_of(bench: Workbench, clients: Sequence[Client], sizes: Sequence[int] = ()) -> list[Trainee]:
    """With D^x of these sizes, if some are given."""
    pairs = zip(clients, turns_of(clients), strict=True)
    found = [Trainee(bench.nets, client, bench.open(client, {}, turn), turn) for client, turn in pairs]
    for one, size in zip(found, sizes, strict=False):
        one.state["size"] = torch.tensor(size)
    return found


def both_ways(
    bench: Workbench, clients: Sequence[Client], sizes: Sequence[int] = ()
) -> tuple[list[list[Phase]], list[list[Phase]]]:
    """The plans at once and one after another, having compared what they leave in the states."""
    one, other = (trainees_of(bench, clients, sizes) for _ in range(2))
    found = plans(bench.learner, one, EPOCHS), one_by_one(bench.learner, other, EPOCHS)
    for a, b in zip(one, other, strict=True):
        assert_same(a.state, b.state)
        assert bool(a.state["drawn"].any())
    return found


def assert_equal(one: list[list[Phase]], other: list[list[Phase]]) -> None:
    assert len(one) == len(other)
    for (a,), (b,) in zip(one, other, strict=True):
        assert list(a.tensors) == list(b.tensors)
        assert_same(a.tensors, b.tensors)


def share_memory(found: list[list[Phase]]) -> bool:
    """Whether the clients' plans are parts of one."""
    return len({phases[0].tensors["x_index"].untyped_storage().data_ptr() for phases in found}) == 1


@pytest.mark.parametrize("reading", READINGS, ids=lambda r: " ".join(map(str, r.values())))
def test_at_once_or_one_after_another(values: dict[str, Any], reading: dict[str, Any]) -> None:
    together, alone = both_ways(*opened(values, reading))
    assert_equal(together, alone)
    assert share_memory(together)
    assert not share_memory(alone)


@pytest.mark.parametrize("reading", READINGS, ids=lambda r: " ".join(map(str, r.values())))
def test_clients_of_different_sizes_are_planned_at_once(values: dict[str, Any], reading: dict[str, Any]) -> None:
    """Of 20, 17, 16 and 12 samples, the first three in one lot."""
    bench, clients = opened(values, reading)
    for place, fewer in ((1, 3), (2, 4), (3, 8)):
        one = clients[place]
        clients[place] = Client(one.id, one.pool, one.index[:-fewer], one.labels[:-fewer])
    together, alone = both_ways(bench, clients)
    assert_equal(together, alone)


@pytest.mark.parametrize("views", ["auto", "both"])
@pytest.mark.parametrize("many", [1, 17])
def test_what_is_believed_is_planned_at_once(
    values: dict[str, Any], many: int, views: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second half of the rounds, with pseudo-labels; if those with fewer than 17 samples have few labels, they
    have no pseudo-labels, other views unless these are set, and plans of their own."""
    monkeypatch.setattr(fednoil_plus, "MANY", many)
    values["train"] |= {"rounds": 4}
    bench, clients = opened(values, {"name": "fednoil-plus", "weight": 1.0, "x_augment": views})
    for place, fewer in ((1, 3), (2, 4), (3, 8)):
        one = clients[place]
        clients[place] = Client(one.id, one.pool, one.index[:-fewer], one.labels[:-fewer])
    together, alone = both_ways(bench, clients)
    assert_equal(together, alone)
    assert [len(client) >= many for client in clients] == ["u_index" in phase.tensors for (phase,) in together]
    weak = [views == "auto" and len(client) >= many for client in clients]
    assert weak == ["x_weak" in phase.tensors for (phase,) in together]


@pytest.mark.parametrize("sizes", [(5, 16, 9, 12), (19, 6, 6, 18), (4, 16, 20, 1)])
@pytest.mark.parametrize("reading", READINGS, ids=lambda r: " ".join(map(str, r.values())))
def test_labelled_sets_of_different_sizes_are_planned_at_once(
    values: dict[str, Any], reading: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    together, alone = both_ways(*opened(values, reading), sizes)
    assert_equal(together, alone)


@pytest.mark.parametrize("server", ["fedprox", "apfl"])
def test_a_server_around_the_learner_does_not_stand_between(values: dict[str, Any], server: str) -> None:
    bench, clients = opened(values, {"name": "fednoil", "frac": 0.5}, name=server)
    assert share_memory(plans(bench.learner, trainees_of(bench, clients), EPOCHS))


def test_questions_of_ones_own_are_asked(values: dict[str, Any]) -> None:
    class Own(FedNoil):
        def asks(self, client: Client, turn: Turn) -> Tensors:
            return super().asks(client, turn) | {"own": client.labels}

    bench, clients = opened(values, {"name": "fednoil", "frac": 0.5})
    own, (_, everyone, _, turns) = (
        Own(bench.learner.config, bench.learner.task),
        zip(*trainees_of(bench, clients), strict=True),
    )
    for client, asked in zip(everyone, asks(own, everyone, turns), strict=True):
        assert asked.keys() == {"weak", "own"}
        assert torch.equal(asked["own"], client.labels)


def test_seeds_side_by_side() -> None:
    members = (Seed(1), Seed(2).child("a"))
    keys = Seeds(members).child("b", 3).keys_of([(0, "c"), (1, "c")])
    assert keys.tolist() == [seed.child("b", 3, e, "c").key() for seed in members for e in (0, 1)]
