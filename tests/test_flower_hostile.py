"""Nodes that lie: whatever one sends, it loses its own place or round and harms nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from loop_grid import LoopGrid, federate, partitions

from fednoil.config import load_config, to_toml
from fednoil.data import SITES
from fednoil.experiment import make_experiment
from fednoil.flower.members import Members
from fednoil.flower.messages import (
    HELLO,
    HELLO_ORDER,
    PROTOCOL,
    Body,
    Form,
    clean,
    content_bytes,
    model_arrays,
    pack,
    unpack,
)
from fednoil.flower.wire import Lost, Wire
from fednoil.tensors import read_tensors

Values = dict[str, Any]
LIAR = 898  # client 2 of four


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


INTRODUCTIONS: list[tuple[str, str, Any]] = [
    ("numbers", "mean", [1e300]),
    ("numbers", "std", [1e300]),
    ("numbers", "std", [0.0]),
    ("numbers", "samples", 10**12),
    ("numbers", "samples", 0),
    ("numbers", "held_out", 10**12),
    ("values", "client", ""),
    ("values", "client", "x" * 65),
    ("values", "client", "a\nb"),
    ("values", "classes", [""]),
    ("values", "classes", []),
    ("values", "classes", ["x" * 201]),
    ("values", "classes", ["0", "1", "1"]),
    ("values", "classes", [str(i) for i in range(10_001)]),
    ("values", "shape", []),
    ("values", "shape", [2, 8, 8]),
    ("values", "shape", [1, 8, 10**9]),
]


def test_an_impossible_introduction_is_refused(
    federated: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three honest nodes and one liar for each lie; those who share a name are distinguished."""
    nodes = partitions(tmp_path / "state")
    honest = nodes.pop(LIAR)
    liars = {100 + number: lie for number, lie in enumerate(INTRODUCTIONS)}
    nodes |= {number: {**honest, "state": str(tmp_path / str(number))} for number in liars}

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if node in liars and order.metadata.message_type == "query.hello":
            record, key, value = liars[node]
            reply.content[record][key] = value  # type: ignore[index]
        return reply

    federated["federation"]["min_nodes"] = 3
    federated["train"]["rounds"] = 1
    (first,) = federate(federated, tmp_path / "run", LoopGrid(nodes, spoil))
    assert first["nodes"] == ["client-0", "client-1", "client-3"]
    names = {f"node {k}" if key == "client" else f"client-2 (node {k})": key for k, (_, key, _) in liars.items()}
    assert set(first["refused"]) == set(names)
    for name, key in names.items():
        assert first["refused"][name].startswith("its introduction is invalid: "), key
        assert any(text.startswith(f"{name.partition(' (')[0]} is refused: its intro") for text in said(caplog)), key


def test_a_billion_samples_take_no_memory(experiment: Any) -> None:
    from fednoil.setting import Sites

    sites = Sites.of(experiment.setting.dataset, ["a"], [10**12])
    assert len(sites.parts[0]) == 10**12


def test_a_name_has_one_number_and_a_number_one_name(
    federated: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = partitions(tmp_path / "state")
    nodes[LIAR]["client-id"] = "client-0"
    federated["federation"]["min_nodes"] = 3
    federated["train"]["rounds"] = 2
    records = federate(federated, tmp_path / "run", LoopGrid(nodes))
    assert any("is refused: its client-id 'client-0' is that of client" in text for text in said(caplog))
    assert [len(record["nodes"]) for record in records] == [3, 3]
    (reason,) = {record["refused"]["client-0"] for record in records}  # reported in every round without it
    assert reason.startswith("its client-id 'client-0' is that of client")


@pytest.mark.parametrize("loss", [-1.0, 1e5])
def test_every_failure_of_a_node_is_reported(loss: float, federated: Values, tmp_path: Path) -> None:
    """Neither its score nor its evaluation is sound; the record has both."""
    from test_flower_sites import site_nodes, sites

    data = sites(tmp_path)
    federated |= {"data": {"name": SITES}, "noise": {}}
    federated["train"]["rounds"] = 1

    def spoil(node: int, order: Message, reply: Message) -> Message:
        kind = order.metadata.message_type
        if node == 10 and kind in ("query.score", "evaluate"):
            reply.content["numbers"]["score" if kind == "query.score" else "loss"] = loss  # type: ignore[index]
        return reply

    (first,) = federate(federated, tmp_path / "run", LoopGrid(site_nodes(tmp_path, data), spoil))
    score, evaluation = first["failed"]["a"].split("; ")
    assert score.startswith(f"score: a score of {loss:g} ")
    assert evaluation.startswith(f"evaluate: a loss of {loss:g} ")
    assert list(first["held_out"]) == ["b"]
    assert first["refused"] == {}


Spoilt = Callable[[Message, Form], None]


def _arrays(change: Callable[[str, torch.Tensor], None]) -> Spoilt:
    def spoilt(reply: Message, form: Form) -> None:
        arrays = unpack(form, RecordDict({"model": reply.content["model"]})).arrays
        for name, array in arrays.items():
            change(name, array)
        reply.content["model"] = pack(form, Body(arrays))["model"]

    return spoilt


def _more(reply: Message, form: Form) -> None:
    reply.content["values"] = ConfigRecord({"empty": "", "none": []})


def _control(reply: Message, form: Form) -> None:
    reply.content["numbers"] = MetricRecord({"\x1b[2J\n" + "x" * 10_000: 1.0})


def _negative(name: str, array: torch.Tensor) -> None:
    if name.endswith("running_var"):
        array.view(-1)[0] = -1e-3


@pytest.mark.parametrize(
    ("kind", "bad", "reason"),
    [
        ("train", _more, "has values, which was not asked for"),
        ("train", _control, "numbers: lacks samples"),
        ("train", _arrays(_negative), "a variance below 0"),
        ("score", _more, "has values, which was not asked for"),
    ],
)
def test_a_bad_reply_is_dropped(kind: str, bad: Spoilt, reason: str, federated: Values, tmp_path: Path) -> None:
    federated["sampling"]["fraction"] = 1.0
    federated["train"]["rounds"] = 1
    federated["model"] = {"name": "resnet18", "width": 2} if reason.startswith("a variance") else federated["model"]
    form = Form(model_arrays(make_experiment(load_config(federated)).initial_model()))

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if node == LIAR and order.metadata.message_type.endswith(kind):
            bad(reply, form)
        return reply

    (first,) = federate(federated, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    assert first["trained"] == ["client-0", "client-1", "client-3"]
    assert reason in first["failed"]["client-2"]
    assert len(first["failed"]["client-2"]) < 330
    assert first["failed"]["client-2"].isprintable()
    assert all(bool(torch.isfinite(t).all()) for t in read_tensors(tmp_path / "run" / "model.safetensors").values())


def test_a_mean_that_is_no_number_keeps_the_model(
    federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from fednoil.servers.fedavg import FedAvg

    plain = FedAvg.aggregate

    def overflow(self: Any, state: Any, round_idx: int, updates: Any) -> Any:
        after = plain(self, state, round_idx, updates)
        return replace(
            after, tensors={n: t * float("inf") if t.is_floating_point() else t for n, t in after.tensors.items()}
        )

    monkeypatch.setattr(FedAvg, "aggregate", overflow)
    federated["train"]["rounds"] = 2
    records = federate(federated, tmp_path / "run")
    assert [record["kept"] for record in records] == [True, True]
    assert all(bool(torch.isfinite(t).all()) for t in read_tensors(tmp_path / "run" / "model.safetensors").values())


@pytest.mark.parametrize("offline", [True, False])
def test_a_refused_node_may_come_back(
    offline: bool, federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again once it was away, or after a while; a pause that never ends keeps it out."""
    monkeypatch.setattr("fednoil.flower.members._AGAIN", (1e9, 1e9) if offline else (0.0, 0.0))
    federated["federation"]["min_nodes"] = 3
    grid = LoopGrid(partitions(tmp_path / "state"))
    right = grid.nodes[LIAR]
    grid.nodes[LIAR] = {**right, "partition-id": 9}

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "train" and order.metadata.group_id == "1" and offline:
            grid.nodes.pop(LIAR, None)
        if order.metadata.message_type == "train" and order.metadata.group_id == "2":
            grid.nodes[LIAR] = right
        return reply

    grid.spoil = spoil
    records = federate(federated, tmp_path / "run", grid)
    assert [len(record["nodes"]) for record in records] == [3, 3, 4, 4]


def test_a_node_that_is_refused_again_waits_longer(federated: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 s, 60 s, 120 s, and half an hour at most."""
    monkeypatch.setattr("fednoil.flower.members.time", SimpleNamespace(monotonic=lambda: 1000.0))
    members, pauses = Members(Wire(LoopGrid({}), 1.0), load_config(federated), 4), []
    for _ in range(9):
        members._refuse(LIAR, "liar", "its partition-id is not possible", True)
        pauses.append(members._refused[LIAR].again - 1000)
    assert pauses == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]


def test_a_lost_node_is_not_refused(federated: Values, tmp_path: Path) -> None:
    """The SuperLink says four times that it is not there."""
    lost = [LIAR] * 4

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if node in lost and order.metadata.message_type == "query.hello":
            lost.remove(node)
            failure = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=order)
            failure.metadata.__dict__["_reply_to_message_id"] = order.metadata.message_id
            return failure
        return reply

    federated["federation"]["wait"] = 20
    federated["train"]["rounds"] = 1
    (first,) = federate(federated, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    assert len(first["nodes"]) == 4


def test_a_silent_newcomer_holds_the_others_up_for_a_moment(
    federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has as long as an introduction takes, not as long as training may."""
    monkeypatch.setattr("fednoil.flower.members._HELLO", 0.2)
    federated["federation"] |= {"timeout": 5, "min_nodes": 3}
    federated["train"]["rounds"] = 2

    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        return None if node == LIAR else reply

    grid = LoopGrid(partitions(tmp_path / "state"), spoil)
    records = federate(federated, tmp_path / "run", grid)
    assert [len(record["nodes"]) for record in records] == [3, 3]
    lasts = {message.metadata.message_type: message.metadata.ttl for message in grid.sent}
    assert lasts["query.hello"] == pytest.approx(lasts["train"] - 4.8)


class HalfDeaf(LoopGrid):
    """Takes no message for the liar."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return super().push_messages([m for m in messages if m.metadata.dst_node_id != LIAR])


def test_the_wire_counts_bytes_and_knows_whom_it_could_not_reach(federated: Values, tmp_path: Path) -> None:
    order = pack(HELLO_ORDER, Body(values={"protocol": PROTOCOL, "config": to_toml(load_config(federated))}))
    wire = Wire(HalfDeaf(partitions(tmp_path)), 1.0)
    replies = wire.ask(HELLO, 0, {900: order, 899: order, LIAR: order})
    assert isinstance(replies[LIAR], Lost)
    assert replies[LIAR] == "could not be reached"
    answers = [reply for node, reply in replies.items() if node != LIAR]
    assert wire.bytes_up == sum(content_bytes(answer) for answer in answers if isinstance(answer, RecordDict)) > 0
    assert wire.bytes_down == 3 * content_bytes(order)


def test_what_a_node_says_is_one_short_line() -> None:
    assert clean("a\x1b[31m\r\nb\u202e  c") == "a [31m b c"
    assert len(clean("x" * 10**6)) == 300


def test_bytes_are_counted_as_flower_does_and_of_empty_values_too() -> None:
    content = RecordDict(
        {"n": MetricRecord({"a": 1, "b": [0.5, 1.5]}), "v": ConfigRecord({"s": "text", "t": ["a", "bc"], "y": True})}
    )
    assert content_bytes(content) == sum(record.count_bytes() for record in content.values())
    assert content_bytes(RecordDict({"v": ConfigRecord({"abc": "", "d": []})})) == 4
