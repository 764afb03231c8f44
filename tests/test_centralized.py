"""Training on the pooled data: one client with everybody's noisy samples, which never restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same
from made_labels import true_labels
from torch import nn

from fednoil import rounds
from fednoil.augment import weak
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners import LEARNERS
from fednoil.learners.base import Client, Final, Nets, Turn
from fednoil.learners.erm import Erm
from fednoil.records.checkpoint import Checkpoints
from fednoil.tensors import Tensors

CPU = torch.device("cpu")


def play(values: dict[str, Any], count: int, folder: Path | None = None) -> tuple[rounds.RunState, Any]:
    """The state after some rounds and the last record; through a checkpoint after each if there is a folder."""
    experiment = make_experiment(load_config(values))
    executor, state, record = make_executor(experiment, CPU), rounds.start(experiment), None
    for _ in range(count):
        state, record = rounds.play(experiment, executor, state)
        if folder is not None:
            Checkpoints(folder, {}).save(state)
            state = Checkpoints(folder, {}).load()
    return state, record


def test_the_pool_is_the_federations_samples_with_their_labels(values: dict[str, Any]) -> None:
    federation = make_experiment(load_config(values)).setting
    values["server"] = {"name": "centralized"}
    pooled = make_experiment(load_config(values)).setting
    assert pooled.num_clients == 1
    assert np.array_equal(pooled.parts[0], np.concatenate(federation.parts))
    assert np.array_equal(pooled.labels.given[0], np.concatenate(federation.labels.given))
    assert np.array_equal(true_labels(pooled.truth)[0], np.concatenate(true_labels(federation.truth)))


def test_unknown_truth_stays_unknown(values: dict[str, Any]) -> None:
    values |= {"server": {"name": "centralized"}, "noise": {"kind": "unknown"}}
    assert not make_experiment(load_config(values)).setting.truth.known


def test_rounds_are_one_plain_training(values: dict[str, Any]) -> None:
    """Three rounds of two epochs are six epochs of torch.optim.SGD with one momentum, BatchNorm statistics included."""
    values |= {"server": {"name": "centralized"}, "model": {"name": "test_rounds:bn_model"}}
    values["train"]["momentum"] = 0.9
    state, record = play(values, 3)
    experiment = make_experiment(load_config(values))
    client = make_executor(experiment, CPU).clients[0]
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
    module = experiment.build_model("model")
    sgd = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for r in (1, 2, 3):
        turn = Turn(r, 2, experiment.seed.child("round", r, "client", 0))
        (phase,) = experiment.learner.plan({}, client, {}, turn, range(2))
        for s in range(phase.steps):
            images = weak(client.pool, phase.tensors["index"][s], phase.tensors["weak"][s])
            sgd.zero_grad()
            logits = module((images.float() / 255 - mean) / std)
            nn.functional.cross_entropy(logits, phase.tensors["labels"][s]).backward()
            sgd.step()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(state.server.tensors[f"model/{name}"], tensor, rtol=1e-4, atol=1e-5)
    assert record.selected == [0]
    assert record.bytes_up == record.bytes_down == 0


def test_momentum_lasts_where_a_federations_is_renewed(values: dict[str, Any]) -> None:
    """The same one client under both: alike in the first round, and no longer in the second."""
    values |= {"partition": {"clients": 1}, "noise": {"kind": "none"}}
    tensors = {}
    for name in ("fedavg", "centralized"):
        values["server"] = {"name": name}
        tensors[name] = play(values, 1)[0].server.tensors, play(values, 2)[0].server.tensors
    assert_same(tensors["fedavg"][0], tensors["centralized"][0])
    assert not torch.equal(tensors["fedavg"][1]["model/head.weight"], tensors["centralized"][1]["model/head.weight"])


def test_the_mean_teacher_goes_on(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednoil.learners.josrc.Josrc.ema", 1.0)
    values |= {"server": {"name": "centralized"}, "learner": {"name": "josrc", "warmup": 0}}
    experiment = make_experiment(load_config(values))
    first = experiment.initial_model()
    state, _ = play(values, 2)
    # With ema 1 the teacher never moves: it is the very first model still, where a federation's would be renewed.
    for name, tensor in first.items():
        assert torch.equal(state.keep[0][name.replace("model/", "teacher/")], tensor)
    assert not torch.equal(state.server.tensors["model/head.weight"], first["model/head.weight"])


class Counts(Erm):
    """Remembers how many turns it had."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return super().init(nets, client, keep, turn) | {"turns": keep.get("turns", torch.zeros(())) + 1}

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return replace(super().final(nets, client, state, turn), keep={"turns": state["turns"]})


def test_what_a_learner_of_ones_own_keeps_lasts_too(values: dict[str, Any]) -> None:
    values |= {"server": {"name": "centralized"}, "learner": {"name": "test_centralized:Counts"}}
    keep = play(values, 3)[0].keep[0]
    assert keep["turns"] == 3
    assert any(name.startswith("momentum of ") for name in keep)


@pytest.mark.parametrize("learner", LEARNERS)
def test_it_resumes_identically(values: dict[str, Any], learner: str, tmp_path: Path) -> None:
    values |= {"server": {"name": "centralized"}, "learner": {"name": learner}}
    values["learner"] |= {"warmup": 1} if learner in ("dividemix", "josrc") else {}
    values["schedule"]["epochs"] = 1
    (straight, a), (stopped, b) = play(values, 3), play(values, 3, tmp_path)
    assert_same(straight.server.tensors, stopped.server.tensors)
    assert_same(straight.keep[0], stopped.keep[0])
    assert any(name.startswith("momentum of ") for name in straight.keep[0])
    assert a.test_accuracy == b.test_accuracy


def test_a_choice_of_clients_is_refused() -> None:
    with pytest.raises(UserError, match=r"sampling\.name = 'score': .*chooses none; set it to 'uniform'"):
        load_config({"server": {"name": "centralized"}, "sampling": {"name": "score"}})
