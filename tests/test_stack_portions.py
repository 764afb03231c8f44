"""Stacked clients in portions: of different sizes, of phases that train and of phases that only observe."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_stack import CPU, close, stacked, trained
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fednoil import rounds
from fednoil.config import load_config
from fednoil.executors import portions as cut
from fednoil.executors.capture import Portion
from fednoil.executors.cuda import CudaGraphs
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners import dividemix, pseudo_labels
from fednoil.learners.base import Client, Final, Nets, Phase, Role, Turn
from fednoil.learners.erm import Erm
from fednoil.tensors import Tensors


def counted(executor: CudaGraphs, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Seats, steps and whether some are frozen, of each portion that the executor plays."""
    played: list[tuple[int, int, bool]] = []
    play = executor.graphs.play

    def noted(portion: Portion) -> None:
        played.append((portion.rows.count, portion.steps, portion.active is not None))
        play(portion)

    monkeypatch.setattr(executor.graphs, "play", noted)
    return played


@pytest.mark.parametrize("learner", [{"name": "erm"}, {"name": "fednoil", "frac": 0.4, "xi": 0.3}])
def test_clients_of_different_sizes_run_as_one(
    values: dict[str, Any], learner: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them alone but the last, and fewer as they are through."""
    partition = {"kind": "dirichlet", "clients": 6, "samples_per_client": 60, "beta": 5.0}
    values |= {"data": {"name": "fashion-mnist-mini"}, "partition": partition, "learner": learner}
    experiment = make_experiment(load_config(values))
    clients = list(range(6))
    wanted = trained(experiment, make_executor(experiment, CPU), clients, 2)
    executor = stacked(experiment, 6)
    played = counted(executor, monkeypatch)
    got = trained(experiment, executor, clients, 2)
    assert list(got) == clients
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)
        close(got[client].evidence, result.evidence)
        assert got[client].loss == pytest.approx(result.loss, rel=1e-4)
        assert got[client].numbers == pytest.approx(result.numbers)
    widths = [count for count, _, _ in played]
    assert widths[0] == 6
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 6
    done = sum(count * steps for count, steps, _ in played)
    assert sum(result.numbers["steps"] for result in wanted.values()) <= done < 6 * sum(steps for _, steps, _ in played)


class OneMore(Erm):
    """A client does one step more than the one before it, whatever its size; its state has what it received."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"own": nets["model"].params.clone()}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (phase,) = super().plan(nets, client, state, turn, epochs)
        return [Phase({name: tensor[: client.id + 1] for name, tensor in phase.tensors.items()})]

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * (1 + state["own"].mean())


class Bound(OneMore):
    """With a part of a network itself, which is another client's once networks move."""

    @property
    def roles(self) -> tuple[Role, ...]:
        return Role("model"), Role("teacher", shared=False, trained=False)

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"own": nets["teacher"].params}


@pytest.mark.parametrize("name", ["OneMore", "Bound"])
def test_those_with_fewer_steps_leave_first_whatever_their_size(
    values: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2, 3 and 4 steps of clients of one size, each with its own weights: 4 + 3 + 2 + 1 in all, but 4 · 4 where
    networks must stay where they are."""
    values |= {"learner": {"name": f"test_stack_portions:{name}"}, "model": {"name": "test_rounds:bn_model"}}
    experiment = make_experiment(load_config(values))
    start = rounds.start(experiment)
    jobs = [rounds.make_job(experiment, start, k, 2) for k in range(4)]
    jobs = [replace(job, received={n: t * (1 + job.client) for n, t in job.received.items()}) for job in jobs]
    wanted = make_executor(experiment, CPU).train(jobs)
    executor = stacked(experiment, 4)
    played = counted(executor, monkeypatch)
    for got, alone in zip(executor.train(jobs), wanted, strict=True):
        assert (got.client, got.numbers["steps"]) == (alone.client, alone.client + 1)
        close(got.tensors, alone.tensors)
        assert got.loss == pytest.approx(alone.loss, rel=1e-4)
    assert [count for count, _, _ in played] == ([4, 3, 2, 1] if name == "OneMore" else [4, 4, 4, 4])


@pytest.mark.parametrize("model", ["test_rounds:bn_model", "test_gpu:gn_model"])
def test_batch_norm_sees_no_samples_that_were_added(
    values: dict[str, Any], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients whose samples don't see each other get some more and run as one."""
    monkeypatch.setattr(pseudo_labels, "_GRAIN", 1)
    values |= {"partition": {"kind": "dirichlet", "clients": 4, "min_size": 8}, "model": {"name": model}}
    values["learner"] = {"name": "fednoil", "frac": 0.4}
    experiment = make_experiment(load_config(values))
    executor = stacked(experiment, 4)
    played = counted(executor, monkeypatch)
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2, 3], 2)
    for client, result in trained(experiment, executor, [0, 1, 2, 3], 2).items():
        close(result.tensors, wanted[client].tensors)
    assert executor.mixes == ("bn" in model)
    assert max(count for count, _, _ in played) == (1 if executor.mixes else 4)


class Counts(Erm):
    """Writes into its state while it trains and while it observes; a network in training then moves its statistics."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"trained": torch.zeros(()), "observed": torch.zeros(())}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (phase,) = super().plan(nets, client, state, turn, epochs)
        return [phase, Phase(phase.tensors, "watch", ()), phase]

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        state["trained"].add_(1)
        return super().step(nets, pool, batch, state, kind)

    def observe(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> None:
        nets["model"](batch["images"])
        state["observed"].add_(1)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(evidence=state | {"momentum": nets["model"].memory["momentum"].clone()})


def test_nothing_of_a_frozen_client_changes(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All stay to the end: who is through keeps weights, momentum, statistics, state and loss."""
    values |= {
        "partition": {"kind": "dirichlet", "clients": 4, "min_size": 8},
        "model": {"name": "test_rounds:bn_model"},
        "learner": {"name": "test_stack_portions:Counts"},
    }
    values["train"] |= {"lr_rounds": "linear"}
    experiment = make_experiment(load_config(values))
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2, 3], 2)
    monkeypatch.setattr(cut, "taking_part", lambda counts, step: len(counts))
    executor = stacked(experiment, 4)
    played = counted(executor, monkeypatch)
    got = trained(experiment, executor, [0, 1, 2, 3], 2)
    assert {count for count, _, _ in played} == {4}
    assert {frozen for _, _, frozen in played} == {False, True}
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)
        close(got[client].keep, result.keep)
        close(got[client].evidence, result.evidence)
        assert result.evidence["trained"] == 2 * result.evidence["observed"] == result.numbers["steps"]
        assert got[client].loss == pytest.approx(result.loss, rel=1e-4)


def test_shapes_that_come_again_are_played_eight_steps_at_a_time(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 samples in batches of 8, five epochs: 15 steps, first one by one, then eight and what is left."""
    experiment = make_experiment(load_config(values))
    executor = stacked(experiment, 2)
    played = counted(executor, monkeypatch)
    trained(experiment, executor, [0, 1], 5)
    assert [steps for _, steps, _ in played] == [1] * 15
    played.clear()
    trained(experiment, executor, [2, 3], 5)
    assert [steps for _, steps, _ in played] == [8] + [1] * 7


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=9),
    st.integers(0, 30),
    st.integers(1, 60),
    st.sampled_from([1, 8]),
)
def test_portions_cover_every_step_of_every_client(counts: list[int], start: int, length: int, most: int) -> None:
    stop = min(start + length, max(counts))
    portions = list(cut.portions(start, stop, counts, most)) if start < stop else []
    assert [s for first, last, _, _ in portions for s in range(first, last)] == list(range(start, stop))
    for first, last, busy, frozen in portions:
        assert last - first in (1, most)
        assert all(count <= first for count in counts[busy:])
        assert frozen == any(count < last for count in counts[:busy])
    assert sum(last - first == 1 for first, last, _, _ in portions) == (
        len(portions) if most == 1 else max(0, stop - start) % most
    )


def test_seats_that_are_done_take_no_part_once_they_are_a_quarter() -> None:
    counts = [9, 9, 9, 5, 4, 3, 2, 1]
    assert [cut.taking_part(counts, step) for step in range(9)] == [8, 8, 6, 6, 4, 3, 3, 3, 3]


def unequal_dividemix(values: dict[str, Any]) -> Experiment:
    """Four clients of different sizes that divide from the first epoch on."""
    partition = {"kind": "dirichlet", "clients": 4, "samples_per_client": 60, "min_size": 16}
    values |= {"data": {"name": "fashion-mnist-mini"}, "partition": partition}
    values["learner"] = {"name": "dividemix", "warmup": 0}
    return make_experiment(load_config(values))


def test_dividemix_looks_at_clients_of_different_sizes_as_one(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks and divisions are one portion for all clients, once between two epochs; the host reads the counts alone."""
    experiment = unequal_dividemix(values)
    assert len({len(part) for part in experiment.setting.parts}) > 1
    executor, played = stacked(experiment, 4), []
    play = executor.graphs.play
    monkeypatch.setattr(executor.graphs, "play", lambda portion: (played.append(portion), play(portion)))
    trained(experiment, executor, [0, 1, 2, 3], 3)
    observed = [(portion.kind, portion.rows.count) for portion in played if not portion.trains]
    assert observed == [("look", 4), ("divide", 4)] * 2


class Names(TorchDispatchMode):
    """The operations that run while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(str(func))
        return func(*args, **(kwargs or {}))


def test_dividemix_looks_in_parts_without_what_no_graph_can_hold(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same division whatever the number of passes. In a deterministic run a scatter would wait for the host."""
    experiment = unequal_dividemix(values)
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2, 3], 3)
    monkeypatch.setattr(dividemix, "_LOOK", 16)
    executor, names, rows = stacked(experiment, 4), Names(), []
    play = executor.graphs.play

    def watched(portion: Portion) -> None:
        with contextlib.nullcontext() if portion.trains else names:
            play(portion)
        rows.append((portion.kind, portion.rows.count))

    monkeypatch.setattr(executor.graphs, "play", watched)
    for client, result in trained(experiment, executor, [0, 1, 2, 3], 3).items():
        close(result.tensors, wanted[client].tensors)
        assert torch.equal(result.evidence["drawn"], wanted[client].evidence["drawn"])
    assert len({count for kind, count in rows if kind == "look"}) > 1  # some clients need fewer passes than others
    assert names.found
    assert not {name for name in names.found if "scatter" in name}


class Nothing(Erm):
    """Plans a phase that trains nothing, without saying what it observes."""

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (phase,) = super().plan(nets, client, state, turn, epochs)
        return [Phase(phase.tensors, "watch", ())]


def test_a_phase_that_trains_nothing_has_to_observe(values: dict[str, Any]) -> None:
    values["learner"] = {"name": "test_stack_portions:Nothing"}
    experiment = make_experiment(load_config(values))
    with pytest.raises(NotImplementedError, match="phase 'watch' that trains nothing: it needs `observe`"):
        trained(experiment, make_executor(experiment, CPU), [0], 1)


class CountsSteps(Erm):
    """Observes every second epoch's steps again, and counts them in the state; training knows nothing of it."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"seen": torch.zeros(2)}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (phase,) = super().plan(nets, client, state, turn, epochs)
        return [phase, Phase(phase.tensors, "watch", ())]

    def observe(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> None:
        state["seen"].add_(torch.stack([torch.ones(()), nets["model"](batch["images"]).mean()]))

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(evidence=dict(state))


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_what_is_observed_is_no_training(values: dict[str, Any], kind: str) -> None:
    """Same model, mean loss and number of steps as without; frozen clients observe nothing."""
    values["partition"] = {"kind": kind, "clients": 4} | ({"min_size": 8} if kind == "dirichlet" else {})
    values["train"] |= {"lr_rounds": "linear"}
    plain = make_experiment(load_config(values))
    wanted = trained(plain, make_executor(plain, CPU), [0, 1, 2, 3], 2)
    values["learner"] = {"name": "test_stack_portions:CountsSteps"}
    experiment = make_experiment(load_config(values))
    for executor in (make_executor(experiment, CPU), stacked(experiment, 4)):
        for client, result in trained(experiment, executor, [0, 1, 2, 3], 2).items():
            close(result.tensors, wanted[client].tensors)
            assert result.loss == pytest.approx(wanted[client].loss, rel=1e-4)
            assert result.numbers == pytest.approx(wanted[client].numbers)
            assert result.evidence["seen"][0] == result.numbers["steps"]
            assert result.evidence["seen"][1] != 0
