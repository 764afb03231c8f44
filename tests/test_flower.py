"""A federation of nodes in this process, message for message: equal to the simulator, and unharmed by bad replies."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from conftest import assert_same
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from loop_grid import LoopGrid, federate, partitions

from fednoil.api import compare
from fednoil.config import load_config, to_toml
from fednoil.errors import UserError
from fednoil.executors.local import Workbench
from fednoil.experiment import make_experiment
from fednoil.flower.messages import BadMessage, Body, Form, model_arrays, objects_of, pack, unpack
from fednoil.flower.server import Assignment, check_trained, play
from fednoil.flower.state import NodeState
from fednoil.learners import LEARNERS, fednoil_plus
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent, run
from fednoil.servers import SERVERS
from fednoil.tensors import read_tensors

Values = dict[str, Any]


def assert_same_model(a: Path, b: Path) -> None:
    left, right = read_tensors(a / "model.safetensors"), read_tensors(b / "model.safetensors")
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def as_simulated(values: Values, folder: Path) -> list[Values]:
    """The records of a federation, which ends with the simulator's weights."""
    config = load_config(values)
    run(config, folder / "simulated", Silent())
    records = federate(config, folder / "federated")
    assert_same_model(folder / "simulated", folder / "federated")
    return records


# Every server and every learner crosses the wire once; any server with any learner is tests/test_conformance.py's part.
_LONGER = max(len(SERVERS), len(LEARNERS))
PAIRS = list(itertools.islice(zip(itertools.cycle(SERVERS), itertools.cycle(LEARNERS), strict=True), _LONGER))


def test_labels_are_set_aside_as_by_the_simulator(
    federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fednoil_plus, "_FEW", 1)
    monkeypatch.setattr(fednoil_plus, "_ASIDE", 0.25)
    federated["learner"] = {"name": "fednoil-plus"}
    as_simulated(federated, tmp_path)


@pytest.mark.parametrize(
    ("section", "keys"),
    [("server", {"average": 0.5}), ("train", {"lr_rounds": "cosine", "optimizer": "adamw", "lr": 0.01})],
    ids=["average over rounds", "rates"],
)
def test_other_keys_mean_what_they_mean_to_the_simulator(
    section: str, keys: Values, federated: Values, tmp_path: Path
) -> None:
    federated[section] |= keys
    as_simulated(federated, tmp_path)


@pytest.mark.parametrize(("server", "learner"), PAIRS)
def test_a_federation_ends_with_the_simulators_weights(
    server: str, learner: str, federated: Values, tmp_path: Path
) -> None:
    federated |= {"server": {"name": server}, "learner": {"name": learner}}
    if SERVERS[server].pools:
        federated["sampling"]["name"] = "uniform"
    records = as_simulated(federated, tmp_path)
    lines = (tmp_path / "simulated" / "rounds.jsonl").read_text().splitlines()
    for ours, line in zip(records, lines, strict=True):
        theirs = json.loads(line)
        assert ours["selected"] == theirs["selected"]
        assert ours.get("client_scores") == theirs.get("client_scores")
        assert ("client_scores" in ours) != SERVERS[server].pools
        assert ours["failed"] == {}
        if server != "apfl":  # whose clients' own models are on the nodes
            assert ours["test_accuracy"] == theirs["test_accuracy"]
        assert "mean_alpha" not in ours
    assert compare(tmp_path / "federated").rows[0]["finished"]


def test_the_run_folder_says_how_it_was_made(federated: Values, tmp_path: Path) -> None:
    """The command is the user's, not that of the process which Flower has started."""
    federated["train"]["rounds"] = 1
    command, origin = ["fednoil", "federation", "run", "demo"], {"preset": "demo", "set": ["train.rounds=1"]}
    text = {"command": json.dumps(command), "origin": json.dumps(origin)}
    assignment = Assignment(to_toml(load_config(federated)), str(tmp_path / "run"), **text)
    play(LoopGrid(partitions(tmp_path / "state")), assignment)
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["command"] == command
    assert environment["origin"] == origin
    assert environment["packages"]["flwr"] == version("flwr")


def test_nothing_but_the_allowed_leaves_a_node(federated: Values, tmp_path: Path) -> None:
    """Every message of a run, against a list of what FedNoiL sends, written down here once more."""
    federated["federation"] |= {"audit": True}
    federated["learner"] = {"name": "fednoil"}
    config, grid = load_config(federated), LoopGrid(partitions(tmp_path / "state"))
    federate(config, tmp_path / "run", grid)
    model = make_experiment(config).initial_model()
    shapes = {"float32": ("float32", (sum(t.numel() for t in model.values()),))}
    allowed = {
        "query.hello": {"numbers": {"samples", "held_out", "counts", "mean", "std"},
                        "values": {"client", "version", "partition", "classes", "shape", "columns"}},
        "query.score": {"numbers": {"score"}},
        "query.audit": {"numbers": {"noise_ratio"}},
        "train": {"model": {"float32"}, "numbers": {"samples", "steps"}},
    }  # fmt: skip
    kinds = set()
    for _, reply in grid.replies:
        kind = reply.metadata.message_type
        kinds.add(kind)
        assert {name: set(record) for name, record in reply.content.items()} == allowed[kind]
        for record in reply.content.array_records.values():
            assert {name: (a.dtype, tuple(a.shape)) for name, a in record.items()} == shapes
        for record in reply.content.metric_records.values():
            assert all(isinstance(v, int | float) or (len(v) <= 1 and kind == "query.hello") for v in record.values())
    assert kinds == set(allowed)
    assert len(grid.replies) == len(grid.sent) == 4 + 4 * (4 + 2) + 4


def test_arrays_of_one_type_travel_together_and_come_back_as_they_were() -> None:
    tensors = {
        "b/weight": torch.arange(6.0).reshape(2, 3),
        "b/batches": torch.tensor(7),
        "a/bias": torch.tensor([-1.0, 0.5]),
        "a/none": torch.empty(0, 4),
    }
    form = Form(model_arrays(tensors))
    content = pack(form, Body(tensors))
    record = content["model"]
    assert isinstance(record, ArrayRecord)
    assert {name: array.numpy().tolist() for name, array in record.items()} == {
        "float32": [-1.0, 0.5, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        "int64": [7],
    }
    found = unpack(form, content).arrays
    assert list(found) == list(tensors)
    assert_same(found, tensors)
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values() if tensor.numel()}) == 3
    message = Message(content, 1, "train")
    assert len(list(iterate_object_tree(get_object_tree(message)))) <= objects_of(form)


def test_a_node_sends_nothing_that_its_form_lacks() -> None:
    form = Form({"model/w": ("float32", (2,))}, {"samples": "float"})
    good = Body({"model/w": torch.ones(2)}, {"samples": 3.0})
    assert torch.equal(unpack(form, pack(form, good)).arrays["model/w"], torch.ones(2))
    for body in (
        Body({"model/w": torch.ones(2), "images": torch.ones(9)}, {"samples": 3.0}),
        Body({"model/w": torch.ones(3)}, {"samples": 3.0}),
        Body({"model/w": torch.ones(2, dtype=torch.float64)}, {"samples": 3.0}),
        Body({"model/w": torch.ones(2)}, {"samples": 3.0, "loss": 0.1}),
        Body({"model/w": torch.ones(2)}, {}),
    ):
        with pytest.raises(BadMessage):
            pack(form, body)


@pytest.mark.parametrize(("value", "fits"), [(1e30, True), (1.1e30, False), (-1.1e30, False), (float("nan"), False)])
def test_numbers_whose_mean_could_overflow_are_not_read(value: float, fits: bool) -> None:
    form = Form({"w": ("float32", (2,))})
    content = RecordDict({"model": ArrayRecord({"float32": Array(np.array([0.5, value], np.float32))})})
    if fits:
        assert unpack(form, content).arrays["w"].tolist() == pytest.approx([0.5, value])
    else:
        with pytest.raises(BadMessage, match="'w' holds values that are not finite or above 1e"):
            unpack(form, content)


def test_an_array_that_lies_about_its_size_is_not_unfolded() -> None:
    """A header of an exabyte in a message of a hundred bytes."""
    honest = Array(np.ones(2, np.float32))
    lie = Array(np.ones(2, np.float32)).data.replace(b"(2,), ", b"(1152921504606846976,), ")
    content = RecordDict({"model": ArrayRecord({"float32": Array(honest.dtype, honest.shape, honest.stype, lie)})})
    with pytest.raises(BadMessage):
        unpack(Form({"w": ("float32", (2,))}), content)


def _numbers(**changes: float) -> Callable[[Message], Message]:
    def change(reply: Message) -> Message:
        record = reply.content["numbers"]
        assert isinstance(record, MetricRecord)
        for name, value in changes.items():
            record[name] = value
        return reply

    return change


def _arrays(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Message], Message]:
    def spoilt(reply: Message) -> Message:
        record = reply.content["model"]
        assert isinstance(record, ArrayRecord)
        arrays = {name: np.array(array.numpy()) for name, array in record.items()}
        change(arrays)
        reply.content["model"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return reply

    return spoilt


def _first(arrays: dict[str, np.ndarray], value: float) -> None:
    arrays[next(iter(arrays))].flat[0] = value


def _error(reply: Message) -> Message:
    failure = Message(Error(code=0, reason="out of memory"), reply_to=reply)
    failure.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return failure


def _nothing(reply: Message) -> None:
    return None


BAD: list[tuple[str, str, Callable[[Message], Message | None], str]] = [
    ("score", "negative", _numbers(score=-1.0), "score of -1 from 20 samples is not possible"),
    ("score", "NaN", _numbers(score=math.nan), "'score' is 'nan'"),
    ("score", "huge", _numbers(score=1e30), "score of 1e+30 from 20"),
    ("score", "above n", _numbers(score=20.1), "score of 20.1 from 20"),
    ("score", "more than asked", _numbers(labels=1.0), "has labels, which was not asked for"),
    ("score", "silent", _nothing, "no reply within 0.3 s"),
    ("train", "NaN", _arrays(lambda a: _first(a, math.nan)), "not finite"),
    ("train", "huge weight", _arrays(lambda a: _first(a, 1e30)), "holds values above 100 times"),
    ("train", "shape", _arrays(lambda a: a.update({next(iter(a)): np.ones(3, np.float32)})), "is float32 [3], not"),
    ("train", "dtype", _arrays(lambda a: a.update({n: v.astype(np.float64) for n, v in a.items()})), "is float64"),
    ("train", "missing array", _arrays(lambda a: a.pop(next(iter(a)))), "arrays: lacks float32"),
    ("train", "another model", _arrays(lambda a: a.update({"model/more": np.ones(3, np.float32)})), "not asked for"),
    ("train", "samples", _numbers(samples=1e12), "it reported 20 samples but trained on 1e+12"),
    ("train", "steps", _numbers(steps=-5.0), "it reported 20 samples"),
    ("train", "error", _error, "out of memory"),
    ("train", "silent", _nothing, "no reply within 0.3 s"),
]


@pytest.mark.parametrize("kind", ["score", "train"])
def test_a_bad_reply_costs_its_sender_the_round(
    kind: str, federated: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Client 2 spoils its reply of this kind in each round but the last, every time in another way. The model is then
    the mean of the others, or client 2 wasn't among those that could be drawn."""
    bad = {
        round_idx: (spoil, said) for round_idx, (_, _, spoil, said) in enumerate((b for b in BAD if b[0] == kind), 1)
    }
    federated["sampling"]["fraction"] = 1.0
    federated["train"]["rounds"] = len(bad) + 1

    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        round_idx = int(order.metadata.group_id)
        spoils = node == 898 and order.metadata.message_type.endswith(kind) and round_idx in bad
        return bad[round_idx][0](reply) if spoils else reply

    *spoilt, last = federate(federated, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    for record, (_, said) in zip(spoilt, bad.values(), strict=True):
        assert list(record["failed"]) == ["client-2"]
        assert said in record["failed"]["client-2"]
        assert record["failed"]["client-2"].startswith(f"{kind}: ")
        assert record["trained"] == ["client-0", "client-1", "client-3"]
        assert ("client-2" in record["scores"]) == (kind == "train")
    assert last["trained"] == ["client-0", "client-1", "client-2", "client-3"]
    assert last["failed"] == {}
    warned = [r for r in caplog.records if r.levelname == "WARNING" and "client-2 is left out" in r.message]
    assert len(warned) == len(bad)
    model = read_tensors(tmp_path / "run" / "model.safetensors")
    assert all(bool(torch.isfinite(t).all()) for t in model.values())


def test_a_round_without_enough_updates_is_not_averaged(federated: Values, tmp_path: Path) -> None:
    """Of three rounds the second alone has a new model: the first one's, which nobody has trained, is no part of it."""
    federated["federation"]["min_replies"] = 4
    federated["server"] |= {"average": 0.9}
    federated["sampling"] |= {"fraction": 1.0}
    federated["train"]["rounds"] = 3

    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        silent = order.metadata.message_type == "train" and order.metadata.group_id in ("1", "3")
        return None if silent and node == 900 else reply

    out = tmp_path / "run"
    records = federate(federated, out, LoopGrid(partitions(tmp_path / "state"), spoil))
    assert [bool(record.get("kept")) for record in records] == [True, False, True]
    first, second, third = (record["test_loss"] for record in records)
    assert first != second == third
    (average,), (server,) = ((out / "checkpoint").glob(f"{side}-*.safetensors") for side in ("average", "server"))
    assert_same(read_tensors(average), read_tensors(server))


def test_nobody_answers(federated: Values, tmp_path: Path) -> None:
    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        return reply if order.metadata.message_type == "query.hello" else None

    federated["train"]["rounds"] = 1
    (record,) = federate(federated, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    assert (record["selected"], record["trained"], record["kept"]) == ([], [], True)
    assert len(record["failed"]) == 4
    with pytest.raises(UserError, match=r"no node trained in any round, so the model in .* has learnt nothing"):
        check_trained(tmp_path / "run")


def test_late_lost_and_returning_nodes(federated: Values, tmp_path: Path) -> None:
    """Client 3 joins in round 2; client 0 goes in round 3 and is back in round 4 under another number of Flower's."""
    federated["federation"]["min_nodes"] = 3
    grid = LoopGrid(partitions(tmp_path / "state", 3))

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if (node == 899 and order.metadata.message_type == "train") or order.metadata.message_type == "query.score":
            {"1": join, "2": leave, "3": back}.get(order.metadata.group_id, lambda: None)()
        return reply

    def join() -> None:
        grid.nodes[500] = {"partition-id": 3, "state": str(tmp_path / "state")}

    def leave() -> None:
        grid.nodes.pop(900, None)

    def back() -> None:
        grid.nodes[77] = {"partition-id": 0, "state": str(tmp_path / "state")}

    grid.spoil = spoil
    records = federate(federated, tmp_path / "run", grid)
    assert [len(r["nodes"]) for r in records] == [3, 4, 3, 4]
    assert records[3]["nodes"] == ["client-0", "client-1", "client-2", "client-3"]


@pytest.mark.parametrize("server", ["apfl", "cfl"])  # clients have a state of their own, and the server has
def test_a_run_that_was_stopped_resumes_to_the_same_weights(server: str, federated: Values, tmp_path: Path) -> None:
    """Stopped while round 3 trains, with a checkpoint of round 2 and clients that have trained further."""
    federated["server"] |= {"name": server}
    federated["sampling"] |= {"fraction": 1.0}
    config = load_config(federated)
    federate(config, tmp_path / "whole", LoopGrid(partitions(tmp_path / "a")))

    def stop(node: int, order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "train" and order.metadata.group_id == "3" and node == 897:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        federate(config, tmp_path / "stopped", LoopGrid(partitions(tmp_path / "b"), stop))
    later = {node - 400: settings for node, settings in partitions(tmp_path / "b").items()}
    records = federate(config, tmp_path / "stopped", LoopGrid(later), resume=True)
    assert [r["round"] for r in records] == [1, 2, 3, 4]
    assert_same_model(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("server", ["fedavg", "apfl"])
def test_a_finished_federation_goes_on_for_more_rounds(server: str, federated: Values, tmp_path: Path) -> None:
    federated |= {"server": {"name": server}, "federation": federated["federation"] | {"audit": True}}
    config, nodes = load_config(federated), partitions(tmp_path / "state")
    wanted = federate(config, tmp_path / "long", LoopGrid(partitions(tmp_path / "other")))
    short = config.changed(rounds=2, select="last")
    federate(short, tmp_path / "run", LoopGrid(nodes))
    found = federate(config, tmp_path / "run", LoopGrid(nodes), resume=True)
    assert [r["test_accuracy"] for r in found] == [r["test_accuracy"] for r in wanted]
    assert_same_model(tmp_path / "run", tmp_path / "long")
    ratios = [json.loads((tmp_path / name / "summary.json").read_text())["noise_ratios"] for name in ("run", "long")]
    assert ratios[0] == ratios[1]


def test_state_stays_on_the_node_in_as_many_versions_as_a_resumption_may_need(
    federated: Values, tmp_path: Path
) -> None:
    federated["server"] |= {"name": "apfl"}
    federated["sampling"] |= {"fraction": 1.0}
    federated["train"]["rounds"] = 6
    federate(federated, tmp_path / "run")
    files = sorted(p.name for p in (tmp_path / "state" / "client-1").rglob("keep-*"))
    # A checkpoint every 2 rounds: while round 6 is played the last one may be that of round 4.
    assert files == ["keep-000004.safetensors", "keep-000005.safetensors", "keep-000006.safetensors"]
    assert not list((tmp_path / "run" / "checkpoint").glob("client-*"))


@pytest.mark.parametrize("forgets", [False, True])
def test_a_node_passes_its_data_once_a_round(
    federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """What it was asked for its score is there when it trains; a node that has lost it asks again, to the same end."""
    federated |= {"learner": {"name": "fednoil", "frac": 0.5}, "server": {"name": "apfl"}}
    federated["train"]["rounds"] = 3
    config, looks, look = load_config(federated), [0], Workbench.look
    run(config, tmp_path / "simulated", Silent())

    def counted(bench: Workbench, client: Any) -> torch.Tensor:
        looks[0] += 1
        return look(bench, client)

    def forget(node: int, order: Message, reply: Message) -> Message:
        for file in (tmp_path / "state").rglob("look.safetensors"):
            file.write_bytes(b"") if node % 2 else file.unlink()
        return reply

    monkeypatch.setattr(Workbench, "look", counted)
    grid = LoopGrid(partitions(tmp_path / "state"), forget if forgets else None)
    records = federate(config, tmp_path / "federated", grid)
    assert_same_model(tmp_path / "simulated", tmp_path / "federated")
    scored, trained = sum(len(r["scores"]) for r in records), sum(len(r["trained"]) for r in records)
    audits = sum(m.metadata.message_type == "query.audit" for m in grid.sent)
    assert trained > 0
    assert looks[0] == scored + audits + trained * forgets


def test_a_look_is_used_with_its_own_model_alone(tmp_path: Path) -> None:
    state, logits = NodeState(tmp_path, "0" * 32), torch.rand(3, 2)
    for of, shape in (("11" * 32, (3, 2)), ("22" * 32, (4, 2))):
        state.save_look(logits, "22" * 32)
        assert state.take_look(of, shape) is None
    state.save_look(logits, "22" * 32)
    assert torch.equal(state.take_look("22" * 32, (3, 2)), logits)
    assert state.take_look("22" * 32, (3, 2)) is None


def test_what_only_a_simulation_can_do_is_refused(federated: Values, tmp_path: Path) -> None:
    federated["data"]["validation"] = 0.25
    grid = LoopGrid(partitions(tmp_path / "state"))
    with pytest.raises(UserError, match=r"data\.validation = 0\.25 is for simulations"):
        federate(federated, tmp_path / "federated", grid)
    assert grid.sent == []
    assert not (tmp_path / "federated").exists()


@pytest.mark.parametrize("flag", ["resume", "force"])
def test_a_folder_that_is_being_written_is_refused_before_anyone_is_asked(
    flag: str, federated: Values, tmp_path: Path
) -> None:
    config, out = load_config(federated), tmp_path / "r"
    federate(config, out)
    before = (out / "rounds.jsonl").read_bytes()
    grid = LoopGrid(partitions(tmp_path / "state"))
    with RunFolder(out).locked(), pytest.raises(UserError, match="is being written by another process"):
        federate(config, out, grid, **{flag: True})
    assert not grid.sent
    assert (out / "rounds.jsonl").read_bytes() == before
