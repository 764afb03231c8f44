"""FedNoiL's own additions against numbers worked out by hand, and without them FedNoiL itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import assert_same
from torch.nn import functional as F

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners import fednoil_plus
from fednoil.learners.base import Client, Task, Turn
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig, aligned, balanced, posterior
from fednoil.seeds import Seed, Seeds

CPU = torch.device("cpu")
OFF = {"explore": 0.2, "aside": 0.0, "posterior": False, "balanced": False, "mix": 0.0, "align": False}


def learner(**keys: Any) -> FedNoilPlus:
    return FedNoilPlus(FedNoilPlusConfig(**keys), Task(10, (1, 28, 28), 32, 0.05, 150))


def made(values: dict[str, Any], name: str = "fednoil-plus", **keys: Any) -> Experiment:
    values["sampling"] |= {"name": "score"}
    values["learner"] = {"name": name, "xi": 0.3, **keys}
    return make_experiment(load_config(values))


def test_posterior_by_hand() -> None:
    """c = .7, C = 3: factors .7 for the given class and .15 for others.
    (.6, .3, .1), given 1: (.09, .21, .015)/.315; given 0: (.42, .045, .015)/.48."""
    probs = torch.tensor([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1]])
    got = posterior(probs, torch.tensor([1, 0]), 0.7)
    assert got[0].tolist() == pytest.approx([0.285714, 0.666667, 0.047619], abs=1e-6)
    assert got[1].tolist() == pytest.approx([0.875, 0.09375, 0.03125], abs=1e-6)


def test_posterior_in_the_limits() -> None:
    """Labels that say nothing (c = 1/C) change nothing; labels that are surely right are what is believed."""
    probs, labels = torch.softmax(torch.randn(50, 10), 1), torch.arange(50) % 10
    assert torch.allclose(posterior(probs, labels, 0.1), probs, atol=1e-6)
    assert torch.equal(posterior(probs, labels, 1 - 1e-9).argmax(1), labels)


def test_balanced_weights_by_hand() -> None:
    """Class 0: .9 and .1 for two samples, scaled by 2/1; class 1: .2 for one, scaled by 1/.2."""
    got = balanced(torch.tensor([0.9, 0.2, 0.1]), torch.tensor([0, 1, 0]), 3)
    assert got.tolist() == pytest.approx([1.8, 1.0, 0.2])


def test_a_hard_class_is_drawn_as_often_as_an_easy_one() -> None:
    labels = torch.arange(100) % 2
    confidence = torch.where(labels == 0, 0.9, 0.05)
    client = Client(0, torch.empty(0), torch.arange(100), labels)
    for keys, share in (({"balanced": True}, 0.5), ({}, 0.05)):
        method = learner(aside=0.0, **keys)
        weight = method.judged(client, {"confidence": confidence})["weight"]
        drawn, _ = method.split(weight[None], labels[None], 20, Seeds((Seed(0),)), range(500))
        assert float((labels[drawn] == 1).float().mean()) == pytest.approx(share, abs=0.02)


def test_aligned_by_hand() -> None:
    """Labels 0, 0, 1 with one more of each: (3, 2)/5; means (.6, .4): already there, so nothing changes. Labels
    1, 1, 0: wanted (.4, .6), factors 2/3 and 3/2; (.9, .1) becomes (.6, .15)/.75."""
    probs = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    assert torch.allclose(aligned(probs, torch.tensor([0, 0, 1])), probs)
    assert aligned(probs, torch.tensor([1, 1, 0]))[0].tolist() == pytest.approx([0.8, 0.2])


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


def test_what_is_mixed_is_planned_epoch_by_epoch(values: dict[str, Any]) -> None:
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


def end(experiment: Experiment, count: int = 2) -> dict[str, torch.Tensor]:
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    for _ in range(count):
        state, _ = rounds.play(experiment, executor, state)
    return state.server.tensors


def test_without_its_ingredients_it_is_fednoil(values: dict[str, Any]) -> None:
    assert_same(end(made(values, **OFF)), end(made(values, "fednoil")))


def test_a_run_from_before_its_defaults_changed_is_still_known() -> None:
    """Without room for wrong labels, and with a tenth set aside, since then: what a configuration is called follows."""
    known = "aab7ea1cf45b64bd526355dbaf1055c5f4a8f37eab49d2d18f3b5ccc0de7a8a0"
    section = {"name": "fednoil-plus"}
    assert load_config({"learner": section | {"explore": 0.2, "aside": 0.0}}).hash() == known
    others = [section, section | {"explore": 0.2}, section | {"aside": 0.0}]
    assert len({known, *(load_config({"learner": other}).hash() for other in others)}) == 4


def test_a_client_with_few_labels_keeps_none_of_them_out() -> None:
    assert [len(learner(aside=0.1).set_aside(count, CPU)) for count in (20, 299, 300, 600)] == [0, 0, 30, 60]


INGREDIENTS = [{"posterior": True}, {"balanced": True}, {"mix": 1.0}, {"align": True}, {"explore": 0.0}, {"aside": 0.2}]


@pytest.mark.parametrize("keys", INGREDIENTS, ids=str)
def test_each_ingredient_changes_the_training(
    values: dict[str, Any], keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fednoil_plus, "_FEW", 1)
    one, again, none = (end(made(values, **{**OFF, **use})) for use in (keys, keys, {}))
    assert_same(one, again)
    assert any(not torch.equal(one[name], none[name]) for name in one)


def test_on_clean_labels_pseudo_labels_are_the_given_ones_or_none() -> None:
    """A model that is sure of a wrong class for a tenth of clean labels: FedNoiL would train on its mistakes."""
    labels = torch.arange(200) % 10
    said = torch.where(torch.arange(200) % 10 == 3, (labels + 1) % 10, labels)
    probs = 0.97 * F.one_hot(said, 10) + 0.003
    client = Client(0, torch.empty(0), torch.arange(200), labels)
    state = {"confidence": probs.gather(1, labels[:, None])[:, 0], "taught": probs}
    judged = learner(posterior=True).judged(client, state)["taught"]
    certain = judged.max(1).values >= 0.95
    assert torch.equal(judged.argmax(1)[certain], labels[certain])
    assert not torch.equal(probs.argmax(1)[probs.max(1).values >= 0.95], labels)


def test_bad_values_get_one_clear_line(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"learner.mix = -1: must be greater than or equal to 0"):
        made(values, mix=-1)
