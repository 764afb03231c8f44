"""Stacked clients: one step for all of them means the same as client after client."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from test_gpu import CASES
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fednoil import rounds
from fednoil.config import load_config
from fednoil.executors.cuda import CudaGraphs
from fednoil.executors.local import Workbench
from fednoil.executors.sequential import Sequential
from fednoil.executors.stack import Rows
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.base import Client, Final, Nets, Phase, Role, Turn
from fednoil.learners.erm import Erm
from fednoil.learners.looks import confidences, logits_of
from fednoil.models.layers import Stacked
from fednoil.sampling.score import ByScore, ByScoreConfig
from fednoil.tensors import Tensors

CPU = torch.device("cpu")
BY_SCORE = ByScore(ByScoreConfig())
_NORMAL = (((0.5,), (0.25,)),)  # mean and standard deviation of a grey image


def stacked(experiment: Experiment, parallel: int) -> CudaGraphs:
    """The GPU's executor on the CPU, where its steps run one by one."""
    return CudaGraphs(
        lambda: make_executor(experiment, CPU).bench, make_executor(experiment, CPU).clients, torch.empty(0), parallel
    )


def trained(experiment: Experiment, executor: Any, clients: list[int], epochs: int) -> dict[int, Any]:
    state = rounds.start(experiment)
    jobs = [rounds.make_job(experiment, state, k, epochs) for k in clients]
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
    experiment = make_experiment(load_config(values))
    clients = list(range(experiment.setting.num_clients))
    wanted = trained(experiment, make_executor(experiment, CPU), clients, 5)  # FedNoiL has one step an epoch here
    executor = stacked(experiment, 3)
    got = trained(experiment, executor, clients, 5)
    assert executor.alone is None
    assert executor.reason is None
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)
        close(got[client].keep, result.keep)
        close(got[client].evidence, result.evidence)
        assert got[client].numbers == pytest.approx(result.numbers)
        assert got[client].loss == pytest.approx(result.loss, rel=1e-4)


class Noted(TorchDispatchMode):
    """The names of all operations that PyTorch comes down to."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(operation.overloadpacket.__name__)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", ["erm-plain", "fednoil", "dividemix"])
def test_deterministic_steps_add_nothing_by_index(
    values: dict[str, Any], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU such a sum, as in the gradient of PyTorch's mapped cross-entropy, copies from the host in deterministic
    runs, and the step couldn't be captured."""
    names, step = set[str](), Rows.step

    def noted(rows: Rows, *arguments: Any) -> None:
        with Noted(names):
            step(rows, *arguments)

    monkeypatch.setattr(Rows, "step", noted)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    test_stacked_clients_learn_as_alone(values, case)
    assert "_log_softmax" in names
    assert not names & {"scatter_add", "scatter_add_", "index_put", "index_put_", "index_add", "index_add_"}


@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "none"}, {"ignore_index": 1}, {"label_smoothing": 0.1}, {"weight": torch.tensor([1.0, 2, 3])}],
    ids=str,
)
def test_deterministic_cross_entropy_is_pytorchs(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 3, generator=generator).requires_grad_()
    labels = torch.tensor([[0, 1, 2, 2], [1, 0, options.get("ignore_index", -100), 1]])
    with Stacked():
        got = torch.vmap(lambda x, y: F.cross_entropy(x, target=y, **options))(logits, labels)
    wanted = torch.stack([F.cross_entropy(x, y, **options) for x, y in zip(logits, labels, strict=True)])
    close({"loss": got}, {"loss": wanted})
    weights = torch.rand(wanted.shape, generator=generator)
    found = [torch.autograd.grad(losses, logits, weights)[0] for losses in (got, wanted)]
    close({"gradient": found[0]}, {"gradient": found[1]})


@pytest.mark.parametrize("label", [-1, 3])
def test_deterministic_cross_entropy_of_a_label_that_is_no_class_is_nan(
    label: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch raises; a graph can't, and a loss without the label's logit would look like any other."""
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with Stacked():
        found = F.cross_entropy(torch.zeros(3, 3), torch.tensor([0, label, -100]), reduction="none")
    assert found.isnan().tolist() == [False, True, False]


def test_stacked_clients_have_the_rate_of_their_round(values: dict[str, Any]) -> None:
    """In the third of four rounds it is a third of the first one's and a bit."""
    values["train"] |= {"lr_rounds": "linear"}
    experiment = make_experiment(load_config(values))
    state = replace(rounds.start(experiment), round_idx=2)
    jobs = [rounds.make_job(experiment, state, k, 2) for k in range(3)]
    wanted = make_executor(experiment, CPU).train(jobs)
    for got, alone in zip(stacked(experiment, 3).train(jobs), wanted, strict=True):
        close(got.tensors, alone.tensors)
    first = make_executor(experiment, CPU).train([rounds.make_job(experiment, rounds.start(experiment), 0, 2)])
    steps = [sum(float((r.tensors[n] - jobs[0].received[n]).norm()) for n in r.tensors) for r in (first[0], wanted[0])]
    assert steps[1] < 0.6 * steps[0]


def test_a_plan_sees_the_networks_of_its_own_client(values: dict[str, Any]) -> None:
    """APFL plans by the gradient of α at the first batch, which goes through what each client has kept."""
    values |= {"server": {"name": "apfl"}, "learner": {"name": "erm"}}
    experiment = make_experiment(load_config(values))
    state = rounds.start(experiment)
    jobs = [rounds.make_job(experiment, state, client, 2) for client in range(experiment.setting.num_clients)]
    first = make_executor(experiment, CPU).train(jobs)
    jobs = [replace(job, keep=result.keep) for job, result in zip(jobs, first, strict=True)]
    wanted = make_executor(experiment, CPU).train(jobs)
    for got, result in zip(stacked(experiment, len(jobs)).train(jobs), wanted, strict=True):
        assert float(got.keep["alpha"]) == pytest.approx(float(result.keep["alpha"]), abs=1e-6)


class OwnLinear(nn.Linear):
    """Casts its input by itself: a CPU's autocast does nothing under vmap."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1).to(self.weight.dtype), self.weight) + self.bias


def half_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    return OwnLinear(image_shape[0] * image_shape[1] * image_shape[2], num_classes)


class Moves(Erm):
    """Changes parameters after the optimiser."""

    def after(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        nets["model"].params.mul_(0.9)


@pytest.mark.parametrize(("server", "learner"), [("fedavg", "erm"), ("fedprox", "erm"), ("fedavg", "test_stack:Moves")])
def test_half_precision_means_the_same_too(values: dict[str, Any], server: str, learner: str) -> None:
    """Weights are cast once and their copies kept up to date, with hooks and without."""
    values |= {"server": {"name": server}, "learner": {"name": learner}, "model": {"name": "test_stack:half_model"}}
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
    assert stack.half.shape == (3, 64 * 4)  # the weights and not the bias
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
        return super().step(nets, pool, batch, state, kind) * (
            1 + net.memory["momentum"].abs().mean() + net.grads.sum()
        )


class ReadsParameters(Erm):
    """A term on `params` has no gradient, on any executor."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) + nets["model"].params.square().sum()


class WritesItsBatch(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        batch["logits"] = nets["model"](batch["images"])
        return F.cross_entropy(batch["logits"], batch["labels"])


class Fills(Erm):
    """Makes a table at its first step, for all others; it trains in two phases."""

    table: Tensor | None = None

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return 2 * super().plan(nets, client, state, turn, epochs)

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(1, 2, 4)
        return (self.table[batch["labels"]] * F.cross_entropy(nets["model"](batch["images"]), batch["labels"])).mean()


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
        seen = confidences(logits_of(self, nets, client), client.labels, 1.0)
        if "numbers" in asked:
            return {"seen": seen + asked["numbers"].view(len(client), -1).sum(1), "numbers": asked["numbers"]}
        return {"seen": seen}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * state["seen"].mean()

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(evidence=dict(state))


@pytest.mark.parametrize("name", ["ReadsMomentum", "ReadsParameters", "WritesItsBatch", "Fills"])
def test_what_a_step_may_do_means_the_same(values: dict[str, Any], name: str) -> None:
    values["learner"] = {"name": f"test_stack:{name}"}
    experiment = make_experiment(load_config(values))
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2], 2)
    executor = stacked(experiment := make_experiment(load_config(values)), 3)
    got = trained(experiment, executor, [0, 1, 2], 2)
    assert executor.alone is executor.reason is None
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


def test_scores_are_those_of_client_after_client(values: dict[str, Any]) -> None:
    experiment = make_experiment(load_config(values))
    state = rounds.start(experiment)
    jobs = [rounds.make_job(experiment, state, k, 1) for k in range(4)]
    assert all(job.received is jobs[0].received for job in jobs)
    wanted = make_executor(experiment, CPU).scores(jobs, BY_SCORE)
    got = stacked(experiment, 2).scores(jobs, BY_SCORE)
    for client, look in wanted.items():
        assert got[client].score == pytest.approx(look.score, rel=1e-5)
        close({"logits": got[client].logits}, {"logits": look.logits})


@pytest.mark.parametrize("own", ["received", "keep"])
def test_scores_are_those_of_each_client_s_own_networks(values: dict[str, Any], own: str) -> None:
    """Of what it received, as in clusters, or of what it has kept of a network that doesn't cross."""
    values["learner"] = {"name": "erm" if own == "received" else "test_stack:Keeps"}
    experiment = make_experiment(load_config(values))
    state = rounds.start(experiment)
    jobs = [rounds.make_job(experiment, state, k, 1) for k in range(4)]
    other = {name: 2 * tensor for name, tensor in jobs[0].received.items()}
    jobs[2] = replace(jobs[2], **{own: other if own == "received" else _renamed(other)})
    wanted = make_executor(experiment, CPU).scores(jobs, BY_SCORE)
    same = make_executor(experiment, CPU).scores([replace(jobs[2], received=jobs[0].received, keep={})], BY_SCORE)
    assert wanted[2].score != pytest.approx(same[2].score, rel=1e-3)
    got = stacked(experiment, 4).scores(jobs, BY_SCORE)
    assert {k: look.score for k, look in got.items()} == pytest.approx({k: w.score for k, w in wanted.items()})


class Keeps(AsksSomeMore):
    """Predicts, and surveys, with a network that stays with the client."""

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("model"), Role("own", shared=False, kept=True))

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        return nets["own"](images)


def test_surveys_that_are_a_client_s_own_are_not_put_together(values: dict[str, Any]) -> None:
    values["learner"] = {"name": "test_stack:Keeps"}
    experiment = make_experiment(load_config(values))
    state = rounds.start(experiment)
    jobs = [rounds.make_job(experiment, state, k, 2) for k in range(4)]
    own = [_renamed({n: (1 + job.client) * t for n, t in job.received.items()}) for job in jobs]
    jobs = [replace(job, keep=keep) for job, keep in zip(jobs, own, strict=True)]
    wanted = make_executor(experiment, CPU).train(jobs)
    for got, result in zip(stacked(experiment, 4).train(jobs), wanted, strict=True):
        close(got.tensors, result.tensors)
        close(got.evidence, result.evidence)


def _renamed(tensors: Tensors) -> Tensors:
    return {name.replace("model/", "own/"): tensor for name, tensor in tensors.items()}
