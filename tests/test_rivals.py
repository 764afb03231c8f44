"""Methods of others, by worked numbers from their papers and code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fednoil.learners.fednoro import distilled, ramped
from fednoil.learners.prior import adjusted, adjusted_loss, log_prior
from fednoil.servers.fednoro import class_losses, distance, noisy_rows, scaled, trust

COUNTS = torch.tensor([0] * 6 + [1] * 3 + [2])
LOGITS = torch.tensor([[1.0, 0.0, 2.0]])


# --- FedNoRo ---------------------------------------------------------------------------------------------------------


def test_fednoros_logit_adjustment() -> None:
    prior = log_prior(COUNTS, 3)
    assert prior.tolist() == pytest.approx([-0.510826, -1.203973, -2.302585], abs=1e-6)
    losses = [float(adjusted_loss(LOGITS, prior, torch.tensor([label]))) for label in range(3)]
    assert losses == pytest.approx([0.492857, 2.186004, 1.284617], abs=1e-6)


def test_a_class_that_a_client_lacks_has_no_gradient() -> None:
    prior = log_prior(torch.tensor([0, 0, 1]), 3)
    logits = torch.tensor([[1.0, 0.0, 5.0]], requires_grad=True)
    taught = torch.tensor([[0.2, 0.3, 0.5]])
    loss = distilled(logits, taught, torch.tensor([0]), prior, 1.0)
    own = torch.log_softmax(torch.tensor([1 + np.log(2 / 3), np.log(1 / 3)]), 0)
    expected = sum(q * np.log(q) for q in (0.2, 0.3, 0.5)) - 0.2 * float(own[0]) - 0.3 * float(own[1])
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-6)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 2] == 0
    assert adjusted(LOGITS, prior)[0, 2] == 0


def test_fednoros_ramp() -> None:
    found = [ramped(r - 10, 39, 0.8) for r in (10, 20, 29.5, 40, 49, 60)]
    assert found == pytest.approx([0.005390, 0.050400, 0.229204, 0.612984, 0.8, 0.8], abs=1e-6)


def test_fednoros_distillation() -> None:
    taught = torch.softmax(torch.tensor([[2.0, 1.0, 0.0]]) / 0.8, 1)
    assert taught[0].tolist() == pytest.approx([0.730679, 0.209343, 0.059978], abs=1e-6)
    prior, label = log_prior(COUNTS, 3), torch.tensor([2])
    assert float(distilled(LOGITS, taught, label, prior, 1.0)) == pytest.approx(0.169390, abs=1e-6)
    assert float(distilled(LOGITS, taught, label, prior, 0.4)) == pytest.approx(0.838526, abs=1e-6)


def test_fednoros_loss_matrix() -> None:
    nan = float("nan")
    found = scaled(np.array([[0.2, 1.0, nan], [0.4, 0.5, 2.0], [1.2, 2.5, 1.0], [0.3, nan, 3.0]]))
    assert found == pytest.approx(np.array([[0, 0.25, 0], [0.2, 0, 0.5], [1, 1, 0], [0.1, 0, 1]]))
    assert found.sum(1) == pytest.approx([0.25, 0.7, 2.0, 1.1])
    assert scaled(np.array([[nan, 1.0], [nan, 1.0]])).tolist() == [[0, 0], [0, 0]]


def test_losses_of_each_class() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [np.log(2), 0.0, 0.0], [0.0, 0.0, np.log(8)]])
    found = class_losses(logits, torch.tensor([0, 0, 2])).tolist()
    assert found == pytest.approx([(np.log(3) + np.log(2)) / 2, -1.0, np.log(10 / 8)], abs=1e-6)


def test_two_kinds_of_clients_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    noisy = np.array([False] * 12 + [True] * 8)
    points = rng.normal(0.2, 0.05, (20, 5)) + 0.6 * noisy[:, None]
    assert noisy_rows(scaled(points)).tolist() == noisy.tolist()
    assert not noisy_rows(np.zeros((3, 4))).any()
    assert not noisy_rows(np.ones((1, 4))).any()


def test_fednoros_weights() -> None:
    assert trust([100, 300, 100], [0, 4, 2]) == pytest.approx([0.368981, 0.407221, 0.223798], abs=1e-6)
    a = {"x": torch.tensor([3.0, 4.0]), "y": torch.tensor(1.0), "batches": torch.tensor(5)}
    b = {"x": torch.zeros(2), "y": torch.tensor(3.0), "batches": torch.tensor(9)}
    assert distance(a, b) == pytest.approx(7.0)  # 5 + 2: the sum of both tensors' distances
