"""The share of clean labels that a client estimates, and what FedNoiL does with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_fednoil import learner, make

from fednoil.experiment import make_executor
from fednoil.learners.base import Turn
from fednoil.learners.clean_share import clean_share
from fednoil.seeds import Seed

CPU = torch.device("cpu")


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.9])
def test_clean_share_is_found_with_a_calibrated_model(share: float) -> None:
    """Labels drawn from the very model that the estimate assumes."""
    rng = np.random.default_rng(0)
    n, classes = 20_000, 10
    probs = rng.dirichlet([0.1] * classes, size=n)
    true = np.array([rng.choice(classes, p=p) for p in probs])
    wrong = (true + rng.integers(1, classes, size=n)) % classes
    given_labels = np.where(rng.random(n) < share, true, wrong)
    g = torch.tensor(probs[np.arange(n), given_labels])
    assert clean_share(g, classes) == pytest.approx(share, abs=0.02)


def test_clean_share_of_an_untrained_model_is_one_half() -> None:
    assert clean_share(torch.full((150,), 0.1), 10) == pytest.approx(0.5, abs=1e-3)


def test_clean_share_is_sure_of_clean_and_of_hopeless_labels() -> None:
    assert clean_share(torch.full((300,), 0.99), 10) > 0.97
    assert clean_share(torch.full((300,), 0.001), 10) < 0.02
    assert 0 < clean_share(torch.tensor([0.0, 1.0]), 2) < 1


def test_auto_leaves_room_and_balances_only_auto() -> None:
    sure = {"confidence": torch.cat([torch.full((60,), 0.999), torch.full((40,), 0.001)])}
    exact = learner(explore=0.0).labelled_size(sure, 1)
    assert exact == pytest.approx(60, abs=2)
    assert learner(explore=0.5).labelled_size(sure, 1) == pytest.approx(80, abs=2)
    assert learner(frac=0.35, explore=0.5).labelled_size(sure, 1) == 35
    assert learner().unlabelled_weight(80, 20, 1) == 0.25
    assert learner().unlabelled_weight(20, 80, 1) == 1.0
    assert learner(balance=False).unlabelled_weight(80, 20, 1) == 1.0
    assert learner(frac=0.8).unlabelled_weight(80, 20, 1) == 1.0


def test_the_weight_reaches_the_loss(fednoil_values: dict[str, Any]) -> None:
    """With auto on a nearly clean client the unlabelled part of a step counts |D^u|/|D^x| of its value."""
    experiment = make(fednoil_values, frac="auto", xi=0.01)
    executor = make_executor(experiment, CPU)
    bench, client, method = executor.bench, executor.clients[0], experiment.learner
    bench.load(experiment.initial_model(), {})
    turn = Turn(1, 1, Seed(0))
    state = bench.open(client, {}, turn)
    state["confidence"] = torch.cat([torch.full((17,), 0.99), torch.full((3,), 0.001)])
    (phase,) = method.plan(bench.nets, client, state, turn, range(1))
    size = int(state["drawn"].sum())
    assert phase.tensors["u_weight"].tolist() == pytest.approx([(20 - size) / size] * phase.steps)
    batch = {name: tensor[0] for name, tensor in phase.tensors.items()}
    batch |= method.views(client.pool, batch)
    losses = []
    with torch.no_grad():
        for weight in (0.0, 1.0, (20 - size) / size):
            batch["u_weight"].fill_(weight)
            losses.append(float(method.step(bench.nets, client.pool, batch, state, "train")))
    low, high, balanced = losses
    assert high > low
    assert balanced == pytest.approx(low + (high - low) * (20 - size) / size, abs=1e-5)
