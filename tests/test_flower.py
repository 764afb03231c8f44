"""A federation of nodes in this process, message for message: equal to the simulator, and unharmed by bad replies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from loop_grid import LoopGrid

from fednoil.cli.reporters import Silent
from fednoil.config import Config, load_config, to_toml
from fednoil.errors import UserError
from fednoil.experiment import make_experiment
from fednoil.flower import messages
from fednoil.flower.messages import BadMessage, Body, Form, pack, unpack
from fednoil.flower.server import Assignment, play
from fednoil.learners import LEARNERS
from fednoil.records.compare import describe
from fednoil.records.files import read_tensors
from fednoil.runner import run
from fednoil.servers import SERVERS

Values = dict[str, Any]


@pytest.fixture
def federated(values: Values) -> Values:
    """The tiny experiment with scored clients, ready for a federation that doesn't wait."""
    values["server"]["sampling"] = "score"
    values["federation"] = {"wait": 0.5, "timeout": 0.3}
    return values


def partitions(folder: Path, count: int = 4) -> dict[int, Values]:
    """Nodes with a partition each, in an order that is not theirs."""
    return {900 - k: {"partition-id": k, "num-partitions": count, "state": str(folder)} for k in range(count)}


def federate(config: Config, out: Path, grid: LoopGrid, **options: bool) -> list[Values]:
    """Run a federation; its records."""
    play(grid, Assignment(to_toml(config), str(out), **options))
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def assert_same_model(a: Path, b: Path) -> None:
    left, right = read_tensors(a / "model.safetensors"), read_tensors(b / "model.safetensors")
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


PAIRS = [(server, "erm") for server in SERVERS] + [("apfl", "fednoil")]
PAIRS += [("fedavg", learner) for learner in LEARNERS if learner != "erm"]


@pytest.mark.parametrize(("server", "learner"), PAIRS)
def test_a_federation_ends_with_the_simulators_weights(
    server: str, learner: str, federated: Values, tmp_path: Path
) -> None:
    federated["server"]["name"], federated["learner"] = server, {"name": learner}
    config = load_config(federated)
    run(config, tmp_path / "simulated", Silent())
    records = federate(config, tmp_path / "federated", LoopGrid(partitions(tmp_path / "state")))
    assert_same_model(tmp_path / "simulated", tmp_path / "federated")
    lines = (tmp_path / "simulated" / "rounds.jsonl").read_text().splitlines()
    for ours, line in zip(records, lines, strict=True):
        theirs = json.loads(line)
        assert (ours["selected"], ours["client_scores"]) == (theirs["selected"], theirs["client_scores"])
        assert ours["failed"] == {}
        if server != "apfl":  # whose clients' own models are on the nodes
            assert ours["test_accuracy"] == theirs["test_accuracy"]
    assert describe(tmp_path / "federated")["finished"]


def test_nothing_but_the_allowed_leaves_a_node(federated: Values, tmp_path: Path) -> None:
    """Every message of a run, against a list of what FedNoiL sends, written down here once more."""
    federated["learner"] = {"name": "fednoil"}
    config, grid = load_config(federated), LoopGrid(partitions(tmp_path / "state"))
    federate(config, tmp_path / "run", grid)
    model = make_experiment(config).initial_model()
    shapes = {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in model.items()}
    allowed = {
        "query.hello": {"numbers": {"samples", "held_out", "mean", "std"},
                        "values": {"client", "partition", "classes", "shape"}},
        "query.score": {"numbers": {"score"}},
        "train": {"model": set(shapes), "numbers": {"samples", "steps"}},
    }  # fmt: skip
    kinds = set()
    for _, reply in grid.replies:
        kind = reply.metadata.message_type
        kinds.add(kind)
        assert {name: set(record) for name, record in reply.content.items()} == allowed[kind]
        for record in reply.content.array_records.values():
            assert {name: (a.dtype, tuple(a.shape)) for name, a in record.items()} == shapes
        for record in reply.content.metric_records.values():
            assert all(isinstance(v, int | float) or (len(v) == 1 and kind == "query.hello") for v in record.values())
    assert kinds == set(allowed)
    assert len(grid.replies) == len(grid.sent) == 4 + 4 * (4 + 2)


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


def test_an_array_that_lies_about_its_size_is_not_unfolded() -> None:
    """A header of an exabyte in a message of a hundred bytes."""
    honest = Array(np.ones(2, np.float32))
    lie = Array(np.ones(2, np.float32)).data.replace(b"(2,), ", b"(1152921504606846976,), ")
    content = RecordDict({"model": ArrayRecord({"w": Array(honest.dtype, honest.shape, honest.stype, lie)})})
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
    ("score", "more than asked", _numbers(labels=1.0), "has labels unasked"),
    ("score", "silent", _nothing, "no reply within 0.3 s"),
    ("train", "NaN", _arrays(lambda a: _first(a, math.nan)), "not finite"),
    ("train", "huge weight", _arrays(lambda a: _first(a, 1e30)), "not finite or above"),
    ("train", "shape", _arrays(lambda a: a.update({next(iter(a)): np.ones(3, np.float32)})), "is float32 [3], not"),
    ("train", "dtype", _arrays(lambda a: a.update({n: v.astype(np.float64) for n, v in a.items()})), "is float64"),
    ("train", "missing array", _arrays(lambda a: a.pop(next(iter(a)))), "arrays: lacks model/"),
    ("train", "another model", _arrays(lambda a: a.update({"model/more": np.ones(3, np.float32)})), "unasked"),
    ("train", "samples", _numbers(samples=1e12), "it told 20 samples and trained 1e+12"),
    ("train", "steps", _numbers(steps=-5.0), "it told 20 samples"),
    ("train", "error", _error, "out of memory"),
    ("train", "silent", _nothing, "no reply within 0.3 s"),
]


@pytest.mark.parametrize(("kind", "_case", "bad", "said"), BAD, ids=[f"{b[0]} {b[1]}" for b in BAD])
def test_a_bad_reply_costs_its_sender_the_round(
    kind: str,
    _case: str,
    bad: Callable[[Message], Message | None],
    said: str,
    federated: Values,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Client 2 spoils the first reply of this kind. The model is then the mean of the others, or client 2 wasn't
    among those that could be drawn."""
    federated["server"]["client_fraction"] = 1.0
    federated["train"]["rounds"] = 2
    spoilt: list[str] = []

    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        if node == 898 and order.metadata.message_type.endswith(kind) and not spoilt:
            spoilt.append(kind)
            return bad(reply)
        return reply

    first, second = federate(load_config(federated), tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    assert list(first["failed"]) == ["client-2"]
    assert said in first["failed"]["client-2"]
    assert first["failed"]["client-2"].startswith(f"{kind}: ")
    assert first["trained"] == ["client-0", "client-1", "client-3"]
    assert ("client-2" in first["scores"]) == (kind == "train")
    assert second["trained"] == ["client-0", "client-1", "client-2", "client-3"]
    assert second["failed"] == {}
    assert any(r.levelname == "WARNING" and "client-2 is left out" in r.message for r in caplog.records)
    model = read_tensors(tmp_path / "run" / "model.safetensors")
    assert all(bool(torch.isfinite(t).all()) for t in model.values())


def test_too_few_updates_leave_the_model_as_it_is(federated: Values, tmp_path: Path) -> None:
    federated["federation"]["min_replies"] = 3
    federated["server"]["client_fraction"] = 1.0
    federated["train"]["rounds"] = 2

    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        silent = order.metadata.message_type == "train" and order.metadata.group_id == "1"
        return None if silent and node != 900 and node != 899 else reply

    config = load_config(federated)
    first, second = federate(config, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    assert (first["kept"], first["trained"]) == (True, ["client-0", "client-1"])
    assert "kept" not in second
    # Round 2 scored the model that round 1 started from, so all scores are those of round 1.
    assert second["scores"] == first["scores"]


def test_nobody_answers(federated: Values, tmp_path: Path) -> None:
    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        return reply if order.metadata.message_type == "query.hello" else None

    federated["train"]["rounds"] = 1
    (record,) = federate(load_config(federated), tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    assert (record["selected"], record["trained"], record["kept"]) == ([], [], True)
    assert len(record["failed"]) == 4


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
    records = federate(load_config(federated), tmp_path / "run", grid)
    assert [len(r["nodes"]) for r in records] == [3, 4, 3, 4]
    assert records[3]["nodes"] == ["client-0", "client-1", "client-2", "client-3"]


@pytest.mark.parametrize("server", ["fedavg", "apfl", "cfl"])
def test_a_run_that_was_stopped_resumes_to_the_same_weights(server: str, federated: Values, tmp_path: Path) -> None:
    """Stopped while round 3 trains, with a checkpoint of round 2 and clients that have trained further."""
    federated["server"] |= {"name": server, "client_fraction": 1.0}
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


def test_state_stays_on_the_node_in_as_many_versions_as_a_resumption_may_need(
    federated: Values, tmp_path: Path
) -> None:
    federated["server"] |= {"name": "apfl", "client_fraction": 1.0}
    federated["train"]["rounds"] = 6
    federate(load_config(federated), tmp_path / "run", LoopGrid(partitions(tmp_path / "state")))
    files = sorted(p.name for p in (tmp_path / "state" / "client-1").rglob("*"))
    # A checkpoint every 2 rounds: while round 6 is played the last one may be that of round 4.
    assert files[1:] == ["keep-000004.safetensors", "keep-000005.safetensors", "keep-000006.safetensors"]
    assert not list((tmp_path / "run" / "checkpoint").glob("client-*"))


# --- sites with data of their own ---------------------------------------------------------------------------------


def site(path: Path, classes: dict[str, int], count: int = 24, size: int = 8) -> str:
    """An npz whose classes have these names; `classes` says which brightness each has."""
    names = list(classes)
    rng = np.random.default_rng(len(path.stem))

    def split(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(n) % len(names)
        bright = np.array([classes[names[i]] for i in labels])
        images = rng.integers(0, 60, size=(n, size, size)) + 60 * bright[:, None, None]
        return images.astype(np.uint8), labels.astype(np.int64)

    (x, y), (tx, ty) = split(count), split(12)
    np.savez(path, x_train=x, y_train=y, x_test=tx, y_test=ty, class_names=np.array(names))
    return f"npz:{path}"


def site_nodes(folder: Path, data: dict[str, str]) -> dict[int, Values]:
    return {
        10 + i: {"client-id": name, "data": source, "state": str(folder / "state")}
        for i, (name, source) in enumerate(data.items())
    }


@pytest.fixture
def own(federated: Values) -> Values:
    federated["data"] = {"name": "sites"}
    federated["noise"] = {}
    federated["server"]["client_fraction"] = 1.0
    return federated


def test_sites_agree_by_names_and_are_tested_on_what_they_hold_out(own: Values, tmp_path: Path) -> None:
    """Site b lacks 'grey' and has its classes in another order; the third has a class nobody else has."""
    data = {
        "b": site(tmp_path / "b.npz", {"white": 3, "black": 0}, count=16),
        "a": site(tmp_path / "aa.npz", {"black": 0, "grey": 1, "white": 3}),
        "c": site(tmp_path / "ccc.npz", {"silver": 2, "black": 0}),
    }
    own["federation"]["min_nodes"] = 3
    own["train"] |= {"rounds": 3}
    grid = LoopGrid(site_nodes(tmp_path, data))
    records = federate(load_config(own), tmp_path / "run", grid)
    roster = json.loads((tmp_path / "run" / "roster.json").read_text())
    assert roster["agreement"]["class_names"] == ["black", "grey", "silver", "white"]
    assert roster["clients"] == {"a": 0, "b": 1, "c": 2}
    assert roster["sizes"] == {"a": 24, "b": 16, "c": 24}
    for record in records:
        held = record["held_out"]
        assert set(held) == {"a", "b", "c"}
        mean = sum(h["accuracy"] * h["samples"] for h in held.values()) / sum(h["samples"] for h in held.values())
        assert record["test_accuracy"] == pytest.approx(mean)
    replies = [r for _, r in grid.replies if r.metadata.message_type == "evaluate"]
    assert len(replies) == 9
    allowed = {"numbers": {"right", "samples", "loss"}}
    assert all({n: set(r) for n, r in reply.content.items()} == allowed for reply in replies)
    assert not (tmp_path / "run" / "noise.parquet").exists()
    assert describe(tmp_path / "run")["finished"]
    again = federate(load_config(own), tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)), resume=True)
    assert again == records


def test_normalisation_is_that_of_all_pixels(own: Values, tmp_path: Path) -> None:
    data = {n: site(tmp_path / f"{n}.npz", {"x": i, "y": 3}, count=10 + 30 * i) for i, n in enumerate(("one", "two"))}
    own["train"]["rounds"] = 1
    federate(load_config(own), tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)))
    pixels = np.concatenate([np.load(tmp_path / f"{n}.npz")["x_train"].ravel() for n in data]) / 255
    agreement = json.loads((tmp_path / "run" / "roster.json").read_text())["agreement"]
    assert agreement["mean"] == [pytest.approx(pixels.mean(), abs=2e-4)]
    assert agreement["std"] == [pytest.approx(pixels.std(), abs=2e-4)]


def test_a_site_that_does_not_fit_is_refused_with_the_reason(
    own: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fits = {"black": 0, "white": 3}
    data = {n: site(tmp_path / f"{n}.npz", fits) for n in ("a", "b")}
    nodes = site_nodes(tmp_path, data)
    nodes[30] = {"client-id": "large", "data": site(tmp_path / "large.npz", fits, size=16)}
    nodes[31] = {"client-id": "a", "data": data["a"]}
    nodes[32] = {"client-id": "gone", "data": f"npz:{tmp_path / 'secret-name.npz'}"}
    nodes[33] = {"client": "typo", "data": data["a"]}
    nodes[34] = {"partition-id": 1}
    own["train"]["rounds"] = 1
    (record,) = federate(load_config(own), tmp_path / "run", LoopGrid(nodes))
    assert record["nodes"] == ["a", "b"]
    said = {r.getMessage() for r in caplog.records}
    reason = "its images are 16×16 pixels with 1 channel, the federation's 8×8 pixels with 1 channel"
    assert {f"large is refused: {reason}", f"this node takes no part: {reason}"} <= said
    assert "a is refused: another node is called 'a' already; give each its own client-id" in said
    assert "node 34 is refused: it has no data of its own: --node-config has no data=" in said
    # What might name files stays in the node's own log.
    assert {f"node {n} is refused: failed at the node; its own log says why" for n in (32, 33)} <= said
    assert any("secret-name.npz is not a file" in text for text in said if text.startswith("query.hello"))
    assert any("unknown key 'client'" in text for text in said)


def test_a_late_site_with_a_new_class_is_refused(own: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = {n: site(tmp_path / f"{n}.npz", {"black": 0, "white": 3}) for n in ("a", "b")}
    grid = LoopGrid(site_nodes(tmp_path, data))

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "train" and order.metadata.group_id == "1":
            new = {"late": {"black": 0, "white": 3}, "other": {"black": 0, "red": 2}}
            for i, (name, classes) in enumerate(new.items()):
                grid.nodes.setdefault(60 + i, {"client-id": name, "data": site(tmp_path / f"{name}.npz", classes),
                                               "state": str(tmp_path / "state")})  # fmt: skip
        return reply

    grid.spoil = spoil
    own["server"]["name"] = "cfl"
    records = federate(load_config(own), tmp_path / "run", grid)
    assert [r["nodes"] for r in records] == [["a", "b"], ["a", "b", "late"], ["a", "b", "late"], ["a", "b", "late"]]
    assert records[-1]["clusters"] == [[0, 1, 2]]
    assert any("other is refused: its class 'red' is none" in r.getMessage() for r in caplog.records)


def test_too_few_nodes_is_one_line(own: Values, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"0 of 2 nodes have come within 0\.5 s \(federation\.min_nodes"):
        federate(load_config(own), tmp_path / "run", LoopGrid({}))
    assert not (tmp_path / "run").exists()


def test_a_node_runs_no_code_that_its_operator_has_not_named(
    federated: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federated["learner"] = {"name": "fednoil.learners.erm:Erm"}
    config = load_config(federated)
    with pytest.raises(UserError):
        federate(config, tmp_path / "run", LoopGrid(partitions(tmp_path / "state")))
    assert any("it doesn't trust the code 'fednoil.learners.erm:Erm'" in r.getMessage() for r in caplog.records)
    trusting = partitions(tmp_path / "state")
    for node in trusting.values():
        node["trust"] = "fednoil.learners.erm:Erm"
    assert len(federate(config, tmp_path / "run", LoopGrid(trusting))) == 4


# --- privacy --------------------------------------------------------------------------------------------------------


def test_a_node_tells_one_noisy_score_a_round(federated: Values, tmp_path: Path) -> None:
    federated["server"]["score_epsilon"] = 4.0
    federated["train"]["rounds"] = 1
    config, plain = load_config(federated), {**federated, "server": {**federated["server"], "score_epsilon": None}}
    (without,) = federate(load_config(plain), tmp_path / "plain", LoopGrid(partitions(tmp_path / "p")))
    (first,) = federate(config, tmp_path / "a", LoopGrid(partitions(tmp_path / "a-state")))
    (second,) = federate(config, tmp_path / "b", LoopGrid(partitions(tmp_path / "b-state")))
    # The same seed, other noise: it is the node's own.
    assert len({tuple(r["scores"].values()) for r in (without, first, second)}) == 3
    assert all(0 <= s <= 20 for s in first["scores"].values())
    stored = next((tmp_path / "a-state" / "client-0").rglob("scores.json"))
    assert json.loads(stored.read_text()) == {"1": first["scores"]["client-0"]}
    # Asked again for round 1 (the run starts over from its roster), it says the same.
    (tmp_path / "a" / "checkpoint" / "checkpoint.json").unlink()
    (again,) = federate(config, tmp_path / "a", LoopGrid(partitions(tmp_path / "a-state")), resume=True)
    assert again["scores"] == first["scores"]


def test_the_operator_may_ask_for_more_noise(federated: Values, tmp_path: Path) -> None:
    federated["train"]["rounds"] = 1
    nodes = partitions(tmp_path / "state")
    nodes[900]["score-epsilon"] = 0.001
    (record,) = federate(load_config(federated), tmp_path / "run", LoopGrid(nodes))
    assert record["scores"]["client-0"] in (0.0, 20.0)  # Laplace noise of scale 1000, moved back into the range


def test_noise_on_updates_is_flowers_and_on_training_alone(federated: Values, tmp_path: Path) -> None:
    federated["train"]["rounds"] = 1
    plain = load_config(federated)
    noisy = load_config(
        {**federated, "federation": {**federated["federation"], "update_clip": 0.01, "update_epsilon": 1e6}}
    )
    (a,) = federate(plain, tmp_path / "plain", LoopGrid(partitions(tmp_path / "s1")))
    (b,) = federate(noisy, tmp_path / "noisy", LoopGrid(partitions(tmp_path / "s2")))
    assert (a["scores"], a["trained"]) == (b["scores"], b["trained"])
    start = make_experiment(plain).initial_model()
    moved = [
        math.sqrt(sum(float(((t - start[f"model/{n}"]) ** 2).sum()) for n, t in read_tensors(path).items()))
        for path in (tmp_path / "plain/model.safetensors", tmp_path / "noisy/model.safetensors")
    ]
    assert moved[0] > 0.05
    assert moved[1] == pytest.approx(0.01, rel=0.05)  # both updates clipped to 0.01, nearly no noise


def test_noise_on_batch_norm_is_refused(federated: Values, tmp_path: Path) -> None:
    federated["model"] = {"name": "resnet18", "width": 2}
    federated["federation"] |= {"update_clip": 1.0, "update_epsilon": 1.0}
    with pytest.raises(UserError, match=r"needs a model without BatchNorm.*resnet18"):
        federate(load_config(federated), tmp_path / "run", LoopGrid(partitions(tmp_path / "state")))


def test_protocols_must_agree(federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednoil.flower.members.PROTOCOL", messages.PROTOCOL + 1)
    with pytest.raises(UserError, match="0 of 4 nodes"):
        federate(load_config(federated), tmp_path / "run", LoopGrid(partitions(tmp_path / "state")))
