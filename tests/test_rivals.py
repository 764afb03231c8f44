"""Methods of others, by worked numbers from their papers and code."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fednoil.learners.base import Client, Task, Turn
from fednoil.learners.elr import bounded, moved, pulled
from fednoil.learners.feddiv import FILTER, FedDiv, debiased, filter_of, followed, scaled_losses
from fednoil.learners.fedelc import FedElc, FedElcConfig, estimate_loss, label_slope, merged
from fednoil.learners.fedgr import SIEVE, both_losses, clean_chances, follow, revise, running_mean
from fednoil.learners.fedlsr import FedLsr, FedLsrConfig, divergence
from fednoil.learners.fednoro import distilled, ramped
from fednoil.learners.mixmatch import uneven
from fednoil.learners.mixture import fitted, lower_posterior, upper_values
from fednoil.learners.mixup import mixed_loss
from fednoil.learners.prior import adjusted, adjusted_loss, log_prior
from fednoil.learners.robust import generalised, symmetric
from fednoil.seeds import Seed
from fednoil.servers.base import ServerState, Update
from fednoil.servers.fedcorr import Corrects, modelled_losses, noisy_clients, pull, relabelled, worst
from fednoil.servers.feddiv import average
from fednoil.servers.fedgr import FedGr, FedGrConfig, cleaner, counted, sieve_of, wrong_share
from fednoil.servers.fednoro import class_losses, distance, noisy_rows, scaled, trust
from fednoil.servers.lid import dimensions
from fednoil.testing import check_method, federation

CPU = torch.device("cpu")
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


# --- FedELC ----------------------------------------------------------------------------------------------------------


def test_fedelcs_loss_and_gradients() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0]], requires_grad=True)
    u, label = torch.tensor([[0.0, 10.0, 0.0]], requires_grad=True), torch.tensor([1])
    loss = estimate_loss(logits, u, label, 0.5, 0.2)
    assert float(loss.detach()) == pytest.approx(2.800900, abs=2e-6)
    loss.backward()
    assert u.grad is not None
    assert logits.grad is not None
    assert u.grad[0].tolist() == pytest.approx([-0.262291, 0.297755, -0.035464], abs=1e-6)
    assert logits.grad[0].tolist() == pytest.approx([0.368806, -0.361915, -0.006891], abs=1e-6)
    closed = label_slope(logits.detach(), u.detach(), label, 0.5)
    assert closed[0].tolist() == pytest.approx(u.grad[0].tolist(), abs=1e-7)
    parts = {"L_c / 3": (0.0, 0.0, 8.269448 / 3), "L_o": (1.0, 0.0, 0.0000908), "L_e / 3": (0.0, 1.0, 0.665573 / 3)}
    with torch.no_grad():
        alone = float(estimate_loss(logits, u, label, 0.0, 0.0))
        for alpha, beta, value in parts.values():
            found = float(estimate_loss(logits, u, label, alpha, beta)) - (alone if alpha or beta else 0.0)
            assert found == pytest.approx(value, abs=2e-6)


def test_fedelcs_label_logits_after_an_epoch() -> None:
    """One epoch moves 22 % of the belief."""
    logits = torch.tensor([[2.0, 0.0, 0.0]]).repeat(64, 1)
    u, labels = torch.tensor([[0.0, 10.0, 0.0]]).repeat(64, 1), torch.ones(64, dtype=torch.int64)
    after = (u - FedElc.rate * label_slope(logits, u, labels, 0.5))[0]
    assert after.tolist() == pytest.approx([4.098295, 5.347573, 0.554133], abs=1e-5)
    assert torch.softmax(after, 0).tolist() == pytest.approx([0.221400, 0.772203, 0.006397], abs=1e-6)


def test_fedelcs_first_estimate_is_the_given_label() -> None:
    """e^10 / (e^10 + 9) of ten classes."""
    own = Client(0, torch.zeros(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64), torch.tensor([7]))
    learner = FedElc(FedElcConfig(), Task(10, (1, 4, 4), 2, 0.1, 10))
    state = learner.init({}, own, {}, Turn(1, 1, Seed(0), {"noisy": 1.0}))
    assert float(torch.softmax(state["label logits"], 1)[0, 7]) == pytest.approx(0.99959, abs=5e-6)


def test_fedelcs_merge() -> None:
    found = merged(torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([[0.6, 0.3, 0.1]]), 10.0)[0]
    assert found.tolist() == pytest.approx([3.570976, 5.718974, 0.710050], abs=1e-5)
    assert torch.softmax(found, 0).tolist() == pytest.approx([0.103897, 0.890158, 0.005945], abs=1e-6)


# --- Cheap ones ------------------------------------------------------------------------------------------------------

ONE = torch.tensor([[np.log(0.7), np.log(0.2), np.log(0.1)]], dtype=torch.float32)


def test_generalised_and_symmetric_cross_entropy() -> None:
    assert float(generalised(ONE, torch.tensor([1]), 0.5)) == pytest.approx((1 - 0.2**0.5) / 0.5, abs=1e-6)
    assert float(generalised(ONE, torch.tensor([1]), 1.0)) == pytest.approx(0.8, abs=1e-6)
    assert float(generalised(ONE, torch.tensor([1]), 1e-4)) == pytest.approx(-np.log(0.2), abs=1e-2)
    expected = 0.1 * -np.log(0.2) + 1.0 * 9.210340 * 0.8
    assert float(symmetric(ONE, torch.tensor([1]), 0.1, 1.0)) == pytest.approx(expected, abs=1e-5)


def test_early_learning_targets() -> None:
    """Two looks at p = (0.7, 0.2, 0.1) from no target: 0.3 p, then 0.51 p; ⟨p, target⟩ = 0.51 · 0.54."""
    once = moved(torch.zeros(1, 3), bounded(ONE), 0.7)
    assert once[0].tolist() == pytest.approx([0.21, 0.06, 0.03], abs=1e-6)
    twice = moved(once, bounded(ONE), 0.7)
    assert twice[0].tolist() == pytest.approx([0.357, 0.102, 0.051], abs=1e-6)
    expected = -np.log(0.2) + 3 * np.log(1 - 0.51 * 0.54)
    assert float(pulled(ONE, twice, torch.tensor([1]), 3.0)) == pytest.approx(expected, abs=1e-5)


def test_mixed_labels() -> None:
    logits = torch.cat([ONE, ONE])
    found = mixed_loss(logits, torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor(0.25))
    assert float(found) == pytest.approx(-(np.log(0.7) + np.log(0.2)) / 2, abs=1e-6)
    found = mixed_loss(ONE.repeat(3, 1), torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0]), torch.tensor(0.25))
    expected = -(0.25 * (np.log(0.7) + np.log(0.2) + np.log(0.1)) / 3 + 0.75 * np.log(0.7))
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_fedlsrs_loss_by_hand() -> None:
    """Equal views of p = (0.7, 0.2, 0.1): p_s = (0.49, 0.04, 0.01) / 0.54, no divergence."""
    task = Task(3, (1, 4, 4), 2, 0.1, 10)
    sharp, cubes = np.array([0.49, 0.04, 0.01]) / 0.54, np.array([0.343, 0.008, 0.001]) / 0.352
    meant = -np.log(sharp[1]) - 0.3 * (cubes * np.log(cubes)).sum()
    again = np.exp(cubes) / np.exp(cubes).sum()
    coded = -sharp[1] + np.log(np.exp(sharp).sum()) - 0.3 * (again * np.log(again)).sum()
    for config, expected in ((FedLsrConfig(version="paper"), meant), (FedLsrConfig(version="code"), coded)):
        learner = FedLsr(config, task)
        found = learner.loss(ONE, ONE, torch.tensor([1]), torch.tensor(0.3), torch.tensor(0.4))
        assert float(found) == pytest.approx(expected, abs=1e-5)


def test_the_divergence_of_two_predictions() -> None:
    p, q = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert float(divergence(p, q)) == pytest.approx(np.log(2), abs=1e-6)
    assert float(divergence(p, p)) == pytest.approx(0, abs=1e-7)


# --- FedCorr ---------------------------------------------------------------------------------------------------------


def test_fedcorrs_dimensions() -> None:
    points = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    found = dimensions(points, 2)
    assert found.tolist() == pytest.approx([1.442695, 1.820478, 6.952119, 3.573881], abs=1e-6)
    assert float(found.mean()) == pytest.approx(3.447293, abs=1e-6)
    coded = dimensions(points, 2, 1e-6)
    assert coded.tolist() == pytest.approx([1.442692, 1.820472, 6.952058, 3.573874], abs=1e-6)


def test_dimensions_of_few_and_of_equal_points() -> None:
    points = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    assert dimensions(points, 20).tolist() == pytest.approx(dimensions(points, 4).tolist())
    assert dimensions(torch.ones(30, 3)).tolist() == [0.0] * 30
    assert dimensions(torch.ones(1, 3)).tolist() == [0.0]


def test_fedcorrs_losses() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1]]).repeat(3, 1)
    labels = torch.arange(3)
    assert modelled_losses(p, labels, "code").tolist() == pytest.approx([0.767950, 1.267950, 1.367950], abs=1e-6)
    assert modelled_losses(p, labels, "paper").tolist() == pytest.approx([0.356675, 1.609438, 2.302585], abs=1e-6)
    ten = torch.stack([torch.eye(10)[0], torch.eye(10)[1], torch.full((10,), 0.1)])  # right, wrong, flat
    found = modelled_losses(ten, torch.zeros(3, dtype=torch.int64), "code")
    assert found.tolist() == pytest.approx([1.461, 2.461, 2.303], abs=5e-4)


def test_fedcorrs_relabelling() -> None:
    losses = torch.tensor([0.1, 0.2, 0.1, 0.3, 0.2, 2.0, 2.2, 2.5])
    upper = upper_values(losses)
    assert upper.tolist() == [False] * 5 + [True] * 3
    rows = worst(losses, int(upper.sum()), 0.5)
    assert rows.tolist() == [7]
    assert len(worst(torch.rand(500), 310, 0.5)) == 155
    labels, sure, unsure = torch.zeros(8, dtype=torch.int64), torch.full((8, 2), 0.4), torch.full((8, 2), 0.5)
    sure[:, 1] = 0.6
    assert relabelled(labels, sure, rows, 0.5).tolist() == [0] * 7 + [1]
    assert relabelled(labels, unsure, rows, 0.5).tolist() == [0] * 8


def test_fedcorrs_proximal_term() -> None:
    """β = 5, μ = 0.2, w − θ = (3, 4): 5 as coded, 25 squared; here their gradients."""
    away, weight = torch.tensor([3.0, 4.0], requires_grad=True), 5 * 0.2
    for version, term, value in (("code", away.norm(), 5.0), ("paper", away.square().sum(), 25.0)):
        assert float((weight * term).detach()) == pytest.approx(value)
        (expected,) = torch.autograd.grad(weight * term, away)
        assert (weight * pull(away.detach(), version)).tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert pull(torch.zeros(2), "code").tolist() == [0, 0]


def test_noisy_clients_by_their_sums_of_dimensions() -> None:
    assert noisy_clients({"0": 4.0, "1": 9.5, "2": 4.2, "10": 9.0, "3": 4.1}) == [1, 10]
    assert noisy_clients({"0": 4.0}) == []
    assert noisy_clients({"0": 4.0, "1": 4.0}) == []


# --- FedDiv ----------------------------------------------------------------------------------------------------------

# As they are sent: shares, means, variances.
ONES, TWOS = [0.5, 0.5, 0.2, 2.0, 0.04, 0.25], [0.9, 0.1, 0.4, 1.2, 0.08, 0.17]


def test_feddivs_filter() -> None:
    found = average([ONES, TWOS], [100, 300])
    assert found == pytest.approx([0.8, 0.2, 0.35, 1.40, 0.07, 0.19])
    params = filter_of(dict(zip(FILTER, found, strict=True)), CPU)
    assert params is not None
    posterior = lower_posterior(torch.tensor([0.5, 0.9, 1.0, 1.1, 1.4]), params).tolist()
    assert posterior == pytest.approx([0.979294, 0.594534, 0.329324, 0.130624, 0.002499], abs=1e-6)
    assert [p >= FedDiv.clean_from for p in posterior] == [True, True, False, False, False]


def test_feddivs_filter_keeps_clean_labels_that_are_not_memorised() -> None:
    """40 labels memorised, 30 learnt less well, 60 wrong, and a filter that came to know the memorised alone: with
    losses as they are it stays so."""
    losses = torch.cat([torch.linspace(0, 0.03, 40), torch.linspace(0.1, 0.5, 30), torch.linspace(3, 9, 60)])
    logits = torch.stack([torch.zeros(130), losses.expm1().clamp_min(1e-6).log()], 1)
    scaled_by = scaled_losses(logits, torch.zeros(130, dtype=torch.int64))
    assert (float(scaled_by.min()), float(scaled_by.max())) == (0.0, 1.0)
    start = torch.tensor([[0.3, 0.7], [0.015, 4.0], [1e-4, 12.0]], dtype=torch.float64)
    same = start / torch.tensor([[1.0], [9.0], [81.0]])
    cases = ((losses, start, 1e-6), (scaled_by, same, 5e-4))
    found = [lower_posterior(x, fitted(x, begin, floor)) >= 0.5 for x, begin, floor in cases]
    assert [int(clean.sum()) for clean in found] == [40, 70]


def test_feddivs_logits_without_bias() -> None:
    predicted = torch.tensor([0.7, 0.2, 0.1])
    found = debiased(torch.tensor([[2.0, 1.6, 1.0]]), predicted, FedDiv.strength)[0]
    assert found.tolist() == pytest.approx([2.178337, 2.404719, 2.151293], abs=1e-6)
    assert int(found.argmax()) == 1
    now = followed(predicted, torch.tensor([0.5, 0.3, 0.2]), FedDiv.momentum)
    assert now.tolist() == pytest.approx([0.54, 0.28, 0.18], abs=1e-6)
    assert float(uneven(predicted[None])) == pytest.approx(0.324287, abs=1e-6)


@pytest.mark.parametrize("gap", [40.0, 50.0, 90.0, 1000.0])
def test_a_class_that_is_never_predicted_gives_finite_gradients(gap: float) -> None:
    """½ ln(½ / q) is about ½ gap, up to q = 1e-19; from there on there is no gradient."""
    logits = torch.tensor([[gap, 0.0]] * 3, requires_grad=True)
    loss = uneven(torch.softmax(logits, 1))
    (slope,) = torch.autograd.grad(loss, logits)
    assert float(loss.detach()) == pytest.approx(min(gap, 19 * math.log(10)) / 2 - math.log(2), rel=1e-5)
    assert slope.flatten().tolist() == pytest.approx([1 / 6, -1 / 6] * 3 if gap < 43 else [0.0] * 6, rel=1e-4)


def test_a_filter_is_fitted_to_losses() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.normal(0.3, 0.1, 700), rng.normal(2.0, 0.4, 300)
    losses = torch.from_numpy(np.concatenate([low, high]))
    for start in (None, filter_of(dict(zip(FILTER, ONES, strict=True)), CPU)):
        found = fitted(losses, start)
        expected = [0.7, 0.3, low.mean(), high.mean(), low.var(), high.var()]
        assert found.flatten().tolist() == pytest.approx(expected, abs=0.002)


# --- FedGR -----------------------------------------------------------------------------------------------------------


def test_fedgrs_running_mean() -> None:
    mean, found = torch.zeros(1), []
    for visits, loss in enumerate((2.0, 1.0, 3.0)):
        mean = running_mean(mean, torch.tensor([loss]), torch.tensor(float(visits)))
        found.append(float(mean))
    assert found == [2.0, 1.5, 2.0]


def test_fedgrs_losses_by_sample_and_as_coded() -> None:
    given, pseudo, chance = (torch.tensor(v) for v in ([0.2, 2.0, 1.0], [0.2, 0.4, 0.0], [0.9, 0.1, 0.5]))
    assert float(both_losses(given, pseudo, chance, "paper")) == pytest.approx(0.42)
    assert float(both_losses(given, pseudo, chance, "code")) == pytest.approx(0.633333, abs=1e-6)


def test_fedgrs_moving_average() -> None:
    nets: Any = {name: SimpleNamespace(params=torch.tensor(p), others={}) for name, p in
                 (("teacher", [1.0, 2.0]), ("model", [3.0, 0.0]))}  # fmt: skip
    revise(nets, 0.9)
    assert nets["teacher"].params.tolist() == pytest.approx([1.2, 1.8])
    found = follow(torch.tensor([1.0, 2.0, 9.0, 99.0, 500.0])).tolist()
    assert found == pytest.approx([0.5, 0.666667, 0.9, 0.99, 0.99], abs=1e-6)


def test_fedgrs_sieve_over_all_clients_of_a_round() -> None:
    """A clean client and one with half of its labels wrong: on its own the clean one would find wrong labels, too."""
    clean, mixed = torch.linspace(0.1, 0.9, 100), torch.cat([torch.linspace(0.1, 0.9, 50), torch.linspace(3, 5, 50)])
    counts = [counted(losses) for losses in (clean, mixed)]
    assert [int(c.sum()) for c in counts] == [100, 100]
    assert counted(torch.tensor([0.0, 0.03, 0.04, 50.0])).nonzero()[:, 0].tolist() == [0, 1, 255]
    sieve = sieve_of(counts[0] + counts[1])
    assert sieve is not None
    assert sieve[0].tolist() == pytest.approx([0.75, 0.25], abs=1e-3)
    assert sieve[1].tolist() == pytest.approx([0.5, 4.0], abs=0.02)
    assert [wrong_share(c, sieve) for c in counts] == pytest.approx([0.0, 0.5])
    alone = clean_chances(clean)
    assert float((alone < 0.5).float().mean()) > 0.3
    assert sieve_of(counted(torch.zeros(5))) is None


def test_fedgrs_clients_hear_the_pooled_sieve(monkeypatch: pytest.MonkeyPatch) -> None:
    server = {"name": "fedgr", "passes": 1, "version": "pooled"}
    trace = stages_of(server, {"name": "fedgr", "xi": 0.3}, monkeypatch)
    sieves = trace.state.server.values["sieves"]
    assert set(sieves) == set("0123")
    seen: set[int] = set()
    for jobs in trace.jobs:
        for job in jobs:
            assert (SIEVE[0] in job.turn.signals) == (job.client in seen)
        seen |= {job.client for job in jobs}


def test_fedgrs_draw_by_clean_labels() -> None:
    assert cleaner([0.1, 0.5, 0.8]) == pytest.approx([0.5625, 0.3125, 0.125])
    assert cleaner([1.0, 1.0]) == [1.0, 1.0]


@pytest.mark.parametrize(("clients", "each", "passes", "rounds"), [(100, 10, 10, 100), (50, 1, 1, 50), (4, 3, 2, 4)])
def test_fedgrs_visits(clients: int, each: int, passes: int, rounds: int) -> None:
    """ceil(1/γ) · S rounds, after which everybody has been visited S times or more."""
    server = FedGr(FedGrConfig(passes=passes), Task(2, (1, 2, 2), 2, 0.1, 500, sizes=(5,) * clients))
    state, visits, round_idx = ServerState({"model/w": torch.zeros(1)}), [0] * clients, 1
    while server.visiting(state, round_idx):
        chances = server.chances(state, round_idx, range(clients))
        assert chances is not None
        drawn = np.argsort(-np.array(chances), kind="stable")[:each].tolist()
        numbers = {"samples": 5.0, "steps": 1.0, "noise": 0.5}
        updates = [Update(k, {"model/w": torch.zeros(1)}, numbers) for k in drawn]
        state = server.aggregate(state, round_idx, updates)
        visits = [count + (k in drawn) for k, count in enumerate(visits)]
        round_idx += 1
    assert round_idx - 1 == rounds
    assert min(visits) >= passes


def test_equal_losses_are_all_clean() -> None:
    assert clean_chances(torch.full((4,), 0.7)).tolist() == [1.0] * 4
    found = clean_chances(torch.tensor([0.1, 0.2, 0.15, 3.0]))
    assert (found < 0.5).tolist() == [False, False, False, True]


# --- All stages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "learner"),
    [
        ({"name": "fedcorr", "passes": 1, "warmup": 2}, {"name": "mixup"}),
        ({"name": "fedcorr", "passes": 1, "warmup": 1, "version": "paper"}, {"name": "dividemix", "warmup": 4}),
        ({"name": "feddiv", "passes": 1}, {"name": "feddiv", "xi": 0.3}),
        ({"name": "fednoro", "warmup": 1}, {"name": "fedelc"}),
        ({"name": "fedgr", "passes": 2, "warmup": 2}, {"name": "fedgr", "xi": 0.3}),
        ({"name": "fedgr", "passes": 1, "warmup": 2, "version": "pooled"}, {"name": "fedgr", "xi": 0.3}),
    ],
    ids=lambda section: section["name"],
)
def test_all_stages_keep_the_contract(
    server: dict[str, Any], learner: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four clients and a pass over them, then two more stages: resumed, in another order, side by side."""
    monkeypatch.setattr(federation, "ROUNDS", 8)
    monkeypatch.setattr(Corrects, "confidence", 0.0)  # a network of a few steps is sure of nothing
    check_method(server, learner, {"name": "uniform", "fraction": 0.75})


def stages_of(server: dict[str, Any], learner: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> federation.Trace:
    monkeypatch.setattr(federation, "ROUNDS", 8)
    monkeypatch.setattr(Corrects, "confidence", 0.0)
    config = federation.tiny_config(server, learner, {"name": "uniform", "fraction": 0.75})
    return federation.play(config, federation.Circumstances())


def test_fedcorr_corrects_labels_in_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    server = {"name": "fedcorr", "passes": 1, "warmup": 2}
    trace = stages_of(server, {"name": "mixup"}, monkeypatch)
    assert [len(jobs) for jobs in trace.jobs[:4]] == [1] * 4
    assert sorted(jobs[0].client for jobs in trace.jobs[:4]) == [0, 1, 2, 3]
    noisy = trace.state.server.values["noisy"]
    assert noisy
    assert sorted(trace.asked) == [5, 7]
    corrected = {r.client: r.keep["labels"] for r in trace.answers[7] if "labels" in r.keep}
    assert sorted(corrected) == noisy
    for jobs in trace.jobs[6:]:
        assert all("labels" in job.keep for job in jobs if job.client in noisy)
    little = {k for k, n in trace.state.server.values["noise"].items() if n > 0.1}
    assert not little & {str(job.client) for jobs in trace.jobs[4:6] for job in jobs}


def test_feddivs_clients_hear_the_filter_after_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = stages_of({"name": "feddiv", "passes": 1}, {"name": "feddiv", "xi": 0.3}, monkeypatch)
    assert [bool(jobs[0].turn.signals) for jobs in trace.jobs] == [False] * 4 + [True] * 4
    assert set(trace.jobs[4][0].turn.signals) == set(FILTER)
    assert set(trace.state.server.values["filters"]) == set("0123")


def test_feddivs_first_filter_is_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients fit theirs to the model that the passes ended with, not each to the one of its own visit."""
    trace = stages_of({"name": "feddiv", "passes": 1}, {"name": "feddiv", "xi": 0.3}, monkeypatch)
    assert list(trace.asked) == [5]
    start = [job.turn.signals for job in trace.asked[5]]
    assert all(sent == start[0] and set(sent) == set(FILTER) for sent in start)
    answers = [result.numbers for result in trace.answers[5]]
    sizes = [numbers["samples"] for numbers in answers]
    expected = average([[numbers[name] for name in FILTER] for numbers in answers], sizes)
    assert list(trace.jobs[4][0].turn.signals.values()) == pytest.approx(expected)
    assert expected != pytest.approx(list(start[0].values()))


def test_one_value_is_both_components() -> None:
    """A client with one sample."""
    found = fitted(torch.tensor([0.7]), floor=0.01)
    assert found.tolist() == [[0.5, 0.5], [pytest.approx(0.7)] * 2, [0.01, 0.01]]
    assert lower_posterior(torch.tensor([0.7]), found).tolist() == [0.5]
