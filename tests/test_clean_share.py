"""The share of clean labels that a client estimates, and what FedNoiL does with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_fednoil import learner, make, plus, size_of, split

from fednoil import rounds
from fednoil.experiment import make_executor
from fednoil.learners import fednoil_plus
from fednoil.learners.base import Client, Turn
from fednoil.learners.clean_share import calibrated_shares, clean_shares
from fednoil.seeds import Seed
from fednoil.testing import check_learner

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
    assert calibrated_shares([probs], [labels])[0] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_an_overconfident_model_is_seen_through(share: float) -> None:
    """Logits three times as large: right labels that the model is sure are wrong look wrong to the plain estimate."""
    probs, labels = samples(share, 2_000, spread=0.5)
    sure = torch.softmax(probs.log() * 3, dim=1)
    assert clean_shares([sure.gather(1, labels[:, None])[:, 0]], 10)[0] < 0.85 * share
    assert calibrated_shares([sure], [labels])[0] == pytest.approx(share, abs=0.05)


def test_clients_of_different_sizes_are_judged_at_once_as_each_alone() -> None:
    """Whose shares are apart, so that none could be taken for another's; and a client with no label set aside."""
    found = [samples(share, count) for share, count in ((0.2, 400), (0.9, 30), (0.5, 101))]
    probs, labels = [list(part) for part in zip(*found, strict=True)]
    alone = [calibrated_shares([p], [y])[0] for p, y in found]
    assert calibrated_shares(probs, labels) == pytest.approx(alone, abs=1e-9)
    given = [p.gather(1, y[:, None])[:, 0] for p, y in found]
    assert clean_shares(given, 10) == pytest.approx([clean_shares([g], 10)[0] for g in given], abs=1e-9)
    states = [{"probabilities": p, "confidence": g} for p, g in zip(probs, given, strict=True)]
    method, clients = plus(aside=0.3), [client_of(y) for y in labels]
    alone = [method.clean_shares([c], [s])[0] for c, s in zip(clients, states, strict=True)]
    assert method.clean_shares(clients, states) == pytest.approx(alone, abs=1e-9)
    assert len({round(share, 2) for share in alone}) == 3


def test_few_labels_and_none_of_a_model_say_little() -> None:
    assert calibrated_shares([torch.full((4, 10), 0.1)], [torch.arange(4)])[0] == pytest.approx(0.5, abs=1e-3)
    one_hot = torch.eye(10)[:3]
    assert 0.6 < calibrated_shares([one_hot], [torch.arange(3)])[0] < 0.95
    assert 0.05 < calibrated_shares([one_hot], [torch.arange(3) + 5])[0] < 0.4


def test_clean_share_of_an_untrained_model_is_one_half() -> None:
    assert clean_shares([torch.full((150,), 0.1)], 10)[0] == pytest.approx(0.5, abs=1e-3)


def test_clean_share_is_sure_of_clean_and_of_hopeless_labels() -> None:
    assert clean_shares([torch.full((300,), 0.99)], 10)[0] > 0.97
    assert clean_shares([torch.full((300,), 0.001)], 10)[0] < 0.02
    assert 0 < clean_shares([torch.tensor([0.0, 1.0])], 2)[0] < 1


def test_auto_leaves_room_and_balances_only_auto() -> None:
    sure, client = (
        {"confidence": torch.cat([torch.full((60,), 0.999), torch.full((40,), 0.001)])},
        client_of(torch.zeros(100).long()),
    )
    assert size_of(plus(aside=0.0), client, sure) == pytest.approx(60, abs=2)
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


def memorised(aside: float, *, others: bool = True) -> float:
    """The share of clean labels that a client finds with 1,000 labels, four of five wrong. The model is right about
    every image but those whose labels it was trained on, or (not `others`) those set aside: there it says what was
    given."""
    method, labels = plus(aside=aside), torch.arange(1000) % 10
    true = torch.where(torch.arange(1000) // 10 % 5 == 0, labels, (labels + 1 + torch.arange(1000) // 50 % 9) % 10)
    trained = torch.full((1000,), others)
    trained[method.set_aside(1000, CPU)] = not others
    said = torch.where(trained, labels, true)
    probs = torch.full((1000, 10), 0.01).scatter_(1, said[:, None], 0.91)
    state = {"confidence": probs[torch.arange(1000), labels], "probabilities": probs}
    return method.clean_shares([client_of(labels)], [state])[0]


def test_memorised_labels_look_clean_unless_some_were_set_aside() -> None:
    assert memorised(0.0) > 0.97
    assert memorised(0.1) == pytest.approx(0.2, abs=0.06)
    assert memorised(0.3) == pytest.approx(0.2, abs=0.04)


def test_of_two_estimates_the_smaller_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the labels set aside are those that look clean; a client without many labels has these alone."""
    assert memorised(0.1, others=False) == pytest.approx(0.2, abs=0.02)
    monkeypatch.setattr(fednoil_plus, "MANY", 1001)
    assert memorised(0.1, others=False) > 0.9


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some labels are set aside however few they are."""
    monkeypatch.setattr(fednoil_plus, "_FEW", 1)


@pytest.mark.usefixtures("few")
def test_what_is_set_aside_is_never_drawn() -> None:
    """Not even where its labels are the likeliest, and its classes are others than the rest's; all of it is in D^u."""
    method = plus(aside=0.2)
    aside = method.set_aside(50, CPU)
    assert aside.tolist() == list(range(2, 50, 5))
    weight, labels = torch.full((2, 50), 1e-9), torch.zeros(2, 50).long()
    weight[:, aside], labels[:, aside] = 1.0, 1
    drawn, rest = split(method, weight, labels, 40, range(20))
    assert not bool(torch.isin(drawn % 50, aside).any())
    assert bool((rest.view(2, 20, 10).sort(2).values == torch.stack([aside, aside + 50])[:, None]).all())


def test_sizes_are_of_what_is_not_set_aside() -> None:
    labels = torch.arange(100) % 10
    right = torch.full((100, 10), 0.001).scatter_(1, labels[:, None], 0.991)
    state = {"confidence": right[torch.arange(100), labels], "probabilities": right}
    assert size_of(plus(aside=0.4), client_of(labels), state) == pytest.approx(58, abs=1)  # of 60
    assert size_of(plus(aside=0.4, frac=0.35), client_of(labels), state) == 35
    assert plus(aside=0.4).set_aside(74, CPU).tolist() == []  # too few: the estimate is of all labels


@pytest.mark.usefixtures("few")
def test_whole_rounds_spare_the_same_labels(fednoil_values: dict[str, Any]) -> None:
    """Round after round and in every epoch, so that no turn memorises them."""
    experiment = make(fednoil_values, name="fednoil-plus", frac="auto", aside=0.25)
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    for _ in range(3):
        state, _ = rounds.play(experiment, executor, state)
    drawn = state.evidence["drawn"].view(4, 20)
    aside = experiment.learner.set_aside(20, CPU)  # type: ignore[attr-defined]
    assert len(aside) == 5
    assert int(drawn[:, aside].sum()) == 0
    assert int(drawn.sum()) > 0


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("keys", [{"aside": 0.3}, {"aside": 0.0}], ids=str)
def test_other_estimates_keep_the_contract(keys: dict[str, Any]) -> None:
    """Through checkpoints and in any order of clients: nothing has to be remembered for them."""
    check_learner("fednoil-plus", servers=["fedavg", "apfl"], **keys)
