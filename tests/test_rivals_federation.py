"""Methods in stages cross the wire: what clients report, hear and keep in a federation is what the simulator has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from conftest import assert_same
from flwr.app import Message
from loop_grid import LoopGrid, federate, partitions

from fednoil.config import Config, load_config
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


def config_of(server: dict[str, Any], learner: dict[str, Any], values: dict[str, Any]) -> Config:
    values |= {"server": server, "learner": learner}
    values["sampling"]["name"] = "uniform"
    values["train"]["rounds"] = 7  # four clients: after one pass over them three more
    return load_config(values)


@pytest.mark.parametrize(("server", "learner"), RIVALS, ids=lambda section: section["name"])
def test_a_rival_that_is_stopped_goes_on_to_the_simulators_weights(
    server: dict[str, Any],
    learner: dict[str, Any],
    federated: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped while clients review their labels, if they do, and again while the sixth round trains."""
    monkeypatch.setattr(Corrects, "confidence", 0.0)
    config = config_of(server, learner, federated)
    run(config, tmp_path / "simulated", Silent())
    whole = LoopGrid(partitions(tmp_path / "a"))
    assert all(record["failed"] == {} for record in federate(config, tmp_path / "whole", whole))
    kinds = {order.metadata.message_type for order in whole.sent}
    stops = [kind for kind in ("query.review",) if kind in kinds] + ["train"]
    assert len(stops) == (1 if server["name"] == "fedgr" else 2)
    for place, kind in enumerate(stops):
        seen: list[int] = []

        def stop(node: int, order: Message, reply: Message, kind: str = kind, seen: list[int] = seen) -> Message:
            if order.metadata.message_type == kind and (kind != "train" or order.metadata.group_id == "6"):
                seen.append(node)
                if len(seen) == (2 if kind != "train" else 1):
                    raise KeyboardInterrupt
            return reply

        with pytest.raises(KeyboardInterrupt):
            federate(config, tmp_path / "stopped", LoopGrid(partitions(tmp_path / "b"), stop), resume=place > 0)
    records = federate(config, tmp_path / "stopped", LoopGrid(partitions(tmp_path / "b")), resume=True)
    assert [record["round"] for record in records] == list(range(1, 8))
    for name in ("whole", "stopped"):
        assert_same(*(read_tensors(tmp_path / n / "model.safetensors") for n in ("simulated", name)))
