"""What methods in stages are made of: reviews, what clients hear, labels they correct, who may train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fednoil import rounds
from fednoil.config import load_config
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.base import LABELS, Client, Final, Learner, Nets, Turn
from fednoil.learners.capabilities import Wrapped
from fednoil.servers.base import Server, ServerState
from fednoil.tensors import Numbers, Tensors
from fednoil.testing import NotConforming, check_server


class Relabels(Wrapped):
    """Moves every label by one at each review, and reports the first."""

    def __init__(self, inner: Learner) -> None:
        super().__init__(inner)
        self.reports, self.sends = ("first",), ("seen",)

    def review(self, logits: Tensor, client: Client, keep: Tensors, turn: Turn) -> Final:
        labels = (client.labels + 1) % self.task.num_classes
        return Final(numbers={"first": float(client.labels[0])}, keep={LABELS: labels})

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return replace(self.inner.final(nets, client, state, turn), numbers={"seen": float(client.labels[0])})


class Stages(Server):
    """A review before rounds 2 and 3, of which the clients hear; the last client trains alone in round 3."""

    def wrap(self, learner: Learner) -> Learner:
        return Relabels(learner)

    def reviews(self, state: ServerState, round_idx: int) -> bool:
        return round_idx > 1

    def reviewed(self, state: ServerState, round_idx: int, answers: Mapping[int, Numbers]) -> ServerState:
        return replace(state, values={f"round {round_idx}": [n["first"] for n in answers.values()], **state.values})

    def signals(self, state: ServerState, client: int, round_idx: int) -> Numbers:
        return {"stage": float(len(state.values))}

    def chances(self, state: ServerState, round_idx: int, clients: Sequence[int]) -> Sequence[float] | None:
        return [float(k == clients[-1]) for k in clients] if round_idx == 3 else None

    def most(self, state: ServerState, round_idx: int) -> int | None:
        return 2 if round_idx == 2 else None


def test_stages_keep_the_contract() -> None:
    check_server(Stages, learners=["erm", "fednoil"])


def played(experiment: Experiment, count: int) -> tuple[rounds.RunState, list[Any]]:
    executor, state, records = make_executor(experiment, torch.device("cpu")), rounds.start(experiment), []
    for _ in range(count):
        state, record = rounds.play(experiment, executor, state)
        records.append(record)
    return state, records


def test_clients_train_on_the_labels_they_have_corrected(values: dict[str, Any]) -> None:
    values |= {"server": {"name": f"{__name__}:Stages"}, "sampling": {"fraction": 1.0}}
    experiment = make_experiment(load_config(values))
    given = [torch.from_numpy(labels) for labels in experiment.setting.labels.given]
    state, records = played(experiment, 3)
    for client, labels in enumerate(given):
        assert torch.equal(state.keep[client][LABELS], (labels + 2) % 4)  # those who trained in between, too
    assert state.server.values["round 2"] == [float(labels[0]) for labels in given]
    assert state.server.values["round 3"] == [float((labels[0] + 1) % 4) for labels in given]
    assert [len(record.selected) for record in records] == [4, 2, 1]
    assert records[2].selected == [3]


def test_an_answer_that_is_not_declared_is_found() -> None:
    class Talks(Relabels):
        def review(self, logits: Tensor, client: Client, keep: Tensors, turn: Turn) -> Final:
            return Final(numbers={"first": 0.0, "second": 1.0})

    class Asks(Stages):
        def wrap(self, learner: Learner) -> Learner:
            return Talks(learner)

    Asks.__qualname__ = "Asks"
    globals()["Asks"] = Asks
    with pytest.raises(NotConforming, match=r"a review's numbers are \['first', 'second'\], but .* \['first'\]"):
        check_server(Asks, learners=["erm"])


def test_a_node_asked_again_begins_from_what_it_had(tmp_path: Path) -> None:
    """A review that is asked for again, after the server was stopped, begins from the same labels."""
    pytest.importorskip("flwr")
    from fednoil.flower.state import NodeState

    state = NodeState(tmp_path, "a" * 32)
    state.save_keep(1, {"x": torch.tensor(1)}, 5)
    state.save_review(2, {"x": torch.tensor(2)}, 5)
    assert state.keep_before(2)["x"] == 1
    assert state.keep_of(2)["x"] == 2
    assert state.keep_before(3)["x"] == 2
    state.save_keep(2, {"x": torch.tensor(3)}, 5)
    assert state.keep_of(2)["x"] == 2
    assert state.keep_before(3)["x"] == 3
    assert state.keep_of(4)["x"] == 3
