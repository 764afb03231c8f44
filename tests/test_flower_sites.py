"""Sites with their own data: what they agree on, who is refused, how they are tested."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

pytest.importorskip("flwr")

from conftest import assert_same
from flwr.app import Message
from loop_grid import LoopGrid, federate

from fednoil import scale
from fednoil.api import compare
from fednoil.audit.cases import Cases
from fednoil.config import load_config, to_toml
from fednoil.errors import UserError
from fednoil.executors.base import Job
from fednoil.flower.executor import FlowerExecutor
from fednoil.flower.messages import Body
from fednoil.flower.settings import NodeSettings
from fednoil.flower.terms import CommonTerms, Founders, Site, agree, misfit
from fednoil.flower.work import site_work
from fednoil.learners import fednoil_plus
from fednoil.runner import Silent, run
from fednoil.tensors import read_tensors

Values = dict[str, Any]


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


def sites(folder: Path, names: str = "ab") -> dict[str, str]:
    """Sites of one letter with both classes."""
    return {name: site(folder / f"{name}.npz", {"black": 0, "white": 3}) for name in names}


def site_nodes(folder: Path, data: dict[str, str]) -> dict[int, Values]:
    return {
        10 + i: {"client-id": name, "data": source, "state": str(folder / "state")}
        for i, (name, source) in enumerate(data.items())
    }


def test_what_sites_agree_on_by_hand() -> None:
    """Classes by number where no site has all; of 30 samples with mean 0.5 and std 0.1 and 10 with 0.1 and 0.3 the mean
    is 0.4 and the variance 0.22 − 0.16. The site with images of another shape has no say."""
    a = Site("a", None, 30, 0, ("2", "10"), (1, 8, 8), (0.5,), (0.1,))
    b = Site("b", None, 10, 0, ("1", "2"), (1, 8, 8), (0.1,), (0.3,))
    c = Site("c", None, 99, 0, ("7",), (1, 9, 9), (0.9,), (0.9,))
    assert agree([a, b, c], None) == CommonTerms(("1", "2", "10"), (1, 8, 8), (0.4,), (0.2449,))
    assert agree([a, b, c], ((0.3,), (0.2,))) == CommonTerms(("1", "2", "10"), (1, 8, 8), (0.3,), (0.2,))
    with pytest.raises(UserError, match=r"lists of 2 and 1 numbers; the sites' data have 1 channel$"):
        agree([a, b, c], ((0.3, 0.3), (0.2,)))
    colour = replace(b, image_shape=(3, 8, 8), mean=(0.1, 0.5, 0.9), std=(0.3, 0.1, 0.1))
    assert agree([a, colour], None) == CommonTerms(("1", "2", "10"), (3, 8, 8), (0.4, 0.5, 0.6), (0.2449, 0.1, 0.2))
    assert misfit(a, agree([a, colour], None)) is None
    assert str(misfit(colour, agree([a, b], None))).endswith("pixels with 1 channel; the run began with grey ones")
    named = [replace(site, class_names=names) for site, names in ((a, ("z", "y")), (b, ("y", "z", "x")))]
    assert agree(named, None).class_names == ("y", "z", "x")  # in the order of a site that has all


@pytest.fixture
def own(federated: Values) -> Values:
    federated["data"] = {"name": "sites"}
    federated["noise"] = {}
    federated["sampling"]["fraction"] = 1.0
    return federated


def test_sites_bring_their_data_in_any_of_the_three_forms(own: Values, tmp_path: Path) -> None:
    """The same images as an npz, as folders of classes and as parquet shards: three sites alike."""
    source = site(tmp_path / "a.npz", {"black": 0, "white": 3})
    arrays = np.load(tmp_path / "a.npz")
    for part in ("train", "test"):
        rows = []
        for number, (image, label) in enumerate(zip(arrays[f"x_{part}"], arrays[f"y_{part}"], strict=True)):
            file = tmp_path / "folder" / part / str(arrays["class_names"][label]) / f"{number:02d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(file)
            rows.append({"image": {"bytes": file.read_bytes(), "path": None}, "label": int(label)})
        features = {"info": {"features": {"label": {"names": arrays["class_names"].tolist()}}}}
        table = pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps(features)})
        (tmp_path / "shards").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "shards" / f"{part}-00000-of-00001.parquet")
    data = {"a": source, "b": f"folder:{tmp_path / 'folder'}", "c": f"parquet:{tmp_path / 'shards'}"}
    records = federate(own, tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)))
    for record in records:
        assert record["trained"] == ["a", "b", "c"]
        assert not record["refused"]
        scores = list(record["scores"].values())
        assert scores == pytest.approx([scores[0]] * 3, rel=1e-5)


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
    records = federate(own, tmp_path / "run", grid)
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
    (row,) = compare(tmp_path / "run").rows
    assert row["finished"]
    assert row["setting"] == "own data of 3 sites"
    again = federate(own, tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)), resume=True)
    assert again == records


def test_the_best_round_is_chosen_by_what_sites_hold_out(own: Values, tmp_path: Path) -> None:
    """In round 2 most held-out labels are predicted, by what the sites report; the nodes audit with its model."""
    data = sites(tmp_path)
    own["train"] |= {"rounds": 3}
    own["federation"] |= {"audit": True}
    right = iter([2, 2, 5, 5, 3, 3])
    audited = []

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "evaluate":
            reply.content.metric_records["numbers"]["right"] = next(right)
        if order.metadata.message_type == "query.audit":
            audited.append(order.content["model"])
        return reply

    def run(select: str, rounds: int, name: str) -> dict[str, Any]:
        own["run"]["select"], own["train"]["rounds"] = select, rounds
        federate(own, tmp_path / name, LoopGrid(site_nodes(tmp_path / name, data), spoil))
        return json.loads((tmp_path / name / "summary.json").read_text())

    best = run("best", 3, "best")
    assert (best["final_round"], best["best_by_validation"]["round"]) == (2, 2)
    right = iter([2, 2, 5, 5])
    short = run("last", 2, "short")
    assert short["best_by_validation"]["round"] == 2
    models = [read_tensors(tmp_path / name / "model.safetensors") for name in ("best", "short")]
    assert_same(*models)
    assert all(
        np.array_equal(a.numpy(), b.numpy()) for a, b in zip(audited[0].values(), audited[2].values(), strict=True)
    )


def test_grey_images_become_rgb_where_others_are(own: Values, tmp_path: Path) -> None:
    data = {name: site(tmp_path / f"{name}.npz", {"black": 0, "white": 3}) for name in "ab"}
    grey = dict(np.load(tmp_path / "b.npz"))
    split = {name: np.stack([grey[name]] * 3, -1) for name in ("x_train", "x_test")}
    np.savez(tmp_path / "b.npz", **{**grey, **split})
    records = federate(own, tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)))
    assert all(record["trained"] == ["a", "b"] for record in records)
    assert all(not record["refused"] for record in records)
    scores = list(records[0]["scores"].values())
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)  # the same images


def test_a_sites_labels_become_the_federations_numbers(own: Values, tmp_path: Path) -> None:
    """Its classes are white and black in turn, numbered 0 and 1; the federation has black, grey and white."""
    source = site(tmp_path / "a.npz", {"white": 3, "black": 0})
    settings = NodeSettings.read({"client-id": "a", "data": source, "state": str(tmp_path)})
    agreement = CommonTerms(("black", "grey", "white"), (1, 8, 8), (0.5,), (0.2,))
    work = site_work(settings, to_toml(load_config(own)), 0, agreement, Founders(1, 24))
    assert work.client.labels.tolist() == 12 * [2, 0]
    assert work.test.labels.tolist() == 6 * [2, 0]


def test_sites_go_by_the_number_and_the_labels_of_all(
    own: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sites are too many here to set labels aside, and have many labels on average; site a has few."""
    for module, name, value in ((fednoil_plus, "_CLIENTS", 2), (fednoil_plus, "_FEW", 1), (scale, "MANY", 24)):
        monkeypatch.setattr(module, name, value)
    own |= {"learner": {"name": "fednoil-plus"}}
    own["train"]["weight_decay"] = "auto"
    sizes = {"a": 16, "b": 24, "c": 34}
    data = {name: site(tmp_path / f"{name}.npz", {"black": 0, "white": 3}, n) for name, n in sizes.items()}
    del own["partition"]  # the sites are the clients
    own["data"]["normalisation"] = [[0.4], [0.2]]
    run(load_config(own | {"data": own["data"] | {"sites": data}, "federation": {}}), tmp_path / "simulated", Silent())
    federate(own, tmp_path / "federated", LoopGrid(site_nodes(tmp_path, data)))
    found = [read_tensors(tmp_path / name / "model.safetensors") for name in ("simulated", "federated")]
    assert_same(*found)
    assert Founders(3, 74).sizes == [25, 25, 24]


@pytest.mark.parametrize("founders", [(0, 10), (11, 10), (10**7, 10**8)])
def test_a_site_refuses_impossible_founders(
    founders: tuple[int, int], own: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = FlowerExecutor._order

    def other(executor: FlowerExecutor, job: Job) -> Body:
        body = order(executor, job)
        return replace(body, values=body.values | dict(zip(("founders", "samples"), founders, strict=True)))

    monkeypatch.setattr(FlowerExecutor, "_order", other)
    own["train"]["rounds"] = 1
    data = {name: site(tmp_path / f"{name}.npz", {"black": 0, "white": 3}) for name in "ab"}
    (record,) = federate(own, tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)))
    said = f"{founders[0]} 'founders' with {founders[1]} 'samples' are not possible"
    assert all(said in why for why in record["failed"].values())
    assert len(record["failed"]) == 2


def test_scores_by_number_are_those_of_all_founders_or_left_out(own: Values, tmp_path: Path) -> None:
    """In round 2 c has come and a's score is no good: as many scores as in round 1, of others."""
    data = sites(tmp_path, "abc")
    grid = LoopGrid(site_nodes(tmp_path, data))
    late = grid.nodes.pop(12)

    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        if order.metadata.message_type == "train":
            grid.nodes[12] = late
        score_of_two = order.metadata.message_type == "query.score" and order.metadata.group_id == "2"
        return None if score_of_two and node == 10 else reply

    grid.spoil = spoil
    own["train"]["rounds"] = 2
    one, two = federate(own, tmp_path / "run", grid)
    assert one["client_scores"] == [one["scores"]["a"], one["scores"]["b"]]
    assert list(two["scores"]) == ["b", "c"]
    assert "client_scores" not in two


def test_a_site_that_comes_back_with_other_data_is_refused(own: Values, tmp_path: Path) -> None:
    """In the same run as in one that is resumed: its score and its weight depend on what it reported first."""
    data = sites(tmp_path)
    grid = LoopGrid(site_nodes(tmp_path, data))
    other = {**grid.nodes[10], "data": site(tmp_path / "more.npz", {"black": 0, "white": 3}, count=30)}

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "train" and grid.nodes.pop(10, None):
            grid.nodes[50] = other
        return reply

    grid.spoil = spoil
    own["train"]["rounds"] = 2
    one, two = federate(own, tmp_path / "run", grid)
    assert (one["nodes"], two["nodes"]) == (["a", "b"], ["b"])
    assert two["refused"] == {"a": "it had 24 samples when it joined this run and has 30 now"}
    assert json.loads((tmp_path / "run" / "roster.json").read_text())["sizes"] == {"a": 24, "b": 24}


def test_normalisation_is_that_of_all_pixels(own: Values, tmp_path: Path) -> None:
    data = {n: site(tmp_path / f"{n}.npz", {"x": i, "y": 3}, count=10 + 30 * i) for i, n in enumerate(("one", "two"))}
    own["train"]["rounds"] = 1
    federate(own, tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)))
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
    (record,) = federate(own, tmp_path / "run", LoopGrid(nodes))
    assert record["nodes"] == ["a", "b"]
    said = {r.getMessage() for r in caplog.records}
    reason = "its images are 16×16 pixels with 1 channel, the federation's 8×8 pixels with 1 channel; data.size brings "
    reason += "the pictures of all sites to one size"
    assert {f"large is refused: {reason}", f"this node does not take part: {reason}"} <= said
    assert "a waits: another node already has this name; each needs its own client-id" in said
    assert "node 34 is refused: client-1: it has no data of its own; start it with --data" in said
    # What might name files stays in the node's own log.
    gone = "node 32 is refused: gone: failed at the node; see its own log"
    assert {gone, "node 33 is refused: failed at the node; see its own log"} <= said
    assert any("secret-name.npz is not a file" in text for text in said if text.startswith("query.hello"))
    assert any("--node-config: client is unknown" in text for text in said)


@pytest.mark.parametrize("learner", [{"name": "fednoil-plus"}, {"name": "fednoil", "frac": [0.5, 0.9]}])
def test_a_late_site_with_a_new_class_is_refused(
    learner: Values, own: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other late one takes part, also where what it does depends on who began the run."""
    data = sites(tmp_path)
    grid = LoopGrid(site_nodes(tmp_path, data))

    def spoil(node: int, order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "train" and order.metadata.group_id == "1":
            new = {"late": {"black": 0, "white": 3}, "other": {"black": 0, "red": 2}}
            for i, (name, classes) in enumerate(new.items()):
                grid.nodes.setdefault(60 + i, {"client-id": name, "data": site(tmp_path / f"{name}.npz", classes),
                                               "state": str(tmp_path / "state")})  # fmt: skip
        return reply

    grid.spoil = spoil
    own["server"]["name"], own["learner"] = "cfl", learner
    records = federate(own, tmp_path / "run", grid)
    assert [r["nodes"] for r in records] == [["a", "b"], ["a", "b", "late"], ["a", "b", "late"], ["a", "b", "late"]]
    assert records[-1]["clusters"] == [[0, 1, 2]]
    assert any("other is refused: its class 'red' is not one" in r.getMessage() for r in caplog.records)
    later = load_config({**own, "train": {**own["train"], "rounds": 4}})
    (tmp_path / "run" / "summary.json").unlink()
    assert federate(later, tmp_path / "run", LoopGrid(grid.nodes), resume=True) == records


def test_a_newcomer_gets_a_number_that_nobody_had(own: Values, tmp_path: Path) -> None:
    """Also in a resumed run whose first client is away."""
    data = sites(tmp_path, "abc")
    nodes = site_nodes(tmp_path, data)

    def stop(node: int, order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "train" and order.metadata.group_id == "3":
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        federate(own, tmp_path / "run", LoopGrid({n: nodes[n] for n in (10, 11)}, stop))
    later = LoopGrid({n: nodes[n] for n in (11, 12)})
    *_, last = federate(own, tmp_path / "run", later, resume=True)
    assert (last["trained"], last["refused"]) == (["b", "c"], {})
    assert json.loads((tmp_path / "run" / "roster.json").read_text())["clients"] == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("tested", [True, False])
def test_an_audit_takes_no_agreement_for_accuracy(
    tested: bool, own: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a site has no test images, the labels of those that it holds out may be as wrong as the others."""
    own["federation"] |= {"audit": True}
    data = sites(tmp_path)
    for name in data if not tested else ():
        arrays = dict(np.load(tmp_path / f"{name}.npz"))
        np.savez(tmp_path / f"{name}.npz", **{key: v for key, v in arrays.items() if not key.endswith("_test")})
    known = []

    def audit(cases: Cases, folder: Path) -> Values:
        known.append(cases.clients[0].accuracy)
        return {"overall": {"noise_ratio": 0.25}}

    monkeypatch.setattr("fednoil.flower.node.run_audit", audit)
    own["train"]["rounds"] = 1
    federate(own, tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)))
    assert [accuracy is not None for accuracy in known] == [tested, tested]


def test_the_sites_of_a_simulation_are_none_of_a_federation(own: Values, tmp_path: Path) -> None:
    own["data"]["sites"] = {"a": site(tmp_path / "a.npz", {"black": 0, "white": 3})}
    with pytest.raises(UserError, match=r"data\.sites names the sites of a simulation; in a federation each node has"):
        federate(own, tmp_path / "run", LoopGrid({}))


def test_a_restarted_node_waits_for_its_old_number_and_a_busy_one_is_asked_again(own: Values, tmp_path: Path) -> None:
    """In round 1 a second 'a' is there, in round 2 the first is gone; 'b', whose class 'red' nobody else has, doesn't
    answer the first two introductions."""
    classes = {"a": {"black": 0, "white": 3}, "b": {"black": 0, "red": 2}}
    nodes = site_nodes(tmp_path, {name: site(tmp_path / f"{name}.npz", own) for name, own in classes.items()})
    grid = LoopGrid({**nodes, 77: nodes[10]})
    silent = [11, 11]

    def spoil(node: int, order: Message, reply: Message) -> Message | None:
        if order.metadata.message_type == "query.hello" and node in silent:
            silent.remove(node)
            return None
        if order.metadata.message_type == "train" and order.metadata.group_id == "1":
            grid.nodes.pop(10, None)
        return reply

    grid.spoil = spoil
    own["federation"] |= {"wait": 10, "timeout": 0.2}
    records = federate(own, tmp_path / "run", grid)
    assert all(r["nodes"] == ["a", "b"] and r["trained"] == ["a", "b"] for r in records)
    assert {node for node, reply in grid.replies if reply.metadata.message_type == "train"} == {10, 11, 77}


def test_a_site_that_holds_nothing_out_has_no_say_in_the_agreement(
    own: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two samples of a class are too few. The server's state stays where nodes' messages are."""
    monkeypatch.setattr("fednoil.rounds.placed", lambda *_: pytest.fail("moved"))
    rng, data = np.random.default_rng(0), {}
    for name, count in (("a", 24), ("b", 4)):
        x, y = rng.integers(0, 256, (count, 8, 8), dtype=np.uint8), np.arange(count) % 2
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, class_names=np.array(["black", "white"]))
        data[name] = f"npz:{tmp_path / name}.npz"
    records = federate(own, tmp_path / "run", LoopGrid(site_nodes(tmp_path, data)))
    assert all(record["failed"] == {} and list(record["held_out"]) == ["a"] for record in records)
