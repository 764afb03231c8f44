"""Stacked clients whose steps have several shapes: those of one shape run as one, and learn what they would alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_stack import CPU, close, stacked, trained
from test_stack_portions import counted
from torch import Tensor, nn

from fednoil.config import load_config
from fednoil.executors import portions
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners import pseudo_labels
from fednoil.learners.base import Client, Final, Nets, Phase, Turn
from fednoil.learners.batches import onto
from fednoil.learners.erm import Erm
from fednoil.tensors import Tensors


def smooth_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Without maxima, where rounding may decide a tie."""
    conv = nn.Conv2d(image_shape[0], 4, 5, stride=4)
    return nn.Sequential(conv, nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(144, num_classes))


def check(experiment: Experiment, epochs: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Train all clients in one stack, and see that they learn what they would alone; returns the clients of each
    portion."""
    clients = list(range(experiment.setting.num_clients))
    wanted = trained(experiment, make_executor(experiment, CPU), clients, epochs)
    executor = stacked(experiment, len(clients))
    played = counted(executor, monkeypatch)
    for client, result in trained(experiment, executor, clients, epochs).items():
        close(result.tensors, wanted[client].tensors)
        close(result.keep, wanted[client].keep)
        close(result.evidence, wanted[client].evidence)
        assert result.numbers == pytest.approx(wanted[client].numbers)
        assert result.loss == pytest.approx(wanted[client].loss, rel=1e-4)
    assert executor.alone is None
    return [count for count, _, _ in played]


class Kinds(Erm):
    """Clients 0, 3, 6 … do another step than the others, client 5 one of its own, all by turns; each counts how often
    it has seen a sample."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"seen": torch.zeros(len(client), 1, device=client.index.device)}

    def indexed(self) -> tuple[str, ...]:
        return ("seen",)

    def batches(self, client: Client, chosen: Tensor, turn: Turn, epochs: range) -> Tensors:
        return super().batches(client, chosen, turn, epochs) | {"rows": chosen}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (phase,) = super().plan(nets, client, state, turn, epochs)
        kind = "own" if client.id == 5 else "third" if client.id % 3 == 0 else "usual"
        return [replace(phase, kind=kind), replace(phase, kind="all"), replace(phase, kind=kind)]

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        rows, seen = batch["rows"], state["seen"]
        seen.add_(onto(rows, torch.ones_like(rows[:, None], dtype=torch.float32), len(seen)))
        scale = {"own": 0.5, "third": 2.0, "usual": 1.0, "all": 1.5}[kind]
        return super().step(nets, pool, batch, state, kind) * scale / seen[rows].mean()

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(evidence=dict(state))


def in_groups(values: dict[str, Any], split: str) -> dict[str, Any]:
    """The tiny experiment with fourteen clients of three kinds."""
    uneven = {"beta": 5.0} if split == "dirichlet" else {}
    return {
        **values,
        "data": {"name": "fashion-mnist-mini"},
        "partition": {"kind": split, "clients": 14, "samples_per_client": 40, **uneven},
        "learner": {"name": "test_stack_groups:Kinds"},
        "model": {"name": "test_stack_groups:smooth_model"},
        "train": {**values["train"], "lr": 0.01},
    }


@pytest.mark.parametrize("split", ["iid", "dirichlet"])
def test_groups_of_one_shape_run_as_one(values: dict[str, Any], split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fourteen eight run as ten, with two frozen, then five as five, one alone, and all together when their next
    step is the same; fewer where some are done before others."""
    widths = check(make_experiment(load_config(in_groups(values, split))), 2, monkeypatch)
    assert {14, 10, 5, 1} <= set(widths)
    assert set(widths) <= {14, 10, 7, 5, 3, 2, 1}
    assert (set(widths) == {14, 10, 5, 1}) == (split == "iid")


def test_clients_with_much_and_little_unlabelled_data_run_in_a_few_groups(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twelve, with shares of clean labels that differ by client, few are alone."""
    monkeypatch.setattr(pseudo_labels, "_GRAIN", 2)
    values |= {
        "data": {"name": "fashion-mnist-mini"},
        "partition": {"kind": "dirichlet", "clients": 12, "samples_per_client": 60, "beta": 3.0},
        "learner": {"name": "fednoil", "frac": "auto", "xi": 0.3},
        "model": {"name": "test_stack_groups:smooth_model"},
    }
    values["train"] |= {"lr": 0.01}
    widths = check(make_experiment(load_config(values)), 2, monkeypatch)
    assert max(widths) >= 4


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_sizes_are_evened_to_few_and_not_far(sizes: list[int]) -> None:
    """At most half as much again in all, or each a little more."""
    batches = [{"u_index": torch.zeros(1, size), "u_mask": torch.ones(1, size), "x": torch.ones(1)} for size in sizes]
    found = [batch["u_index"].shape[1] for batch in pseudo_labels.alike(batches)]
    assert all(new >= size for new, size in zip(found, sizes, strict=True))
    if len(set(found)) == 1:
        assert found[0] <= 1.5 * sum(sizes) / len(sizes) or found[0] - max(sizes) < 8
    else:
        assert all(new < 1.5 * size or new - size < 8 for new, size in zip(found, sizes, strict=True))
    assert len(set(found)) <= 14


def test_states_of_different_lengths_are_one() -> None:
    """With rows of zeros up to a number that comes again, and the last client's once more for those beside it."""
    states = [torch.ones(37, 2), torch.ones(20, 2)]
    found = portions.rows_alike(states, 3)
    assert found.shape == (3, 40, 2)
    assert found.sum((1, 2)).tolist() == [74, 40, 40]
    assert portions.rows_alike(states[:1], 2).shape == (2, 37, 2)
