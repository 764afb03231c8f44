"""The share of clean labels that a client estimates, and what FedNoiL does with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_fednoil import learner, make, plus, size_of

from fednoil.experiment import make_executor
from fednoil.learners.base import Client, Turn
from fednoil.learners.clean_share import clean_shares
from fednoil.seeds import Seed

CPU = torch.device("cpu")


def samples(share: float, n: int, spread: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [n, 10] of a calibrated model, the less sure the larger `spread`, and given labels [n] of which
    `share` are right."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([spread] * 10, size=n)
    true = np.array([rng.choice(10, p=p) for p in probs])
    wrong = (true + rng.integers(1, 10, size=n)) % 10
    return torch.tensor(probs), torch.tensor(np.where(rng.random(n) < share, true, wrong))


def client_of(labels: torch.Tensor) -> Client:
    return Client(0, torch.zeros(1, 1, 28, 28, dtype=torch.uint8), torch.zeros_like(labels), labels)


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.9])
def test_clean_share_is_found_with_a_calibrated_model(share: float) -> None:
    """Labels drawn from the very model that the estimate assumes."""
    probs, labels = samples(share, 20_000)
    assert clean_shares([probs.gather(1, labels[:, None])[:, 0]], 10)[0] == pytest.approx(share, abs=0.02)


def test_clients_of_different_sizes_are_judged_at_once_as_each_alone() -> None:
    """Whose shares are apart, so that none could be taken for another's."""
    found = [samples(share, count) for share, count in ((0.2, 400), (0.9, 30), (0.5, 101))]
    given = [p.gather(1, y[:, None])[:, 0] for p, y in found]
    alone = [clean_shares([g], 10)[0] for g in given]
    assert clean_shares(given, 10) == pytest.approx(alone, abs=1e-9)
    assert len({round(share, 2) for share in alone}) == 3


def test_clean_share_of_an_untrained_model_is_one_half() -> None:
    assert clean_shares([torch.full((150,), 0.1)], 10)[0] == pytest.approx(0.5, abs=1e-3)


def test_clean_share_is_sure_of_clean_and_of_hopeless_labels() -> None:
    assert clean_shares([torch.full((300,), 0.99)], 10)[0] > 0.97
    assert clean_shares([torch.full((300,), 0.001)], 10)[0] < 0.02
    assert 0 < clean_shares([torch.tensor([0.0, 1.0])], 2)[0] < 1


def test_auto_leaves_room_and_balances_only_auto() -> None:
    given = torch.cat([torch.full((60,), 0.999), torch.full((40,), 0.001)])
    others = ((1 - given) / 9)[:, None].expand(-1, 9)
    sure = {"confidence": given, "probabilities": torch.cat([given[:, None], others], dim=1)}
    client = client_of(torch.zeros(100).long())
    assert size_of(plus(), client, sure) == pytest.approx(60, abs=2)
    assert size_of(learner(), client, sure) == pytest.approx(68, abs=2)  # and a fifth of the other 40
    assert size_of(learner(frac=0.35), client, sure) == 35
    assert learner().unlabelled_weight(80, 20) == 0.25
    assert learner().unlabelled_weight(20, 80) == 1.0
    assert learner(frac=0.8).unlabelled_weight(80, 20) == 1.0


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
