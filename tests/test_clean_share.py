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
from fednoil.learners.base import Client, Task, Turn
from fednoil.learners.clean_share import clean_shares
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
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


def memorised(aside: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """The share of clean labels that a client finds with 1,000 labels, four of five wrong. The model is right about
    every image but those whose labels it was trained on: there it says what was given."""
    monkeypatch.setattr(fednoil_plus, "_ASIDE", aside)
    method, labels = plus(), torch.arange(1000) % 10
    true = torch.where(torch.arange(1000) // 10 % 5 == 0, labels, (labels + 1 + torch.arange(1000) // 50 % 9) % 10)
    said = labels.clone()
    if aside:
        said[method.set_aside(1000, CPU)] = true[method.set_aside(1000, CPU)]
    probs = torch.full((1000, 10), 0.01).scatter_(1, said[:, None], 0.91)
    state = {"confidence": probs[torch.arange(1000), labels], "probabilities": probs}
    return method.clean_shares([client_of(labels)], [state])[0]


def test_memorised_labels_look_clean_unless_some_were_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memorised(0.0, monkeypatch) > 0.97
    assert memorised(0.1, monkeypatch) == pytest.approx(0.2, abs=0.06)
    assert memorised(0.3, monkeypatch) == pytest.approx(0.2, abs=0.04)


def test_labels_are_set_aside_where_there_are_few_clients_with_enough_of_them() -> None:
    def aside(clients: int, count: int, **keys: Any) -> int:
        task = Task(10, (1, 28, 28), 32, 0.05, 150, sizes=(count,) * clients)
        return len(FedNoilPlus(FedNoilPlusConfig(**keys), task).set_aside(count, CPU))

    assert [aside(4, count) for count in (20, 299, 300, 600)] == [0, 0, 30, 60]
    assert [aside(clients, 600) for clients in (1, 10, 11, 20)] == [60, 60, 0, 0]
    assert aside(4, 600, frac=0.5) == 0


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many labels are set aside however few there are."""
    monkeypatch.setattr(fednoil_plus, "_FEW", 1)
    monkeypatch.setattr(fednoil_plus, "_ASIDE", 0.25)


@pytest.mark.usefixtures("many")
def test_what_is_set_aside_is_never_drawn() -> None:
    """Not even where its labels are the likeliest, and its classes are others than the rest's; all of it is in D^u."""
    method = plus()
    aside = method.set_aside(40, CPU)
    assert aside.tolist() == list(range(2, 40, 4))
    weight, labels = torch.full((2, 40), 1e-9), torch.zeros(2, 40).long()
    weight[:, aside], labels[:, aside] = 1.0, 1
    drawn, rest = split(method, weight, labels, 30, range(20))
    assert not bool(torch.isin(drawn % 40, aside).any())
    assert bool((rest.view(2, 20, 10).sort(2).values == torch.stack([aside, aside + 40])[:, None]).all())


@pytest.mark.usefixtures("many")
def test_sizes_are_of_what_is_not_set_aside() -> None:
    labels = torch.arange(100) % 10
    right = torch.full((100, 10), 0.001).scatter_(1, labels[:, None], 0.991)
    state = {"confidence": right[torch.arange(100), labels], "probabilities": right}
    assert size_of(plus(), client_of(labels), state) == pytest.approx(73, abs=1)  # of 75
    assert size_of(plus(frac=0.35), client_of(labels), state) == 35


@pytest.mark.usefixtures("many")
def test_whole_rounds_spare_the_same_labels(fednoil_values: dict[str, Any]) -> None:
    """Round after round and in every epoch, so that no turn memorises them."""
    experiment = make(fednoil_values, name="fednoil-plus", frac="auto")
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    for _ in range(3):
        state, _ = rounds.play(experiment, executor, state)
    drawn = state.evidence["drawn"].view(4, 20)
    aside = experiment.learner.set_aside(20, CPU)  # type: ignore[attr-defined]
    assert len(aside) == 5
    assert int(drawn[:, aside].sum()) == 0
    assert int(drawn.sum()) > 0


@pytest.mark.usefixtures("many")
def test_labels_set_aside_keep_the_contract() -> None:
    """Through checkpoints and in any order of clients: nothing has to be remembered for them."""
    check_learner("fednoil-plus", servers=["fedavg", "apfl"])
