"""The audit in a federation: on the nodes what a simulation would find, at the server one number a client."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import assert_same, tiny_arrays
from loop_grid import LoopGrid, federate, partitions
from safetensors.torch import load_file

from fednoil import evidence, load
from fednoil.config import load_config, to_toml
from fednoil.flower.memory import Memory
from fednoil.flower.messages import Refusal
from fednoil.flower.settings import NodeSettings
from fednoil.flower.state import NodeState
from fednoil.flower.work import introduce
from fednoil.learners.base import Client
from fednoil.records.checkpoint import Checkpoints
from fednoil.runner import Silent, run


@pytest.fixture
def federated(federated: dict[str, Any]) -> dict[str, Any]:
    """One that audits at the end."""
    federated["federation"] |= {"audit": True}
    return federated


def folder_of(state: Path, client: int) -> Path:
    (found,) = [p for p in (state / f"client-{client}").iterdir() if p.is_dir()]
    return found


def last_evidence(state: Path, client: int) -> dict[str, torch.Tensor]:
    return load_file(sorted(folder_of(state, client).glob("evidence-*.safetensors"))[-1])


def simulated(values: dict[str, Any], out: Path) -> list[dict[str, torch.Tensor]]:
    """Each client's evidence after the same run in one process."""
    run(load_config(values), out, Silent())
    index = json.loads((out / "checkpoint" / "checkpoint.json").read_text())
    hashes = {name: index[name] for name in ("config_hash", "data_hash", "noise_hash")}
    bundle = Checkpoints(out / "checkpoint", hashes).load().evidence
    return [evidence.of_client(bundle, [20] * 4, k) for k in range(4)]


@pytest.mark.parametrize("sampling", ["score", "uniform"])
def test_nodes_remember_what_a_simulation_does(federated: dict[str, Any], tmp_path: Path, sampling: str) -> None:
    federated["learner"] = {"name": "fednoil"}
    federated["sampling"]["name"] = sampling
    wanted = simulated(federated, tmp_path / "simulated")
    federate(federated, tmp_path / "run")
    for k, bundle in enumerate(wanted):
        if bundle["looks"][0]:
            assert_same(last_evidence(tmp_path / "state", k), bundle)


def test_a_server_that_is_stopped_and_goes_on_counts_nothing_twice(federated: dict[str, Any], tmp_path: Path) -> None:
    """The grid breaks in round 4, the last checkpoint is that of round 2: rounds 3 and 4 are played again."""
    federated["learner"] = {"name": "fednoil"}
    wanted = simulated(federated, tmp_path / "simulated")
    nodes = partitions(tmp_path / "state")
    trained = []

    def stop(node: int, order: Any, reply: Any) -> Any:
        trained.append(order.metadata.message_type)
        if trained.count("train") == 7:
            raise KeyboardInterrupt
        return reply

    config = load_config(federated)
    with pytest.raises(KeyboardInterrupt):
        federate(config, tmp_path / "run", LoopGrid(nodes, stop))
    federate(config, tmp_path / "run", LoopGrid(nodes), resume=True)
    for k, bundle in enumerate(wanted):
        assert_same(last_evidence(tmp_path / "state", k), bundle)


def test_a_turn_that_is_asked_for_again_counts_once(tmp_path: Path) -> None:
    """The server may not have got the reply; between the two orders there is no other look at the samples."""
    labels = torch.tensor([0, 1])
    client = Client(0, torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.arange(2), labels)
    experiment: Any = SimpleNamespace(
        task=SimpleNamespace(num_classes=2), config=SimpleNamespace(run=SimpleNamespace(checkpoint_every=1))
    )
    state = NodeState(tmp_path, "0" * 32)
    memory = Memory(state, client, experiment)
    memory.look(1, torch.full((2, 2), 0.5))
    for _ in range(2):
        memory.turn(1, 3, {"drawn": torch.tensor([3, 1])}, scored=True)
    found = state.evidence_before(2)
    assert found["drawn"].tolist() == [3, 1]
    assert found["epochs"].tolist() == [3]
    assert found["looks"].tolist() == [1]


def test_each_node_has_its_audit_and_the_server_its_noise_ratio(federated: dict[str, Any], tmp_path: Path) -> None:
    federated["learner"] = {"name": "fednoil"}
    federate(federated, tmp_path / "run")
    ratios = json.loads((tmp_path / "run" / "summary.json").read_text())["noise_ratios"]
    assert sorted(ratios) == [f"client-{k}" for k in range(4)]
    for k in range(4):
        audit = folder_of(tmp_path / "state", k) / "audit"
        summary = json.loads((audit / "summary.json").read_text())
        assert summary["overall"]["noise_ratio"] == ratios[f"client-{k}"]
        assert summary["clients"][0]["client"] == f"client-{k}"
        assert "quality" not in summary["overall"]  # a node knows no true labels
        assert pq.read_table(audit / "labels.parquet").num_rows == 20
        assert (audit / "audit.html").is_file()
    assert not list((tmp_path / "run").rglob("labels.*"))


def test_it_can_be_switched_off(federated: dict[str, Any], tmp_path: Path) -> None:
    federated["federation"]["audit"] = False
    federate(federated, tmp_path / "run")
    assert "noise_ratios" not in json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not list((tmp_path / "state").rglob("audit"))


def test_with_noisy_scores_the_ratio_is_the_last_of_them(federated: dict[str, Any], tmp_path: Path) -> None:
    """Nothing new is sent: 1 − score/20 with the score that the server had in round 4."""
    federated["privacy"] = {"scores": 5.0}
    records = federate(federated, tmp_path / "run")
    ratios = json.loads((tmp_path / "run" / "summary.json").read_text())["noise_ratios"]
    assert ratios == pytest.approx({name: 1 - score / 20 for name, score in records[-1]["scores"].items()})


def test_noisy_clients_that_sent_no_score_send_no_ratio(federated: dict[str, Any], tmp_path: Path) -> None:
    federated["sampling"]["name"] = "uniform"
    nodes = {k: {**settings, "score-epsilon": 5.0} for k, settings in partitions(tmp_path / "state").items()}
    federate(federated, tmp_path / "run", LoopGrid(nodes))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["noise_ratios"] == {}
    assert len(list((tmp_path / "state").rglob("labels.parquet"))) == 4


def test_an_impossible_ratio_is_left_out(federated: dict[str, Any], tmp_path: Path) -> None:
    def lie(node: int, order: Any, reply: Any) -> Any:
        if order.metadata.message_type == "query.audit" and node == 899:
            reply.content["numbers"]["noise_ratio"] = 1.5
        return reply

    federate(federated, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), lie))
    ratios = json.loads((tmp_path / "run" / "summary.json").read_text())["noise_ratios"]
    assert sorted(ratios) == ["client-0", "client-2", "client-3"]


def folded(values: dict[str, Any], folder: Path, nodes: dict[int, dict[str, Any]], fold: int, count: int = 3) -> None:
    config = load_config(values).without_fold(fold, count)
    federate(config, folder / f"fold-{fold}", LoopGrid(nodes))


def test_out_of_folds_nodes_find_what_a_simulation_does(federated: dict[str, Any], tmp_path: Path) -> None:
    """The audit of each fold so far, in the end of all: the same numbers as in one process, and the last ones sent."""
    run(load_config(federated), tmp_path / "simulated", Silent())
    wanted = {}
    for row in load(tmp_path / "simulated").audit(folds=3).table.to_arrow().to_pylist():
        wanted[f"client-{row['client']}", row["sample"]] = row["confidence"]
    nodes = partitions(tmp_path / "state")
    for fold in range(3):
        folded(federated, tmp_path, nodes, fold)
        for k in range(4):
            (audit,) = (tmp_path / "state" / f"client-{k}").glob("folds-*/audit")
            assert json.loads((audit / "summary.json").read_text())["folds"] == 3
            rows = pq.read_table(audit / "labels.parquet").to_pylist()
            assert len(rows) == [7, 14, 20][fold]
            notices = json.loads((audit / "summary.json").read_text())["clients"][0]["notices"]
            assert any(line.startswith("not audited yet: fold") for line in notices) == (fold < 2)
    for k in range(4):
        (audit,) = (tmp_path / "state" / f"client-{k}").glob("folds-*/audit")
        rows = pq.read_table(audit / "labels.parquet").to_pylist()
        found = {(row["client"], int(row["item"])): row["confidence"] for row in rows}
        assert found == pytest.approx({key: wanted[key] for key in found}, abs=1e-5)
        ratios = json.loads((tmp_path / "fold-2/summary.json").read_text())["noise_ratios"]
        assert json.loads((audit / "summary.json").read_text())["overall"]["noise_ratio"] == ratios[f"client-{k}"]


def test_folds_of_other_labels_are_not_mixed(federated: dict[str, Any], tmp_path: Path) -> None:
    """A site corrects a label between two folds: the first one is no part of the new audit."""
    nodes, arrays = {}, tiny_arrays()
    for number, name in enumerate(("a", "b")):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        nodes[number] = {"client-id": name, "data": f"npz:{tmp_path}/{name}.npz", "state": str(tmp_path / "state")}
    federated |= {"data": {"name": "sites"}, "noise": {}}
    folded(federated, tmp_path, nodes, 0)
    arrays["y_train"][0] = (arrays["y_train"][0] + 1) % 4
    np.savez(tmp_path / "a.npz", **arrays)
    folded(federated, tmp_path, nodes, 1)
    sizes = {}
    for name in ("a", "b"):
        audits = (tmp_path / "state" / name).glob("folds-*/audit/labels.parquet")
        sizes[name] = sorted(pq.read_table(path).num_rows for path in audits)
    assert sizes == {"a": [27, 27], "b": [54]}


def test_a_site_with_fewer_samples_than_folds_is_refused(federated: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **tiny_arrays())
    config = load_config(federated | {"data": {"name": "sites"}, "noise": {}})
    settings = NodeSettings.read({"client-id": "a", "data": f"npz:{tmp_path}/a.npz"})
    assert introduce(settings, to_toml(config.without_fold(0, 80))).samples == 79
    with pytest.raises(Refusal, match="has 80 samples, too few for 81 folds"):
        introduce(settings, to_toml(config.without_fold(0, 81)))
