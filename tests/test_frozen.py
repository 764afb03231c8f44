"""Parameters that a user has frozen: never moved, sent or kept by anyone, and part of the model file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same
from loop_grid import LoopGrid, federate, partitions
from made_models import Probe, part
from stopped_runs import Stop
from test_stack import stacked
from torch import nn

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.executors.base import Job
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.flower.executor import FlowerExecutor
from fednoil.flower.messages import Body
from fednoil.models.network import Network, fixed_names
from fednoil.predict import load_model
from fednoil.runner import Silent, run
from fednoil.tensors import read_tensors

CPU = torch.device("cpu")
HEAD = 4 * 16 + 4  # numbers of the only layer that trains


def frozen(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)).requires_grad_(False)


@pytest.fixture
def probed(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"model": {"name": "made_models:probe"}}


def body_of(experiment: Experiment) -> dict[str, torch.Tensor]:
    """The body as the seed makes it."""
    return {name: t for name, t in experiment.build_model("model").state_dict().items() if name.startswith("body.")}


def test_what_no_training_changes() -> None:
    """Of a BatchNorm that trains only its weights are frozen, and its statistics go on."""
    assert fixed_names(Probe(4)) == {name for name in Probe(4).state_dict() if name.startswith("body.")}
    assert fixed_names(part((1, 8, 8), 4)) == {"0.weight", "0.bias"}
    net = Network(part((1, 8, 8), 4), (0.5,), (0.2,), CPU)
    assert set(net.dump("m")) == {f"m/{n}" for n in net.module.state_dict()} - {"m/0.weight", "m/0.bias"}
    assert set(net.dump_fixed("m")) == {"m/0.weight", "m/0.bias"}


def test_it_is_not_sent_and_not_moved(probed: dict[str, Any]) -> None:
    experiment = make_experiment(load_config(probed))
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    body = body_of(experiment)
    for _ in range(2):
        state, record = rounds.play(experiment, executor, state)
    assert set(state.server.tensors) == {"model/head.weight", "model/head.bias"}
    assert (
        record.bytes_up == record.bytes_down == 2 * (4 * HEAD + 2 * 8)
    )  # two clients; samples and steps, round and epochs
    assert not torch.equal(
        state.server.tensors["model/head.weight"], rounds.start(experiment).server.tensors["model/head.weight"]
    )
    module = executor.bench.nets["model"].module
    assert_same({n: t for n, t in module.state_dict().items() if n.startswith("body.")}, body)


@pytest.mark.parametrize("learner", ["erm", "dividemix", "josrc"])
@pytest.mark.parametrize("server", ["fedavg", "apfl"])
def test_every_network_has_the_frozen_part_of_its_own(probed: dict[str, Any], server: str, learner: str) -> None:
    """Two shared networks have different ones, a teacher and a personal model that of the network they start as."""
    probed |= {"server": {"name": server}, "learner": {"name": learner}}
    experiment = make_experiment(load_config(probed))
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    state, _ = rounds.play(experiment, executor, state)
    assert not any("/body." in name for kept in state.keep.values() for name in kept)
    shared = [role.name for role in experiment.learner.roles if role.shared]
    weights = {name: net.module.body[0].weight for name, net in executor.bench.nets.items()}
    assert len({float(weights[name].sum()) for name in shared}) == len(shared)
    for role in experiment.learner.roles:
        assert torch.equal(weights[role.name], weights[role.name if role.shared else role.start])


def test_clients_side_by_side_share_it(probed: dict[str, Any]) -> None:
    """That they learn as alone is tested with all other methods (tests/test_stack.py)."""
    stack = stacked(make_experiment(load_config(probed)), 3).bench.stacks["model"]
    assert len({net.module.body[0].weight.data_ptr() for net in stack.networks}) == 1
    assert "body.0.weight" not in stack.others


def test_it_is_in_the_model_file_and_in_no_checkpoint(probed: dict[str, Any], tmp_path: Path) -> None:
    """A run that was stopped goes on to the same model, which predicts as the run did."""
    config = load_config(probed)
    run(config, tmp_path / "whole", Silent())
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "stopped", Stop(2))
    run(config, tmp_path / "stopped", Silent(), resume=True)
    whole, stopped = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert_same(whole, stopped)
    experiment = make_experiment(config)
    assert_same({n: t for n, t in whole.items() if n.startswith("body.")}, body_of(experiment))
    saved = [read_tensors(file) for file in (tmp_path / "whole" / "checkpoint").glob("*.safetensors")]
    assert {name for tensors in saved for name in tensors if "/" in name} == {"model/head.weight", "model/head.bias"}
    images = torch.from_numpy(experiment.setting.dataset.test.images)
    loaded = load_model(tmp_path / "whole" / "model.safetensors", ("made_models:probe",))
    head = {f"model/{name}": tensor for name, tensor in whole.items() if name.startswith("head.")}
    wanted = make_executor(experiment, CPU).test_logits(head).softmax(1)
    torch.testing.assert_close(loaded.probabilities(images), wanted)


def test_model_start_brings_the_frozen_part(probed: dict[str, Any], tmp_path: Path) -> None:
    """Another one than before is refused when a run goes on."""
    probed["run"]["seed"] = 5
    run(load_config(probed), tmp_path / "first", Silent())
    file = tmp_path / "first" / "model.safetensors"
    probed["run"]["seed"] = 0
    probed["model"]["start"] = str(file)
    experiment = make_experiment(load_config(probed))
    assert_same(experiment.fixed, {f"model/{n}": t for n, t in read_tensors(file).items() if n.startswith("body.")})
    with pytest.raises(KeyboardInterrupt):
        run(load_config(probed), tmp_path / "second", Stop(2))
    other = tmp_path / "other"
    probed_other = {**probed, "model": {"name": "made_models:probe"}, "run": {**probed["run"], "seed": 7}}
    run(load_config(probed_other), other, Silent())
    file.write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"the frozen part of the model has changed .*\(frozen_hash\)"):
        run(load_config(probed), tmp_path / "second", Silent(), resume=True)


def trusting(folder: Path) -> dict[int, dict[str, Any]]:
    """Nodes that run the model of this file."""
    nodes = partitions(folder / "state")
    return {number: {**node, "trust": "made_models:probe"} for number, node in nodes.items()}


def test_a_federation_sends_the_head_alone(probed: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(probed)
    run(config, tmp_path / "simulated", Silent())
    grid = LoopGrid(trusting(tmp_path))
    federate(config, tmp_path / "federated", grid)
    simulated, federated = (read_tensors(tmp_path / name / "model.safetensors") for name in ("simulated", "federated"))
    assert_same(simulated, federated)
    sent = [message.content["model"] for message in grid.sent if "model" in message.content]
    assert sent
    head = sum(tensor.numel() for name, tensor in simulated.items() if "head." in name)
    assert {sum(array.numpy().size for array in arrays.values()) for arrays in sent} == {head}


def test_a_node_with_another_frozen_part_takes_no_part(
    probed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed["train"]["rounds"] = 1
    order = FlowerExecutor._order

    def other(executor: FlowerExecutor, job: Job) -> Body:
        body = order(executor, job)
        return replace(body, values={**body.values, "frozen": "0" * 64})

    monkeypatch.setattr(FlowerExecutor, "_order", other)
    (record,) = federate(probed, tmp_path / "federated", LoopGrid(trusting(tmp_path)))
    assert record["trained"] == []
    assert all("its frozen parameters differ from the server's" in why for why in record["failed"].values())


def test_a_model_without_anything_to_train_is_refused(values: dict[str, Any]) -> None:
    values["model"] = {"name": f"{__name__}:frozen"}
    with pytest.raises(UserError, match=r"has no parameters to train; all of them are frozen"):
        make_experiment(load_config(values))
