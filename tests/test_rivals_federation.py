"""Methods in stages cross the wire: what clients report, hear and keep in a federation is what the simulator has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from conftest import assert_same
from loop_grid import LoopGrid, federate, partitions

from fednoil.config import load_config
from fednoil.runner import Silent, run
from fednoil.servers.fedcorr import Corrects
from fednoil.tensors import read_tensors

RIVALS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "fednoro", "warmup": 1}, {"name": "fednoro", "ramp": 2}),
    ({"name": "fednoro", "warmup": 1}, {"name": "fedelc"}),
    ({"name": "fedcorr", "passes": 1, "warmup": 1}, {"name": "mixup"}),
    ({"name": "feddiv", "passes": 1}, {"name": "feddiv", "xi": 0.3}),
    ({"name": "fedgr", "passes": 1, "warmup": 2}, {"name": "fedgr", "xi": 0.3}),
]


@pytest.mark.parametrize(("server", "learner"), RIVALS, ids=lambda section: section["name"])
def test_a_rival_ends_with_the_simulators_weights(
    server: dict[str, Any],
    learner: dict[str, Any],
    federated: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Corrects, "confidence", 0.0)  # a network of a few steps is sure of nothing
    federated |= {"server": server, "learner": learner}
    federated["sampling"]["name"] = "uniform"
    federated["train"]["rounds"] = 7  # four clients: after one pass over them three more
    config = load_config(federated)
    run(config, tmp_path / "simulated", Silent())
    records = federate(config, tmp_path / "federated", LoopGrid(partitions(tmp_path / "state")))
    assert_same(*(read_tensors(tmp_path / name / "model.safetensors") for name in ("federated", "simulated")))
    assert all(record["failed"] == {} for record in records)
