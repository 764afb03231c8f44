"""What a node guards: its scores, its update, and which code it runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("flwr")

from loop_grid import LoopGrid, federate, partitions

from fednoil.config import load_config
from fednoil.config.schema import FederationConfig
from fednoil.errors import UserError
from fednoil.experiment import make_experiment
from fednoil.flower import messages
from fednoil.flower.privacy import noise_std, private_update
from fednoil.records.files import read_tensors

Values = dict[str, Any]


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


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 1e3, 1e5])
def test_the_noise_is_as_private_as_it_says_for_any_epsilon(epsilon: float) -> None:
    """δ by summing max(p - e^ε q, 0) over the real line; Flower's formula alone fails this from some ε on."""
    delta = 1e-5

    def found(std: float) -> float:
        x = np.linspace(-12 * std, 1 + 12 * std, 2_000_001)
        p, q = (-((x - at) ** 2) / (2 * std**2) for at in (1.0, 0.0))
        above = p > epsilon + q
        gap = np.exp(p[above]) * -np.expm1(epsilon + q[above] - p[above])
        return float(gap.sum() * (x[1] - x[0]) / (std * math.sqrt(2 * math.pi)))

    assert found(noise_std(1.0, epsilon, delta)) == pytest.approx(delta, rel=0.01)
    assert noise_std(3.0, epsilon, delta) == pytest.approx(3 * noise_std(1.0, epsilon, delta))
    flowers = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert (found(flowers) > delta) == (epsilon > 10)


def test_noise_of_the_needed_size_leaves_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[float, ...]] = []
    monkeypatch.setattr("fednoil.flower.privacy.LocalDpMod", lambda *a: made.append(a) or (lambda *_: None))
    private_update(FederationConfig(update_clip=0.5, update_epsilon=1e3), *[cast(Any, None)] * 3)
    (clip, sensitivity, epsilon, delta) = made[0]
    assert clip == 0.5
    std = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon  # Flower's formula
    assert std == pytest.approx(noise_std(1.0, 1e3, 1e-5))


def test_noise_on_batch_norm_is_refused(federated: Values, tmp_path: Path) -> None:
    federated["model"] = {"name": "resnet18", "width": 2}
    federated["federation"] |= {"update_clip": 1.0, "update_epsilon": 1.0}
    with pytest.raises(UserError, match=r"needs a model without BatchNorm.*resnet18"):
        federate(load_config(federated), tmp_path / "run", LoopGrid(partitions(tmp_path / "state")))


def test_protocols_must_agree(federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednoil.flower.members.PROTOCOL", messages.PROTOCOL + 1)
    with pytest.raises(UserError, match="0 of 4 nodes"):
        federate(load_config(federated), tmp_path / "run", LoopGrid(partitions(tmp_path / "state")))
