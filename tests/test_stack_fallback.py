"""Steps that can't be stacked or captured: they cost speed and nothing else, and one warning says why."""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_stack import CPU, close, stacked, trained
from torch import Tensor
from torch.nn import functional as F

from fednoil import rounds, runner
from fednoil.config import load_config
from fednoil.errors import Diverged, Slower
from fednoil.executors.capture import Portion
from fednoil.executors.cuda import CudaGraphs
from fednoil.executors.sequential import Sequential
from fednoil.experiment import Experiment, make_bench, make_executor, make_experiment
from fednoil.learners.base import Client, Final, Nets, Phase, Turn
from fednoil.learners.erm import Erm
from fednoil.tensors import Tensors


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


class CountsItself(Erm):
    """Breaks the contract: a graph would repeat the first number."""

    calls = 0

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        self.calls += 1
        return super().step(nets, pool, batch, state, kind) * self.calls


class Remembers(Erm):
    """Breaks the contract: the last loss is on the object, in place."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.last = torch.zeros(())

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        loss = super().step(nets, pool, batch, state, kind)
        self.last.copy_(loss.detach())
        return loss


class Collects(Erm):
    """Breaks the contract: a list on the object grows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[str] = []

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        self.seen.append(kind)
        return super().step(nets, pool, batch, state, kind)


class OpensTheModule(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        decay = sum(p.detach().square().sum() for p in nets["model"].module.parameters())
        return super().step(nets, pool, batch, state, kind) + decay


class Looks(Erm):
    """Asks for a value on the host."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        loss = super().step(nets, pool, batch, state, kind)
        return loss * 2 if float(loss.detach()) > 1e9 else loss


class Lists(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * len(batch["labels"].tolist())


class Branches(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        loss = super().step(nets, pool, batch, state, kind)
        return loss * 2 if loss > 1e9 else loss


class Shrinks(Erm):
    """Has a shape that depends on values."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        first = batch["labels"] >= 0
        return F.cross_entropy(nets["model"](batch["images"])[first], batch["labels"][first])


def made(values: dict[str, Any], name: str, server: str = "fedavg") -> Experiment:
    values["learner"] = {"name": f"test_stack_fallback:{name}"}
    values["server"]["name"] = server
    return make_experiment(load_config(values))


@pytest.mark.parametrize("server", ["fedavg", "fedprox"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("KeepsOnItself", "init or plan changes the learner itself"),
        ("CountsItself", "step changes the learner itself"),
        ("Remembers", "step changes the learner itself"),
        ("Collects", "step changes the learner itself"),
        ("Draws", "random numbers"),
        ("AddsToState", "adds"),
        ("OpensTheModule", "no 'module': it can be called"),
    ],
)
def test_what_no_graph_can_do_runs_client_after_client(
    values: dict[str, Any], name: str, why: str, server: str
) -> None:
    """The same learner inside another (fedprox) is found out too."""
    wanted = trained(experiment := made(values, name, server), make_executor(experiment, CPU), [0, 1, 2], 2)
    executor = stacked(experiment := made(values, name, server), 3)
    with pytest.warns(Slower, match=f"clients run one after another, not as CUDA graphs: .*{why}") as caught:
        got = trained(experiment, executor, [0, 1, 2], 2)
    assert len(caught) == 1
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Looks", "waits for a value on the host"),
        ("Lists", "waits for a value on the host"),
        ("Branches", "shapes or branches that depend on values"),
        ("Shrinks", "shapes or branches that depend on values"),
    ],
)
def test_what_cannot_be_stacked_runs_each_client_alone(values: dict[str, Any], name: str, why: str) -> None:
    """On a GPU these can't be captured either; without graphs a step of one client can do all this."""
    experiment = made(values, name)
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2, 3], 2)
    executor, widths = stacked(experiment, 3), []
    play = executor.graphs.play

    def noted(portion: Portion) -> None:
        play(portion)
        widths.append(portion.rows.count)

    executor.graphs.play = noted  # type: ignore[method-assign]
    with pytest.warns(Slower, match=f"each client runs in its own CUDA graphs: its step .*{why}") as caught:
        got = trained(experiment, executor, [0, 1, 2, 3], 2)
    assert len(caught) == 1
    assert set(widths) == {1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(experiment, executor, [0, 1, 2, 3], 1)
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)
        assert got[client].loss == pytest.approx(result.loss, rel=1e-4)


def test_dropout_is_not_captured(values: dict[str, Any]) -> None:
    values["model"] = {"name": "test_rounds:dropout_model"}
    experiment = make_experiment(load_config(values))
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1], 2)
    with pytest.warns(UserWarning, match="not as CUDA graphs: the model has dropout"):
        executor = stacked(experiment, 2)
    for client, result in trained(experiment, executor, [0, 1], 2).items():
        close(result.tensors, wanted[client].tensors)


class Explodes(Erm):
    """The last step's loss is finite and what it does to the parameters is not."""

    def after(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        nets["model"].params.mul_(torch.where(batch["last"], torch.inf, 1.0))

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (phase,) = super().plan(nets, client, state, turn, epochs)
        last = torch.arange(phase.steps) + 1 == phase.steps
        return [Phase({**phase.tensors, "last": last & (client.id == 1)})]


def test_a_client_that_ends_in_no_numbers_is_named(values: dict[str, Any]) -> None:
    experiment = made(values, "Explodes")
    with pytest.raises(Diverged, match=r"client 1 in round 1 has loss [0-9]"):
        trained(experiment, stacked(experiment, 3), [0, 1, 2], 1)


class CountsTurns(Erm):
    """Goes on with the very tensor that the client has kept; from the second chunk of a turn on it can't be stacked."""

    def adapts(self, turn: Turn) -> bool:
        return True

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"steps": keep.get("steps", torch.zeros(()))}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        phases = super().plan(nets, client, state, turn, epochs)
        return [Phase(phase.tensors, "late" if epochs.start else "train") for phase in phases]

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        state["steps"].add_(1)
        loss = super().step(nets, pool, batch, state, kind)
        return loss if kind == "train" or float(loss.detach()) < 1e9 else 2 * loss

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(keep=dict(state))


def test_a_turn_leaves_what_was_kept_before_it_alone(values: dict[str, Any]) -> None:
    """It may be begun again, as here after a step that can't be stacked, or be stopped and end in a checkpoint."""
    experiment = made(values, "CountsTurns")
    state = rounds.start(experiment)
    jobs = [rounds.make_job(experiment, state, k, 2) for k in (0, 1)]
    jobs = [replace(job, keep={"steps": torch.tensor(10.0)}) for job in jobs]
    for executor in (make_executor(experiment, CPU), stacked(experiment, 2)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = executor.train(jobs)
        assert [float(job.keep["steps"]) for job in jobs] == [10, 10]
        assert [float(r.keep["steps"]) for r in results] == [10 + r.numbers["steps"] for r in results]


class Uneven(Erm):
    """Clients 0 and 2 train in two phases, client 1 in one."""

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        phases = super().plan(nets, client, state, turn, epochs)
        return phases if client.id == 1 else 2 * phases


def test_clients_with_fewer_phases_sit_out(values: dict[str, Any]) -> None:
    """Those beside a client that is through are no neighbours: client 1's networks are not theirs."""
    experiment = made(values, "Uneven")
    assert len({len(part) for part in experiment.setting.parts}) == 1  # seats in the order of the jobs
    wanted = trained(experiment, make_executor(experiment, CPU), [0, 1, 2], 2)
    for client, result in trained(experiment, stacked(experiment, 3), [0, 1, 2], 2).items():
        close(result.tensors, wanted[client].tensors)


def test_what_makes_a_run_slower_is_in_its_folder(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def executor(experiment: Experiment, device: torch.device) -> CudaGraphs:
        plain: Any = make_executor(experiment, device)
        return CudaGraphs(lambda: make_bench(experiment, device), plain.clients, plain.test_images, 2)

    monkeypatch.setattr(runner, "make_executor", executor)
    for name, slower in (("Draws", True), ("erm", False)):
        values["learner"] = {"name": f"test_stack_fallback:{name}" if slower else name}
        with pytest.warns(Slower) if slower else contextlib.nullcontext() as caught:
            runner.run(load_config(values), tmp_path / name, runner.Silent())
        noted = json.loads((tmp_path / name / "environment.json").read_text()).get("slower")
        assert noted == ({"round": 1, "reason": str(caught[-1].message)} if caught else None)


def test_any_executor_can_say_what_makes_it_slower(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sequential, "slower", "the clients are busy")
    runner.run(load_config(values), tmp_path / "r", runner.Silent())
    noted = json.loads((tmp_path / "r" / "environment.json").read_text())["slower"]
    assert noted == {"round": 1, "reason": "the clients are busy"}
