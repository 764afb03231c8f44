"""Classes of very different sizes: logits that are shifted in training, and an audit that holds for the rare ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import fednoil as package
from fednoil.config import Config
from fednoil.estimation import estimate
from fednoil.experiment import Experiment, make_bench
from fednoil.models.balance import SHIFT, balanced, log_shares
from fednoil.testing.executors import check_side_by_side
from fednoil.testing.federation import Circumstances, play, tiny_config


def with_balance(config: Config) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"balance": True})})


def test_shares_by_hand() -> None:
    """Of three labels 0 and one 2, with one more of each of three classes: 4, 1 and 2 of 7."""
    found = log_shares(torch.tensor([0, 0, 2, 0]), 3)
    assert found.tolist() == pytest.approx([math.log(4 / 7), math.log(1 / 7), math.log(2 / 7)])


def test_logits_are_shifted_in_training_alone() -> None:
    module = balanced(nn.Linear(2, 3), 3)
    assert SHIFT not in module.state_dict()
    module.get_buffer(SHIFT).copy_(torch.tensor([1.0, 0.0, -1.0]))
    x = torch.ones(4, 2)
    assert torch.allclose(module.train()(x) - module.eval()(x), torch.tensor([1.0, 0.0, -1.0]).expand(4, 3))


def test_each_client_has_its_own_shift_and_nothing_of_it_is_sent() -> None:
    config = with_balance(tiny_config({"name": "fedavg"}, {"name": "erm"}))
    trace = play(config, Circumstances())
    assert not [name for name in trace.state.server.tensors if SHIFT in name]
    check_side_by_side(config, trace, torch.device("cpu"))
    plain = play(tiny_config({"name": "fedavg"}, {"name": "erm"}), Circumstances())
    weights = [t.state.server.tensors["model/4.weight"] for t in (trace, plain)]
    assert not torch.equal(*weights)


def rows(count: int, rare: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.where(np.arange(count) < rare, 1, 0)
    return rng.normal(size=(count, 4)) + 1.2 * labels[:, None] * np.array([1, 1, 0, 0]), labels


def test_a_rare_class_is_found_more_often() -> None:
    """One sample in twenty; on a test set of both classes alike, at chance 50."""
    data = [rows(200, 10, k) for k in range(2)]
    found = []
    for balance in (False, True):
        keys = {"model.name": "linear", "train.rounds": 4, "train.balance": balance}
        found.append(package.run("demo/fedavg", data=data, test=rows(400, 200, 9), set=keys).measures["test"])
    assert found[0]["per_class"]["recall"][1] < 35
    assert found[1]["per_class"]["recall"][1] > 65
    assert found[1]["balanced_accuracy"] > found[0]["balanced_accuracy"] + 10


def test_a_run_without_the_key_has_no_buffer(experiment: Experiment) -> None:
    bench = make_bench(experiment, torch.device("cpu"))
    assert all(SHIFT not in net.others for net in bench.nets.values())


@pytest.mark.parametrize("level", [0.1, 0.3])
def test_flags_hold_for_a_class_with_few_labels(level: float) -> None:
    """One image in 25 is of class 0, and a fair model is mistaken on a tenth of all: with 30 % noise most of the labels
    0 are wrong. Their flags are as good as those of the other classes."""
    rng, n, classes = np.random.default_rng(1), 5000, 5
    true = np.where(rng.random(n) < 0.04, 0, rng.integers(1, classes, n))
    given = np.where(rng.random(n) < level, (true + rng.integers(1, classes, n)) % classes, true)
    seen = np.where(rng.random(n) < 0.1, rng.integers(0, classes, n), true)
    logits = 3.5 * np.eye(classes)[seen] + rng.normal(0, 0.5, (n, classes))
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = estimate(chances, given, rng)
    wrong = given != true

    def quality(own: np.ndarray) -> tuple[float, float, float]:
        """Precision and recall of the flags, and the share of correct labels that are flagged."""
        flagged = found.flagged & own
        right = (flagged & wrong).sum()
        return right / flagged.sum(), right / (own & wrong).sum(), (flagged & ~wrong).sum() / (own & ~wrong).sum()

    rare, common = quality(given == 0), quality(given != 0)
    assert rare[0] > max(common[0], 0.85)
    assert rare[1] > common[1] - 0.05
    assert rare[2] < common[2] + 0.05
    assert found.ratio == pytest.approx(level, abs=0.05)
