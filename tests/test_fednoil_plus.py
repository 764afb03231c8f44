"""FedNoiL's own additions against numbers worked out by hand, and without them FedNoiL itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same
from made_fednoil import size_of

import fednoil
from fednoil import rounds
from fednoil.augment import weakened
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners import fednoil_plus
from fednoil.learners.base import Task, Trainee, Turn
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig, adjustment, class_counts
from fednoil.seeds import Seed

CPU = torch.device("cpu")
OFF = {"frac": 0.5, "mix": 0.0, "adjust": False, "x_augment": "weak"}


def learner(**keys: Any) -> FedNoilPlus:
    return FedNoilPlus(FedNoilPlusConfig(**keys), Task(10, (1, 28, 28), 32, 0.05, 150))


def made(values: dict[str, Any], name: str = "fednoil-plus", **keys: Any) -> Experiment:
    values["sampling"] |= {"name": "score"}
    values["learner"] = {"name": name, **keys}
    return make_experiment(load_config(values))


def test_mixed_pairs_by_hand() -> None:
    """Images 10 and 30 with share .75: 15 and 25; the loss mixes the labels' losses alike."""
    batch = {
        "x": torch.tensor([10, 30], dtype=torch.uint8).view(2, 1, 1, 1),
        "x_labels": torch.tensor([0, 1]),
        "x_share": torch.tensor(0.75),
        "x_partner": torch.tensor([1, 0]),
    }
    assert learner(mix=1.0).labelled_inputs(batch).flatten().tolist() == [15.0, 25.0]
    logits = torch.tensor([[3.0, 1.0], [1.0, 1.0]]).log()
    right = -(torch.tensor(0.75).log() + torch.tensor(0.5).log()) / 2
    crossed = -(torch.tensor(0.25).log() + torch.tensor(0.5).log()) / 2
    assert float(learner(mix=1.0).labelled_loss(logits, batch)) == pytest.approx(float(0.75 * right + 0.25 * crossed))


def test_adjusted_logits_by_hand() -> None:
    """Labels 0, 0, 1 of three classes: π = (3, 2, 1)/6. With equal logits the loss of class 1 is −log(2/6), and a
    model whose logits undo the client's classes gets each class alike."""
    counts = class_counts(torch.tensor([[0, 0, 1]]), 3)
    assert counts.tolist() == [[3, 2, 1]]
    prior = counts / 6
    adjusting = learner(adjust=True, mix=0.0)
    batch = {"x_labels": torch.tensor([1]), "x_prior": prior[0].log()}
    assert float(adjusting.labelled_loss(torch.zeros(1, 3), batch)) == pytest.approx(math.log(3))
    assert float(adjusting.labelled_loss(-prior.log(), batch)) == pytest.approx(math.log(3))
    batch["x_labels"] = torch.tensor([2])
    assert float(adjusting.labelled_loss(torch.zeros(1, 3), batch)) == pytest.approx(math.log(6))


def test_few_labels_adjust_less() -> None:
    """100 labels adjust by half, 900 by nine tenths; three of one class count 4 of 6 with one more of each, and by
    3/103."""
    labels = torch.tensor([[0, 0, 0]])
    assert adjustment(labels, 3).tolist()[0] == pytest.approx([3 / 103 * math.log(n / 6) for n in (4, 1, 1)])
    for count, strength in ((100, 0.5), (900, 0.9)):
        labels = torch.arange(count)[None] % 2
        assert adjustment(labels, 2).tolist()[0] == pytest.approx([strength * math.log(0.5)] * 2)


def test_logits_are_adjusted_by_the_labels_drawn_in_each_epoch(values: dict[str, Any]) -> None:
    experiment = made(values, **OFF | {"adjust": True})
    executor = make_executor(experiment, CPU)
    turn, learner = Turn(1, 3, Seed(2)), experiment.learner
    executor.bench.load(experiment.initial_model(), {})
    states = [executor.bench.open(executor.clients[k], {}, turn) for k in (0, 1)]
    trainees = [Trainee({}, executor.clients[k], state, turn) for k, state in enumerate(states)]
    for phases in learner.plans(trainees, range(3)):
        batch = phases[0].tensors
        epochs = batch["x_labels"].unflatten(0, (3, -1))  # each epoch's batches go through its D^x once, and wrap
        size = size_of(learner, executor.clients[0], states[0])
        drawn = epochs.flatten(1)[:, :size]
        wanted = adjustment(drawn, experiment.task.num_classes).repeat_interleave(epochs.shape[1], 0)
        assert torch.allclose(batch["x_prior"], wanted)


def test_both_views_are_half_of_a_batch_each(values: dict[str, Any]) -> None:
    experiment = made(values, **OFF | {"x_augment": "both"})
    executor, turn = make_executor(experiment, CPU), Turn(1, 3, Seed(2))
    executor.bench.load(experiment.initial_model(), {})
    client = executor.clients[0]
    (phase,) = experiment.learner.plan({}, client, executor.bench.open(client, {}, turn), turn, range(3))
    views = phase.tensors["x_strong"]
    is_weak = (views == weakened(views)).all(-1)
    assert bool(is_weak[:, ::2].all())
    assert not bool(is_weak[:, 1::2].any())


def test_what_is_mixed_is_planned_epoch_by_epoch(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fednoil_plus, "MANY", 1)
    experiment = made(values, mix=0.8, frac=0.5)
    executor = make_executor(experiment, CPU)
    client, turn = executor.clients[0], Turn(1, 3, Seed(2))
    executor.bench.load(experiment.initial_model(), {})

    def plan(epochs: range) -> dict[str, torch.Tensor]:
        state = executor.bench.open(client, {}, turn)
        return experiment.learner.plan({}, client, state, turn, epochs)[0].tensors

    whole, parts = plan(range(3)), [plan(range(e, e + 1)) for e in range(3)]
    for name in ("x_share", "x_partner"):
        assert torch.equal(whole[name], torch.cat([part[name] for part in parts]))
    assert bool((whole["x_share"] >= 0.5).all())
    assert torch.equal(whole["x_partner"].sort(1).values[0], torch.arange(8))


def test_clients_with_few_labels_mix_none(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where several are planned at once."""
    experiment = made(values, mix=0.8, frac=0.5)
    executor, turn = make_executor(experiment, CPU), Turn(1, 3, Seed(2))
    executor.bench.load(experiment.initial_model(), {})
    clients = [executor.clients[k] for k in (0, 1)]

    def shares(least: int) -> torch.Tensor:
        monkeypatch.setattr(fednoil_plus, "MANY", least)
        trainees = [Trainee({}, client, executor.bench.open(client, {}, turn), turn) for client in clients]
        return torch.cat([phases[0].tensors["x_share"] for phases in experiment.learner.plans(trainees, range(3))])

    assert len(clients[0]) == len(clients[1])
    assert bool((shares(len(clients[0]) + 1) == 1).all())
    assert bool((shares(len(clients[0])) < 1).any())


def end(experiment: Experiment, count: int = 2) -> dict[str, torch.Tensor]:
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    for _ in range(count):
        state, _ = rounds.play(experiment, executor, state)
    return state.server.tensors


def test_without_its_ingredients_it_is_fednoil(values: dict[str, Any]) -> None:
    assert_same(end(made(values, **OFF)), end(made(values, "fednoil", frac=0.5, weight=0.0)))


INGREDIENTS = [
    {"mix": 1.0},
    {"frac": "auto"},
    {"frac": "auto", "classes": False},
    {"x_augment": "strong"},
    {"x_augment": "both"},
    {"adjust": True},
    {"frac": "auto", "weight": 1.0},
]


@pytest.mark.parametrize("keys", INGREDIENTS, ids=str)
def test_each_ingredient_changes_the_training(
    values: dict[str, Any], keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fednoil_plus, "MANY", 1)
    one, again, none = (end(made(values, **{**OFF, **use})) for use in (keys, keys, {}))
    assert_same(one, again)
    assert any(not torch.equal(one[name], none[name]) for name in one)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mix": -1}, "learner.mix = -1: must be greater than or equal to 0"),
        ({"aside": 0.1}, "unknown key 'learner.aside'"),
        ({"weight": -0.5}, "learner.weight = -0.5: must be greater than or equal to 0 or must be 'auto'"),
        ({"x_augment": "some"}, "learner.x_augment = 'some': must be 'auto', 'none', 'weak', 'strong' or 'both'"),
        ({"draw": "class"}, "unknown key 'learner.draw'"),
    ],
)
def test_bad_values_get_one_clear_line(values: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        made(values, **keys)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def accuracy_with_one_class_each(seed: int, *, classes: bool = True) -> float:
    """Four sites of 30 rows, two of either class, where a fifth of the labels is the other class by mistake."""
    rng = np.random.default_rng(seed)

    def rows(true: np.ndarray) -> np.ndarray:
        return ((2 * true - 1)[:, None] * [3.0, 2.0] + rng.normal(size=(len(true), 2))).astype(np.float32)

    sites, places = {}, np.arange(4)
    for k in places:
        true = np.full(30, k % 2)
        sites[f"s{k}"] = (rows(true), np.where(rng.permutation(30) < 6, 1 - true, true))
    keys = {"model.name": "mlp", "model.width": 16, "train.rounds": 4, "run.device": "cpu", "learner.classes": classes}
    tested = np.arange(100) % 2
    run = fednoil.run("demo", seed=seed, set=keys, data=sites, test=(rows(tested), tested), progress=False)
    assert run.accuracy is not None
    return run.accuracy


def test_sites_of_one_class_are_not_misled_by_their_wrong_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that sites hold are enough here, and so is an adjustment that is weak with few labels; without both they
    are misled."""
    assert min(accuracy_with_one_class_each(seed) for seed in range(3)) > 95
    assert min(accuracy_with_one_class_each(seed, classes=False) for seed in range(3)) > 95
    monkeypatch.setattr(fednoil_plus, "_HALF", 0)  # logits adjusted in full, however few labels there are
    assert min(accuracy_with_one_class_each(seed, classes=False) for seed in range(3)) < 90
