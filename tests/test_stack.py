"""Stacked clients: one step for all of them means the same as client after client."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_gpu import CASES

from fednoil import rounds
from fednoil.config import load_config
from fednoil.executors.cuda import CudaGraphs
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.tensors import Tensors

CPU = torch.device("cpu")


def stacked(experiment: Experiment, parallel: int) -> CudaGraphs:
    """The GPU's executor on the CPU, where its steps run one by one."""
    return CudaGraphs(
        lambda: make_executor(experiment, CPU).bench, make_executor(experiment, CPU).clients, torch.empty(0), parallel
    )


def trained(experiment: Experiment, executor: Any, clients: list[int], epochs: int) -> dict[int, Any]:
    state = rounds.start(experiment)
    jobs = [rounds._job(experiment, state, k, epochs) for k in clients]
    return {r.client: r for r in executor.train(jobs)}


def close(got: Tensors, wanted: Tensors) -> None:
    assert set(got) == set(wanted)
    for name, tensor in wanted.items():
        if tensor.is_floating_point():
            assert torch.allclose(got[name], tensor, rtol=1e-4, atol=1e-6), name
        else:
            assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("case", CASES)
def test_stacked_clients_learn_as_alone(values: dict[str, Any], case: str) -> None:
    for section, keys in copy.deepcopy(CASES[case]).items():
        values[section] = {**values.get(section, {}), **keys} if section != "model" else keys
    values["run"]["executor"] = "sequential"
    experiment = make_experiment(load_config(values))
    clients = list(range(experiment.setting.num_clients))
    wanted = trained(experiment, make_executor(experiment, CPU), clients, 3)
    executor = stacked(experiment, 3)
    got = trained(experiment, executor, clients, 3)
    assert executor.alone is None
    assert executor.reason is None
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)
        close(got[client].keep, result.keep)
        close(got[client].evidence, result.evidence)
        assert got[client].numbers == pytest.approx(result.numbers)
        assert got[client].loss == pytest.approx(result.loss, rel=1e-4)
