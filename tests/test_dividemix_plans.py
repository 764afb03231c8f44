"""DivideMix plans several clients and both networks at once: the same batches as one sample set after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as count_up
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fednoil.augment import weak_plan
from fednoil.learners.base import Client, Phase, Task, Trainee, Turn
from fednoil.learners.dividemix import DivideMix, DivideMixConfig
from fednoil.seeds import Seed, orders, permutations
from fednoil.tensors import Tensors

BATCH, PAD, MIX = 8, 3, 4.0
# Samples of a client, and how many `a` and `b` find clean: all, none, one, fewer than a batch, none but a few.
SPLITS = [(40, 17, 23), (25, 25, 24), (33, 1, 0), (33, 33, 2), (12, 3, 11), (5, 2, 5), (61, 60, 59), (40, 0, 40)]


def learner(sizes: Sequence[int], warmup: int = 0) -> DivideMix:
    task = Task(4, (1, 8, 8), BATCH, 0.05, 20, PAD, sizes=tuple(sizes))
    return DivideMix(DivideMixConfig(warmup=warmup, mix=MIX), task)


def made(sizes: Sequence[int]) -> tuple[list[Client], list[Turn]]:
    generator = torch.Generator().manual_seed(0)
    clients, pool = [], torch.zeros(1000, 1, 8, 8, dtype=torch.uint8)
    for place, size in enumerate(sizes):
        index = torch.randperm(1000, generator=generator)[:size]
        clients.append(Client(place, pool, index, torch.randint(0, 4, (size,), generator=generator)))
    return clients, [Turn(3, 4, Seed(9).child("client", client.id)) for client in clients]


def divided_state(method: DivideMix, client: Client, turn: Turn, counts: Sequence[int]) -> Tensors:
    """As a division leaves it that finds so many labels clean by each network."""
    state = method.init({}, client, {}, turn)
    generator = torch.Generator().manual_seed(client.id)
    for row, count in enumerate(counts):
        mixed = torch.randperm(len(client), generator=generator)
        order = torch.cat([mixed[:count].sort().values, mixed[count:].sort().values])
        state["order"][row, : len(client)] = order
        state["chance"][row, : len(client)] = torch.rand(len(client), generator=generator)
    state["counts"].copy_(torch.tensor(counts))
    return state


def key(seed: Seed) -> Tensor:
    return torch.tensor(seed.key())


def gone_through(members: Tensor, seed: Seed, count: int) -> Tensor:
    """Shuffled again and again until there are so many."""
    found: list[int] = []
    for cycle in count_up():
        if len(found) >= count:
            return torch.tensor(found[:count])
        found += members[permutations(key(seed.child("order", cycle)), len(members))].tolist()
    raise AssertionError


def wanted_plain(client: Client, turn: Turn, net: str, epochs: range) -> Phase:
    rows: dict[str, list[Tensor]] = {"index": [], "labels": [], "first": []}
    for epoch in epochs:
        seed = turn.seed.child("epoch", epoch, "plain", net)
        count = -(-len(client) // (2 * BATCH)) * 2 * BATCH
        place = gone_through(torch.arange(len(client)), seed, count).view(-1, 2 * BATCH)
        rows["index"].append(client.index[place])
        rows["labels"].append(client.labels[place])
        rows["first"].append(weak_plan(key(seed.child("first", 0)), count, PAD).view(*place.shape, 3))
    return Phase({name: torch.cat(parts) for name, parts in rows.items()}, f"plain-{net}", (net,))


def wanted_divided(client: Client, turn: Turn, epoch: int, net: str, split: tuple[Tensor, Tensor, Tensor]) -> Phase:
    labelled, unlabelled, chance = split
    seed, steps = turn.seed.child("epoch", epoch), -(-len(labelled) // BATCH)
    batch: Tensors = {}
    for name, members, before in (("labelled", labelled, ""), ("unlabelled", unlabelled, "u_")):
        if len(members):
            place = gone_through(members, seed.child(name, net), steps * BATCH).view(steps, BATCH)
            batch[f"{before}index"] = client.index[place]
            for view in ("first", "second"):
                plan = weak_plan(key(seed.child(name, net, view, 0)), steps * BATCH, PAD)
                batch[before + view] = plan.view(steps, BATCH, 3)
            if name == "labelled":
                batch |= {"labels": client.labels[place], "chance": chance[place]}
    beta = seed.child("mix", net).numpy().beta(MIX, MIX, steps)
    batch["share"] = torch.tensor(np.maximum(beta, 1 - beta), dtype=torch.float32)
    among = 4 * BATCH if len(unlabelled) else 2 * BATCH
    batch["partner"] = torch.stack([permutations(key(seed.child("partner", net, s)), among) for s in range(steps)])
    return Phase(batch, f"{'mix' if len(unlabelled) else 'labelled'}-{net}", (net,))


def wanted(client: Client, state: Tensors, turn: Turn, epoch: int) -> list[Phase]:
    """The two phases that train, one after another."""
    phases = []
    for net, by in (("a", 1), ("b", 0)):
        count, order = int(state["counts"][by]), state["order"][by, : len(client)]
        if count < 2:
            phases.append(wanted_plain(client, turn, net, range(epoch, epoch + 1)))
        else:
            split = (order[:count], order[count:], state["chance"][by])
            phases.append(wanted_divided(client, turn, epoch, net, split))
    return phases


def assert_phases(got: Sequence[Phase], expected: Sequence[Phase]) -> None:
    assert [(phase.kind, phase.trains) for phase in got] == [(phase.kind, phase.trains) for phase in expected]
    for one, other in zip(got, expected, strict=True):
        assert_same(one.tensors, other.tensors)
        assert all(one.tensors[name].dtype == tensor.dtype for name, tensor in other.tensors.items())


def divided(splits: Sequence[tuple[int, int, int]]) -> tuple[DivideMix, list[Client], list[Tensors], list[Turn]]:
    sizes = [size for size, _, _ in splits]
    method, (clients, turns) = learner(sizes), made(sizes)
    states = [
        divided_state(method, client, turn, counts)
        for client, turn, (_, *counts) in zip(clients, turns, splits, strict=True)
    ]
    return method, clients, states, turns


def trainees(clients: Sequence[Client], states: Sequence[Tensors], turns: Sequence[Turn]) -> list[Trainee]:
    return [Trainee({}, *one) for one in zip(clients, states, turns, strict=True)]


def test_all_at_once_is_one_after_another() -> None:
    method, clients, states, turns = divided(SPLITS)
    before = [{name: tensor.clone() for name, tensor in state.items()} for state in states]
    together = method.plans(trainees(clients, states, turns), range(2, 3))
    kinds = set()
    for client, state, turn, plan in zip(clients, states, turns, together, strict=True):
        assert_phases(plan[:2], wanted(client, state, turn, 2))
        assert_phases(plan, method.plan({}, client, state, turn, range(2, 3)))
        assert [phase.kind for phase in plan[2:]] == ["look", "divide"]
        kinds |= {phase.kind for phase in plan[:2]}
    assert kinds == {f"{form}-{net}" for form in ("mix", "labelled", "plain") for net in ("a", "b")}
    for state, old in zip(states, before, strict=True):
        assert_same(state, old)


def test_nothing_is_looked_at_after_the_last_epoch() -> None:
    method, clients, states, turns = divided(SPLITS[:2])
    turns[1] = Turn(3, 5, turns[1].seed)
    plans = method.plans(trainees(clients, states, turns), range(3, 4))
    assert [len(plan) for plan in plans] == [2, 4]


def test_the_first_division_is_that_of_each() -> None:
    """By the losses of the received networks; clients of one size and of another, one with equal losses."""
    sizes = [40, 25, 33, 40]
    method, (clients, turns) = learner(sizes), made(sizes)

    def states() -> list[Tensors]:
        generator = torch.Generator().manual_seed(3)
        found = []
        for client, turn in zip(clients, turns, strict=True):
            losses = torch.rand(len(client), 2, generator=generator)
            losses[: len(client) // 2] += 2
            received = torch.ones_like(losses) if client.id == 2 else losses
            found.append({"received": received, **method.init({}, client, {}, turn)})
        return found

    together, alone = states(), states()
    plans = method.plans(trainees(clients, together, turns), range(1))
    for client, state, own, turn, plan in zip(clients, together, alone, turns, plans, strict=True):
        assert_phases(plan, method.plan({}, client, own, turn, range(1)))
        assert_phases(plan[:2], wanted(client, state, turn, 0))
        assert_same(state, own)
        half = [-(-len(client) // 2)] * 2
        assert state["counts"].tolist() == (half if client.id != 2 else [len(client)] * 2)
        assert int(state["drawn"].sum()) == int(state["counts"][1])


@pytest.mark.parametrize("sizes", [[20, 20, 20], [5, 5], [20, 33, 16]])
def test_the_warm_up_is_that_of_each(sizes: list[int]) -> None:
    method, (clients, turns) = learner(sizes, warmup=5), made(sizes)
    plans = method.plans(trainees(clients, [{} for _ in sizes], turns), range(1, 4))
    for client, turn, plan in zip(clients, turns, plans, strict=True):
        assert_phases(plan, [wanted_plain(client, turn, net, range(1, 4)) for net in ("a", "b")])


def test_tables_of_different_widths_are_planned_one_after_another() -> None:
    """A client that the task doesn't know of may be larger than all that it knows."""
    method, clients, states, turns = divided(SPLITS[:1] * 2)
    client = Client(7, clients[0].pool, torch.arange(90), torch.zeros(90, dtype=torch.int64))
    states[1] = divided_state(method, client, turns[1], (50, 60))
    plans = method.plans(trainees([clients[0], client], states, turns), range(2, 3))
    assert_phases(plans[1][:2], wanted(client, states[1], turns[1], 2))


class Counted(TorchDispatchMode):
    """How many operations run that would be launches on a GPU, and which."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_more_clients_are_not_more_operations() -> None:
    found = []
    for often in (1, 6):
        method, clients, states, turns = divided([(40, 17, 23)] * often)
        with Counted() as counted:
            method.plans(trainees(clients, states, turns), range(1, 2))
        found.append([name for name in counted.names if name not in ("cat", "split_with_sizes", "split")])
    assert found[0] == found[1]
    assert not {"_local_scalar_dense", "nonzero", "masked_select"} & set(found[1])


def test_orders_of_different_lengths() -> None:
    sizes = torch.tensor([3, 1, 7, 1, 500])
    keys = Seed(4).keys(range(len(sizes)))
    order, owner = orders(keys, sizes, int(sizes.sum()))
    each = [permutations(own, int(size)) for own, size in zip(keys, sizes, strict=True)]
    assert torch.equal(order, torch.cat(each))
    assert torch.equal(owner.bincount(), sizes)
