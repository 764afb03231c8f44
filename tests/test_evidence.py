"""What clients remember of their labels, by hand, through rounds, checkpoints and executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fednoil import evidence, rounds
from fednoil.config import load_config
from fednoil.executors.cuda import CudaGraphs
from fednoil.experiment import make_bench, make_executor, make_experiment
from fednoil.records.checkpoint import Checkpoints

CPU = torch.device("cpu")


def test_two_looks_worked_out() -> None:
    """One client with labels 0 and 1. Its looks give sample 0 the probabilities (.6, .3, .1) and (.2, .7, .1).

    Weights 1 and 3 of the two looks: (.6 + 3·.2)/4 = .3. Slope through .6 and .2: −.4. Margins .3 and −.5.
    """
    bundle = evidence.start([torch.tensor([0, 1])], 3)
    for first in ([0.6, 0.3, 0.1], [0.2, 0.7, 0.1]):
        bundle = evidence.add_looks(bundle, [2], {0: torch.tensor([first, [0.1, 0.8, 0.1]])})
    assert bundle["looks"].tolist() == [2]
    assert bundle["probabilities"][0].tolist() == pytest.approx([0.3, 0.6, 0.1])
    assert bundle["votes"].tolist() == [[1, 1, 0], [0, 2, 0]]
    assert bundle["confidence"].tolist() == pytest.approx([0.8, 1.6])
    assert evidence.trend(bundle).tolist() == pytest.approx([-0.4, 0.0], abs=1e-6)
    assert bundle["margin"].tolist() == pytest.approx([0.3 - 0.5, 1.4])


def test_draws_worked_out() -> None:
    bundle = evidence.start([torch.tensor([0, 1]), torch.tensor([1])], 2)
    bundle = evidence.add_draws(bundle, [2, 1], {1: torch.tensor([3])}, 4)
    bundle = evidence.add_draws(bundle, [2, 1], {0: torch.tensor([1, 2]), 1: torch.tensor([1])}, 2)
    assert bundle["drawn"].tolist() == [1, 2, 4]
    assert bundle["epochs"].tolist() == [2, 6]


@settings(max_examples=25, deadline=None)
@over(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 4), st.integers(0, 10**6))
def test_clients_together_are_clients_alone(sizes: list[int], looks: int, seed: int) -> None:
    """Whoever looks when, each client's part is what it would have by itself, and its trend is a fitted line's."""
    rng = torch.Generator().manual_seed(seed)
    given = [torch.randint(0, 3, (n,), generator=rng) for n in sizes]
    together = evidence.start(given, 3)
    alone = [evidence.start([labels], 3) for labels in given]
    seen: list[list[torch.Tensor]] = [[] for _ in sizes]
    for _ in range(looks):
        there = [k for k in range(len(sizes)) if torch.rand((), generator=rng) < 0.7] or [0]
        found = {k: torch.rand(sizes[k], 3, generator=rng).softmax(1) for k in there}
        together = evidence.add_looks(together, sizes, found)
        for k, probs in found.items():
            alone[k] = evidence.add_looks(alone[k], [sizes[k]], {0: probs})
            seen[k].append(probs.gather(1, given[k][:, None])[:, 0].double())
    for k, own in enumerate(alone):
        assert_same(evidence.of_client(together, sizes, k), own)
        if len(seen[k]) > 1:
            slope = np.polyfit(np.arange(len(seen[k])), torch.stack(seen[k]).numpy(), 1)[0]
            np.testing.assert_allclose(evidence.trend(own).numpy(), slope, atol=1e-5)


class _Launches(TorchDispatchMode):
    """Counts the operations that are a launch, or more, on a GPU: all but views, and what works on counters."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(found, torch.Tensor) and found.numel() > 100:
            self.names.append(str(func))
        return found


def test_a_round_takes_few_launches_and_copies_nothing_to_a_gpu() -> None:
    """On a GPU the cost is that of launches, and of waiting for what comes from the host."""
    sizes = [40, 30, 50]
    bundle = evidence.start([torch.zeros(n, dtype=torch.int64) for n in sizes], 4)
    looks = {k: torch.full((n, 4), 0.25) for k, n in enumerate(sizes)}
    with _Launches() as launches:
        bundle = evidence.add_looks(bundle, sizes, looks)
        evidence.add_draws(bundle, sizes, {1: torch.ones(30, dtype=torch.int64)}, 5)
    assert len(launches.names) <= 16, launches.names
    assert not [name for name in launches.names if "index" in name or "repeat" in name]


def played(values: dict[str, Any], count: int, state: rounds.RunState | None = None) -> rounds.RunState:
    experiment = make_experiment(load_config(values))
    executor = make_executor(experiment, CPU)
    state = state or rounds.start(experiment)
    for _ in range(count):
        state, _ = rounds.play(experiment, executor, state)
    return state


@pytest.mark.parametrize("learner", ["erm", "fednoil", "dividemix", "coteaching"])
def test_scored_rounds_leave_evidence_of_all_clients(values: dict[str, Any], learner: str) -> None:
    values |= {"sampling": {"name": "score", "fraction": 0.5}, "learner": {"name": learner}}
    state = played(values, 3)
    assert state.evidence["looks"].tolist() == [3, 3, 3, 3]
    assert state.evidence["votes"].sum(1).tolist() == [3] * 80
    assert (learner == "fednoil") == bool(state.evidence["drawn"].sum() > 0)


def test_with_uniform_sampling_only_those_know_who_looked(values: dict[str, Any]) -> None:
    """FedNoiL looks at its data when its turn begins; plain cross-entropy never does, nor is it made to."""
    values["learner"] = {"name": "fednoil"}
    state = played(values, 3)
    assert state.evidence["looks"].sum() == 6  # two clients a round
    assert set((state.evidence["epochs"] // 2).tolist()) == set(state.evidence["looks"].tolist())
    values["learner"] = {"name": "erm"}
    assert played(values, 3).evidence == {}


def test_evidence_resumes_exactly(values: dict[str, Any], tmp_path: Path) -> None:
    values |= {"sampling": {"name": "score", "fraction": 0.5}, "learner": {"name": "fednoil"}}
    Checkpoints(tmp_path, {}).save(played(values, 2))
    resumed = played(values, 2, Checkpoints(tmp_path, {}).load())
    assert_same(resumed.evidence, played(values, 4).evidence)


def test_a_round_leaves_the_state_before_it_alone(values: dict[str, Any]) -> None:
    """A round that fails is played again from the same state; evidence counted twice would be wrong."""
    values |= {"sampling": {"name": "score", "fraction": 0.5}, "learner": {"name": "fednoil"}}
    before = played(values, 1)
    copies = {name: tensor.clone() for name, tensor in before.evidence.items()}
    played(values, 1, before)
    assert_same(before.evidence, copies)


def test_the_executor_of_a_gpu_leaves_the_same(values: dict[str, Any]) -> None:
    values |= {"sampling": {"name": "score", "fraction": 0.5}, "learner": {"name": "fednoil"}}
    experiment = make_experiment(load_config(values))
    plain = make_executor(experiment, CPU)
    stacked = CudaGraphs(lambda: make_bench(experiment, CPU), plain.clients, plain.test_images, 2)  # type: ignore[attr-defined]
    states = []
    for executor in (plain, stacked):
        state = rounds.start(experiment)
        for _ in range(2):
            state, _ = rounds.play(experiment, executor, state)
        states.append(state.evidence)
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-3, atol=1e-4)
