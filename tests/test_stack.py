"""Stacked clients: one step for all of them means the same as client after client."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_gpu import CASES
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fednoil import rounds
from fednoil.config import load_config
from fednoil.executors.capture import Portion
from fednoil.executors.cuda import CudaGraphs, _portions
from fednoil.executors.local import Workbench
from fednoil.executors.sequential import Sequential
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners import dividemix
from fednoil.learners.base import Client, Final, Nets, Phase, Turn
from fednoil.learners.erm import Erm
from fednoil.tensors import Tensors

CPU = torch.device("cpu")
_NORMAL = (((0.5,), (0.25,)),)  # mean and standard deviation of a grey image


def stacked(experiment: Experiment, parallel: int) -> CudaGraphs:
    """The GPU's executor on the CPU, where its steps run one by one."""
    return CudaGraphs(
        lambda: make_executor(experiment, CPU).bench, make_executor(experiment, CPU).clients, torch.empty(0), parallel
    )


def trained(experiment: Experiment, executor: Any, clients: list[int], epochs: int) -> dict[int, Any]:
    state = rounds.start(experiment)
    jobs = [rounds._job(experiment, state, k, epochs) for k in clients]
    return {r.client: r for r in executor.train(jobs)}


def close(got: Tensors, wanted: Tensors) -> None:
    assert set(got) == set(wanted)
    for name, tensor in wanted.items():
        if tensor.is_floating_point():
            assert torch.allclose(got[name], tensor, rtol=1e-4, atol=1e-6), name
        else:
            assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("case", CASES)
def test_stacked_clients_learn_as_alone(values: dict[str, Any], case: str) -> None:
    for section, keys in copy.deepcopy(CASES[case]).items():
        values[section] = {**values.get(section, {}), **keys} if section != "model" else keys
    values["run"]["executor"] = "sequential"
    experiment = make_experiment(load_config(values))
    clients = list(range(experiment.setting.num_clients))
    wanted = trained(experiment, make_executor(experiment, CPU), clients, 3)
    executor = stacked(experiment, 3)
    got = trained(experiment, executor, clients, 3)
    assert executor.alone is None
    assert executor.reason is None
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)
        close(got[client].keep, result.keep)
        close(got[client].evidence, result.evidence)
        assert got[client].numbers == pytest.approx(result.numbers)
        assert got[client].loss == pytest.approx(result.loss, rel=1e-4)


class OwnLinear(nn.Linear):
    """Casts its input by itself: a CPU's autocast does nothing under vmap."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1).to(self.weight.dtype), self.weight) + self.bias


def half_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    return OwnLinear(image_shape[0] * image_shape[1] * image_shape[2], num_classes)


@pytest.mark.parametrize("server", ["fedavg", "fedprox"])
def test_half_precision_means_the_same_too(values: dict[str, Any], server: str) -> None:
    """Weights are cast once and their copies kept up to date, with hooks (fedprox) and without."""
    values |= {"server": {"name": server}, "model": {"name": "test_stack:half_model"}}
    experiment = make_experiment(load_config(values))

    def bench() -> Workbench:
        made = make_executor(experiment, CPU).bench
        return Workbench(made.learner, made.nets["model"].module, *_NORMAL, made.optimiser, CPU, torch.bfloat16)

    clients = make_executor(experiment, CPU).clients
    wanted = trained(experiment, Sequential(bench(), clients, torch.empty(0)), [0, 1, 2], 2)
    executor = CudaGraphs(bench, clients, torch.empty(0), 3)
    got = trained(experiment, executor, [0, 1, 2], 2)
    assert executor.reason is None
    stack = executor.bench.stacks["model"]
    assert stack.half is not None
    assert torch.equal(stack.half, stack.params[:, : stack.half.shape[1]].bfloat16())
    for client, result in wanted.items():
        for name, tensor in result.tensors.items():
            start = experiment.initial_model()[name]
            moved = (tensor - start).norm()
            assert moved > 0
            assert (got[client].tensors[name] - tensor).norm() < 0.05 * moved, name


class ReadsMomentum(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        net = nets["model"]
        return super().step(nets, pool, batch, state, kind) * (1 + net.momentum.abs().mean() + net.grads.sum())


class ReadsParameters(Erm):
    """A term on `params` has no gradient, on any executor."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) + nets["model"].params.square().sum()


class WritesItsBatch(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        batch["logits"] = nets["model"](batch["images"])
        return F.cross_entropy(batch["logits"], batch["labels"])


class KeepsOnItself(Erm):
    """Breaks the contract: the weight is one client's, the learner is everybody's."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        self.weight = 1.0 + client.id
        return {}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return self.weight * super().step(nets, pool, batch, state, kind)


class Draws(Erm):
    """Breaks the contract: random numbers inside a step."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return F.cross_entropy(F.dropout(nets["model"](batch["images"])), batch["labels"])


class AddsToState(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        state["seen"] = batch["labels"].clone()
        return super().step(nets, pool, batch, state, kind)


class WholeClients(Erm):
    """A confidence that looks at a client as a whole."""

    def confidence(self, nets: Nets, client: Client, temperature: float) -> Tensor:
        found = super().confidence(nets, client, temperature)
        return found / found.max()


class AsksSomeMore(Erm):
    """Client 0 is asked nothing, clients 1 and 2 are given a number a sample, client 3 two of another type."""

    surveyed: ClassVar[list[int]] = []

    def asks(self, client: Client, turn: Turn) -> Tensors:
        if client.id == 0:
            return {}
        if client.id == 3:
            return {"numbers": torch.full((len(client), 2), 3)}
        return {"numbers": torch.full((len(client),), 0.5 * client.id)}

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        self.surveyed.append(client.id)
        told = self.confidence(nets, client, 1.0)
        if "numbers" in asked:
            return {"told": told + asked["numbers"].view(len(client), -1).sum(1), "numbers": asked["numbers"]}
        return {"told": told}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * state["told"].mean()

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(evidence=dict(state))


@pytest.mark.parametrize("name", ["ReadsMomentum", "ReadsParameters", "WritesItsBatch"])
def test_what_a_step_may_do_means_the_same(values: dict[str, Any], name: str) -> None:
    values["learner"] = {"name": f"test_stack:{name}"}
    experiment = make_experiment(load_config(values))
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2], 2)
    executor = stacked(experiment, 3)
    got = trained(experiment, executor, [0, 1, 2], 2)
    assert executor.reason is None
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)
        assert got[client].loss == pytest.approx(result.loss, rel=1e-4)


def test_clients_that_are_asked_different_things_get_their_own_answers(values: dict[str, Any]) -> None:
    """Those that are asked alike are surveyed as one: three surveys for four clients."""
    values["learner"] = {"name": "test_stack:AsksSomeMore"}
    experiment = make_experiment(load_config(values))
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2, 3], 2)
    AsksSomeMore.surveyed.clear()
    executor = stacked(experiment, 4)
    got = trained(experiment, executor, [0, 1, 2, 3], 2)
    assert executor.reason is None
    assert len(AsksSomeMore.surveyed) == 3
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)
        close(got[client].evidence, result.evidence)
        assert ("numbers" in result.evidence) == (client > 0)


@pytest.mark.parametrize(
    ("name", "why"), [("KeepsOnItself", "the learner itself"), ("Draws", "random numbers"), ("AddsToState", "adds")]
)
def test_what_a_step_must_not_do_costs_speed_and_nothing_else(values: dict[str, Any], name: str, why: str) -> None:
    values["learner"] = {"name": f"test_stack:{name}"}
    experiment = make_experiment(load_config(values))
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2], 2)
    executor = stacked(experiment, 3)
    with pytest.warns(UserWarning, match=why):
        got = trained(experiment, executor, [0, 1, 2], 2)
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)


@pytest.mark.parametrize("name", ["erm", "test_stack:WholeClients"])
def test_scores_are_those_of_client_after_client(values: dict[str, Any], name: str) -> None:
    values["learner"] = {"name": name}
    experiment = make_experiment(load_config(values))
    state = rounds.start(experiment)
    jobs = [rounds._job(experiment, state, k, 1) for k in range(4)]
    assert all(job.received is jobs[0].received for job in jobs)
    wanted = make_executor(experiment, CPU).scores(jobs, "score", 0.5)
    got = stacked(experiment, 2).scores(jobs, "score", 0.5)
    for client, look in wanted.items():
        assert got[client].score == pytest.approx(look.score, rel=1e-5)
        assert (got[client].probabilities is None) == (
            name != "erm"
        )  # a learner's own confidences have none behind them
        if look.probabilities is not None and got[client].probabilities is not None:
            close({"probabilities": got[client].probabilities}, {"probabilities": look.probabilities})


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
    partition = {"kind": "dirichlet", "clients": 6, "samples_per_client": 60, "min_size": 16}
    values |= {"data": {"name": "fashion-mnist-mini"}, "partition": partition, "learner": learner}
    values["run"]["executor"] = "sequential"
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


def test_batch_norm_sees_no_samples_that_were_added(values: dict[str, Any]) -> None:
    values |= {
        "partition": {"kind": "dirichlet", "clients": 4, "min_size": 8},
        "model": {"name": "test_rounds:bn_model"},
    }
    values["learner"] = {"name": "fednoil", "frac": 0.4}
    values["run"]["executor"] = "sequential"
    experiment = make_experiment(load_config(values))
    executor = stacked(experiment, 4)
    assert executor.mixes
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2, 3], 2)
    for client, result in trained(experiment, executor, [0, 1, 2, 3], 2).items():
        close(result.tensors, wanted[client].tensors)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=9),
    st.integers(0, 30),
    st.integers(1, 60),
    st.sampled_from([1, 8]),
)
def test_portions_cover_every_step_of_every_client(counts: list[int], start: int, length: int, most: int) -> None:
    stop = min(start + length, max(counts))
    portions = list(_portions(start, stop, counts, most)) if start < stop else []
    assert [s for first, last, _, _ in portions for s in range(first, last)] == list(range(start, stop))
    for first, last, busy, frozen in portions:
        assert last - first in (1, most)
        for step in range(first, last):
            assert all(count <= step for count in counts[busy:])
            assert frozen == any(count <= step for count in counts[:busy])


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
    values["learner"] = {"name": "test_stack:Nothing"}
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
    values["train"] |= {"lr_turn": "linear"}
    plain = make_experiment(load_config(values))
    wanted = trained(plain, make_executor(plain, CPU), [0, 1, 2, 3], 2)
    values["learner"] = {"name": "test_stack:CountsSteps"}
    experiment = make_experiment(load_config(values))
    for executor in (make_executor(experiment, CPU), stacked(experiment, 4)):
        for client, result in trained(experiment, executor, [0, 1, 2, 3], 2).items():
            close(result.tensors, wanted[client].tensors)
            assert result.loss == pytest.approx(wanted[client].loss, rel=1e-4)
            assert result.numbers == pytest.approx(wanted[client].numbers)
            assert result.evidence["seen"][0] == result.numbers["steps"]
            assert result.evidence["seen"][1] != 0
