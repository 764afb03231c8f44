"""What the default believes of its labels in the second half of the rounds, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from made_fednoil import size_of
from torch import nn

from fednoil import rounds
from fednoil.config import load_config
from fednoil.executors.optimiser import Optimiser
from fednoil.experiment import make_bench, make_executor, make_experiment
from fednoil.learners import fednoil_plus
from fednoil.learners.base import Client, Task, Trainee, Turn
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.learners.held import local_probabilities
from fednoil.learners.odds import believed, odds, sharpened
from fednoil.scale import LARGE, is_large
from fednoil.seeds import Seed
from fednoil.tensors import Tensors
from fednoil.testing import check_learner

CPU = torch.device("cpu")
ROUNDS = 10


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients of these tests have too few labels to believe a model."""
    monkeypatch.setattr(fednoil_plus, "MANY", 2)


def plus(*, large: bool = False, **keys: Any) -> FedNoilPlus:
    return FedNoilPlus(FedNoilPlusConfig(**keys), Task(3, (1, 8, 8), 4, 0.05, ROUNDS, large=large))


def client_of(labels: list[int]) -> Client:
    given = torch.tensor(labels)
    return Client(0, torch.zeros(len(given), 1, 8, 8, dtype=torch.uint8), torch.arange(len(given)), given)


def looked(probabilities: list[list[float]], labels: list[int]) -> Tensors:
    """A state after a look: the confidences are those of τ = 0.5."""
    found = torch.tensor(probabilities)
    own = sharpened(found, 0.5).gather(1, torch.tensor(labels)[:, None])[:, 0]
    return {"probabilities": found, "confidence": own.float()}


def test_sharpened_probabilities_are_squared_at_half_the_temperature() -> None:
    found = sharpened(torch.tensor([[0.6, 0.3, 0.1]]), 0.5)
    assert found[0].tolist() == pytest.approx([0.36 / 0.46, 0.09 / 0.46, 0.01 / 0.46])
    assert sharpened(torch.tensor([[1.0, 0.0, 0.0]]), 0.5)[0].tolist() == [1.0, 0.0, 0.0]


def test_odds_by_hand() -> None:
    """Half of the labels are correct, and a wrong one is either other class: .5·.2 against .25·.8 is 1 : 2; a model
    that knows nothing gives 1/3, hence .5·1/3 against .25·2/3, which is 1; certainty has odds that can be squared."""
    probabilities = torch.tensor([[0.2, 0.5, 0.3], [1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]).double()
    found = odds(probabilities, torch.tensor([0, 1, 0, 2]), 0.5)
    assert found.tolist() == pytest.approx([0.5, 1.0, 1e9, 1e-9])
    assert bool(found.square().isfinite().all())


def test_what_is_believed_by_hand() -> None:
    """With four fifths correct labels: .3·.8 for the label against .6·.1; with a third nothing is known of a label, and
    the model decides."""
    probabilities, label = torch.tensor([[0.3, 0.6, 0.1]]), torch.tensor([0])
    guess, certainty = believed(probabilities, label, 0.8)
    assert guess.tolist() == [0]
    assert certainty.tolist() == pytest.approx([0.24 / (0.24 + 0.06 + 0.01)])
    guess, certainty = believed(probabilities, label, 1 / 3)
    assert guess.tolist() == [1]
    assert certainty.tolist() == pytest.approx([0.6])


def test_labels_are_drawn_by_odds_in_the_second_half_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares o²/(1 + o²) of four labels add up to |D^x|, where before it was the estimated share of all."""
    monkeypatch.setattr(FedNoilPlus, "shares", lambda *_: [0.5])
    labels = [0, 1, 2, 0]
    state = looked([[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98], [0.01, 0.98, 0.01]], labels)
    learner, client = plus(), client_of(labels)
    local = sharpened(local_probabilities(state["probabilities"], client.labels, 0.5), 0.5)
    assert size_of(learner, client, state, ROUNDS // 2) == 2
    assert torch.equal(learner.weights(state), local.gather(1, client.labels[:, None])[:, 0])
    assert size_of(learner, client, state, ROUNDS // 2 + 1) == 3
    assert torch.equal(learner.weights(state), odds(local, client.labels, 0.5) ** 2)
    assert "guess" not in state


def test_labels_that_the_model_contradicts_get_its_class_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedNoilPlus, "shares", lambda *_: [0.5])
    labels = [0, 1, 2] * 2
    said = [0, 1, 2, 1, 2, 0]
    state = looked([[0.99 if y == k else 0.005 for k in range(3)] for y in said], labels)
    learner, client = plus(large=True), client_of(labels)
    assert size_of(plus(), client, dict(state), ROUNDS) == 3
    assert size_of(learner, client, state, ROUNDS) == 3
    assert state["used"].tolist() == [False] * 3 + [True] * 3
    assert state["guess"].tolist() == said
    assert learner.weights(state)[3:].tolist() == [0.0] * 3
    assert bool((learner.weights(state)[:3] > 1).all())


def test_labels_set_aside_are_neither_counted_nor_relabelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedNoilPlus, "shares", lambda *_: [0.5])
    monkeypatch.setattr(fednoil_plus, "_FEW", 1)
    monkeypatch.setattr(fednoil_plus, "_ASIDE", 0.25)
    labels = [0] * 8
    state = looked([[0.99, 0.005, 0.005]] * 4 + [[0.005, 0.99, 0.005]] * 4, labels)
    learner, client = plus(large=True, classes=False), client_of(labels)
    assert learner.set_aside(8, CPU).tolist() == [2, 6]
    assert size_of(plus(classes=False), client, dict(state), ROUNDS) == 3
    assert size_of(learner, client, state, ROUNDS) == 3
    assert state["used"].tolist() == [False] * 4 + [True, True, False, True]
    assert learner.weights(state)[4:].tolist() == [0.0, 0.0, pytest.approx(float(learner.weights(state)[6])), 0.0]


@pytest.mark.parametrize(
    ("large", "keys", "views", "weight"),
    [
        (False, {}, "weak", 0.0),
        (True, {}, "both", 1.0),
        (True, {"x_augment": "weak", "weight": 0.0}, "weak", 0.0),
        (False, {"x_augment": "strong", "weight": 0.5}, "strong", 0.5),
        (True, {"frac": 0.5}, "both", 0.0),
    ],
)
def test_a_large_network_sees_strong_views_and_pseudo_labels(
    large: bool, keys: dict[str, Any], views: str, weight: float
) -> None:
    learner = plus(large=large, **keys)
    assert learner.views_for(2) == views
    assert learner.pseudo_weight == weight


@pytest.mark.parametrize(("passes", "views"), [(199, "weak"), (200, "both")])
def test_a_large_network_memorises_nothing_in_a_short_run(passes: float, views: str) -> None:
    task = Task(3, (1, 2, 2), 2, 0.1, ROUNDS, large=True, passes=passes)
    learner = FedNoilPlus(FedNoilPlusConfig(), task)
    assert [learner.views_for(count) for count in (1, 2)] == ["both", views]  # with few labels in any case


def test_a_learner_knows_how_often_a_client_passes_over_its_data(values: dict[str, Any]) -> None:
    """Half of the clients in each of the rounds, with 4, 3 and 3 local epochs."""
    values["train"] |= {"rounds": 3}
    values["sampling"] |= {"fraction": 0.5}
    values["schedule"] = {"name": "constant", "epochs": 4, "r_min": 2}
    values["learner"] = {"name": "fednoil-plus"}
    assert len(make_experiment(load_config(values)).task.sizes) % 2 == 0
    assert make_experiment(load_config(values)).task.passes == 5
    values["server"] = {"name": "centralized"}  # where one client has all data
    assert make_experiment(load_config(values)).task.passes == 10


def test_a_client_with_few_labels_believes_nothing_and_sees_strong_views() -> None:
    learner = plus()
    assert [learner.views_for(count) for count in (1, 2)] == ["both", "weak"]
    assert [learner.believes(ROUNDS, count) for count in (1, 2)] == [False, True]
    assert [learner.believes(round_idx, 2) for round_idx in (ROUNDS // 2, ROUNDS // 2 + 1)] == [False, True]
    assert not plus(frac=0.5).believes(ROUNDS, 2)


def second_half(values: dict[str, Any], **keys: Any) -> tuple[FedNoilPlus, Trainee]:
    """A client of the tiny experiment in its last round, whose model contradicts every other label."""
    values["learner"] = {"name": "fednoil-plus", **keys}
    experiment = make_experiment(load_config(values))
    executor, turn = make_executor(experiment, CPU), Turn(experiment.task.rounds, 2, Seed(3))
    executor.bench.load(experiment.initial_model(), {})
    client, learner = executor.clients[0], experiment.learner
    assert isinstance(learner, FedNoilPlus)
    state = executor.bench.open(client, {}, turn)
    guess = (client.labels + torch.arange(len(client)) % 2) % experiment.task.num_classes
    sure = torch.full((len(client), experiment.task.num_classes), 0.01).scatter(1, guess[:, None], 1.0)
    state["probabilities"] = sure / sure.sum(1, keepdim=True)
    return learner, Trainee({}, client, state, turn)


def test_pseudo_labels_are_planned_beside_the_labels(values: dict[str, Any]) -> None:
    """As many as D^x has labels, at most all that are contradicted; none of them in D^x; what is lighter for the
    number of the others is their weight."""
    learner, one = second_half(values, weight=0.5)
    tensors = learner.plan(*one, range(2))[0].tensors
    size, used, count = int(one.state["size"]), one.state["used"], len(one.client)
    assert int(used.sum()) == min(size, count // 2)
    assert tensors["u_index"].shape == tensors["x_index"].shape
    chosen = set(one.client.index[used].tolist())
    assert set(tensors["u_index"].flatten().tolist()) <= chosen
    assert chosen.isdisjoint(tensors["x_index"].flatten().tolist())
    place = {int(row): k for k, row in enumerate(one.client.index)}
    rows = torch.tensor([place[int(row)] for row in tensors["u_index"].flatten()])
    assert torch.equal(tensors["u_labels"].flatten(), one.state["guess"][rows])
    share = 0.5 * int(used.sum()) / max(size, count - size)
    assert tensors["u_weight"].tolist() == pytest.approx([share] * len(tensors["u_index"]))
    assert bool(tensors["u_mask"].all())
    votes = one.state["votes"]
    assert votes.sum(1).tolist() == [2 * int(k) for k in used]
    assert torch.equal(votes[used].argmax(1), one.state["guess"][used])


def test_where_nothing_is_contradicted_batches_are_filled_and_masked(values: dict[str, Any]) -> None:
    """All labels are believed: other samples stand in for pseudo-labels, more than one of them, and count nothing."""
    learner, one = second_half(values, weight=1.0)
    sure = torch.full_like(one.state["probabilities"], 0.001).scatter(1, one.client.labels[:, None], 1.0)
    one.state["probabilities"] = sure / sure.sum(1, keepdim=True)
    tensors = learner.plan(*one, range(1))[0].tensors
    assert not bool(tensors["u_mask"].any())
    assert len(tensors["u_index"][0].unique()) == learner.task.batch_size
    assert int(one.state["size"]) == len(one.client)
    assert tensors["u_weight"].tolist() == pytest.approx(
        [learner.task.batch_size / len(one.client)] * len(tensors["x_index"])
    )
    assert not bool(one.state["votes"].any())


def test_no_sample_has_both_a_label_and_a_pseudo_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four labels are surely correct; four have confidence .3, hence odds 2 · .3/.7 = .86 and .86²/(1 + .86²) = .42
    each, where another class with .65 is likelier: odds say 4 + 1.7 labels, and all four others are pseudo-labels."""
    monkeypatch.setattr(FedNoilPlus, "shares", lambda *_: [0.5])
    labels, doubtful = [0] * 8, [0.3**0.5, 0.65**0.5, 0.05**0.5]
    state = looked([[1.0, 0.0, 0.0]] * 4 + [[p / sum(doubtful) for p in doubtful]] * 4, labels)
    assert size_of(plus(), client_of(labels), dict(state), ROUNDS) == 6
    assert size_of(plus(weight=1.0), client_of(labels), state, ROUNDS) == 4
    assert state["used"].tolist() == [False] * 4 + [True] * 4


def test_the_loss_of_pseudo_labels_by_hand() -> None:
    """Two labels at −log ½ each, one pseudo-label at −log ¼ with weight 0.3."""
    logits = torch.tensor([[0.0, 0.0, -1e9], [0.0, 0.0, -1e9], [math.log(2), 0.0, 0.0]])

    class Net:
        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            assert images.flatten().tolist() == [1.0, 2.0, 3.0]
            return logits

    batch = {
        "x": torch.tensor([1.0, 2.0]).view(2, 1, 1, 1),
        "x_labels": torch.tensor([0, 1]),
        "u": torch.tensor([3.0]).view(1, 1, 1, 1),
        "u_labels": torch.tensor([1]),
        "u_weight": torch.tensor(0.3),
        "u_mask": torch.tensor([True]),
    }
    learner = plus(large=True, mix=0.0)
    loss = learner.step({"model": Net()}, torch.empty(0), batch, {}, "train")  # type: ignore[dict-item]
    assert float(loss) == pytest.approx(math.log(2) + 0.3 * math.log(4))
    batch["u_prior"] = torch.tensor([0.0, math.log(2), 0.0])  # as if the client had twice as many of class 1
    loss = learner.step({"model": Net()}, torch.empty(0), batch, {}, "train")  # type: ignore[dict-item]
    assert float(loss) == pytest.approx(math.log(2) + 0.3 * math.log(2.5))


def test_a_large_network_through_the_second_half_of_a_run(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of four without pseudo-labels, then two with them."""
    monkeypatch.setattr("fednoil.experiment.is_large", lambda _: True)
    values["train"] |= {"rounds": 4, "weight_decay": "auto"}
    values["learner"], values["schedule"] = {"name": "fednoil-plus"}, {"name": "network", "epochs": 2}
    experiment = make_experiment(load_config(values))
    executor, state, accepted = make_executor(experiment, CPU), rounds.start(experiment), []
    for _ in range(4):
        state, record = rounds.play(experiment, executor, state)
        accepted.append(record.pseudo_accept)
    assert accepted[:2] == [0.0, 0.0]
    assert all(value and value > 0 for value in accepted[2:])


def test_the_contract_holds_with_pseudo_labels() -> None:
    check_learner(FedNoilPlus, weight=1.0)


def test_only_trained_parameters_make_a_network_large() -> None:
    width = math.isqrt(LARGE)
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(2 * width, 1, bias=False))
    assert is_large(model)
    model[1].weight.requires_grad_(False)
    assert not is_large(model)


@pytest.mark.parametrize(
    ("keys", "large", "sizes", "decay"),
    [
        ({"weight_decay": "auto"}, False, [400, 600], 1e-4),
        ({"weight_decay": "auto"}, False, [400, 599], 2e-3),
        ({"weight_decay": "auto"}, True, [600], 2e-3),
        ({"weight_decay": "auto", "optimizer": "adamw"}, True, [600], 1e-2),
        ({"weight_decay": 0.5}, True, [600], 0.5),
    ],
)
def test_weight_decay_by_the_size_of_the_network_and_its_clients(
    keys: dict[str, Any], large: bool, sizes: list[int], decay: float
) -> None:
    assert Optimiser(**keys).fitted(large=large, sizes=sizes).decay == decay


def test_weight_decay_of_an_unknown_network_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="before the network is"):
        _ = Optimiser(weight_decay="auto").decay


def test_an_experiment_knows_whether_its_network_is_large(values: dict[str, Any]) -> None:
    values["train"] |= {"weight_decay": "auto"}
    small = make_experiment(load_config(values))
    assert not small.task.large
    assert make_bench(small, CPU).optimiser.decay == 2e-3  # its clients have few samples
    many = replace(small, task=replace(small.task, sizes=(500,)))
    assert make_bench(many, CPU).optimiser.decay == 1e-4
    values["model"] = {"name": "resnet18", "width": 16}
    large = make_experiment(load_config(values))
    assert large.task.large
    assert make_bench(large, CPU).optimiser.decay == 2e-3
