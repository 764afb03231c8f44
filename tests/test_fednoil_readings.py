"""Keys of FedNoiL for what its paper leaves open: each does what its name says, and nothing at its default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import assert_same

from fednoil import rounds
from fednoil.augment import plain, strong
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.base import Client, Phase, Task, Turn
from fednoil.learners.fednoil import FedNoil
from fednoil.learners.fednoil_config import FedNoilConfig
from fednoil.seeds import Seed

CPU = torch.device("cpu")


def learner(**keys: Any) -> FedNoil:
    return FedNoil(FedNoilConfig(**keys), Task(10, (1, 28, 28), 32, 0.05, 150))


def planned(
    n: int = 100, round_idx: int = 1, epochs: int = 3, taught: torch.Tensor | None = None, **keys: Any
) -> tuple[Phase, dict[str, torch.Tensor]]:
    """A plan for a client of n samples whose confidences and pseudo-labels are made up, and its state."""
    method = learner(**{"frac": 0.35, **keys})
    pool = torch.randint(0, 256, (n, 1, 28, 28), dtype=torch.uint8)
    client = Client(0, pool, torch.arange(n), torch.arange(n) % 10)
    state = {
        "confidence": torch.linspace(0.1, 0.9, n),
        "drawn": torch.zeros(n, dtype=torch.int64),
        "votes": torch.zeros(n, 10, dtype=torch.int64),
        "taught": torch.softmax(torch.randn(n, 10, generator=torch.Generator().manual_seed(0)), 1),
    }
    if taught is not None:
        state["taught"] = taught
    (phase,) = method.plan({}, client, state, Turn(round_idx, epochs, Seed(1)), range(epochs))
    return phase, state


@pytest.mark.parametrize(
    ("keys", "shape"),
    [  # n = 500, frac = .35: |D^x| = 175, |D^u| = 325
        ({}, (6, 32, 55)),
        ({"epoch": "whole"}, (16, 32, 32)),
        ({"epoch": "whole", "ssl": False}, (16, 32, 0)),
        ({"mu": 7}, (6, 32, 224)),
        ({"mu": 1.5, "epoch": "max_cover"}, (11, 32, 48)),
    ],
)
def test_steps_and_batches(keys: dict[str, Any], shape: tuple[int, int, int]) -> None:
    assert learner(**keys).epoch_shape(175, 325, keys.get("ssl", True)) == shape


def test_a_large_unlabelled_batch_goes_round_more_than_once() -> None:
    phase, _ = planned(mu=7, epochs=1)
    assert phase.tensors["u_index"].shape == (2, 224)
    counts = torch.bincount(phase.tensors["u_index"].flatten(), minlength=100)
    assert set(counts.tolist()) == {0, 6, 7}  # 448 places for 65 samples
    assert int((counts > 0).sum()) == 65


@pytest.mark.parametrize("redraw", ["epoch", "round"])
def test_how_often_labels_are_drawn(redraw: str) -> None:
    phase, state = planned(redraw=redraw)
    sets = [set(rows.flatten().tolist()) for rows in phase.tensors["x_index"].chunk(3)]
    orders = [rows.flatten().tolist() for rows in phase.tensors["x_index"].chunk(3)]
    assert orders[0] != orders[1]
    assert (sets[0] == sets[1] == sets[2]) == (redraw == "round")
    assert (set(state["drawn"].tolist()) == {0, 3}) == (redraw == "round")


@pytest.mark.parametrize(("form", "name"), [("none", None), ("weak", "x_weak"), ("strong", "x_strong")])
def test_views_of_the_labelled_set(form: str, name: str | None) -> None:
    phase, _ = planned(x_augment=form)
    assert {n for n in phase.tensors if n.startswith("x_")} - {"x_index", "x_labels"} == ({name} if name else set())
    method, pool = learner(x_augment=form), torch.randint(0, 256, (100, 1, 28, 28), dtype=torch.uint8)
    images = method.views(pool, phase.tensors)["x"]
    if form == "none":
        assert torch.equal(images, plain(pool, phase.tensors["x_index"]))
    if form == "strong":
        assert torch.equal(images, strong(pool, phase.tensors["x_index"], phase.tensors["x_strong"]))
        assert not torch.equal(phase.tensors["x_strong"][:, :2], phase.tensors["u_strong"][:, :2])


def test_operations_of_a_strong_view() -> None:
    phase, _ = planned(ra_ops=3, ra_prob=1.0)
    assert phase.tensors["u_strong"].shape[-1] == 5 + 4 * 3
    assert bool(phase.tensors["u_strong"][..., 6:-2:4].all())  # each is applied


def test_the_unlabelled_weight_rises() -> None:
    weights = [learner(frac=0.35, ramp=4, lambda_u=2.0).unlabelled_weight(35, 65, r) for r in (1, 2, 4, 9)]
    assert weights == [0.5, 1.0, 2.0, 2.0]
    assert planned(ramp=4, round_idx=3)[0].tensors["u_weight"].unique().tolist() == [0.75]


def test_everything_is_labelled_during_the_warm_up() -> None:
    phase, state = planned(warmup=2, round_idx=2)
    assert "u_index" not in phase.tensors
    assert state["drawn"].tolist() == [3] * 100
    assert "u_index" in planned(warmup=2, round_idx=3)[0].tensors


def test_pseudo_labels_begin_with_their_first_round() -> None:
    assert "u_index" not in planned(ssl_start=4, round_idx=3)[0].tensors
    assert "u_index" in planned(ssl_start=4, round_idx=4)[0].tensors
    assert planned(ssl_start=4, ramp=4, round_idx=5)[0].tensors["u_weight"].unique().tolist() == [0.5]


@pytest.mark.parametrize("teacher", ["global", "local"])
def test_before_pseudo_labels_begin_it_is_as_without_them(values: dict[str, Any], teacher: str) -> None:
    ends = []
    for keys in ({"ssl_start": 3}, {"ssl": False}):
        experiment = made(values, teacher=teacher, **keys)
        executor, state = make_executor(experiment, CPU), rounds.start(experiment)
        for _ in range(2):
            state, _ = rounds.play(experiment, executor, state)
        ends.append(state.server.tensors)
    assert_same(*ends)


def test_soft_pseudo_labels_are_the_probabilities() -> None:
    phase, state = planned(soft=True, xi=0.2)
    hard, _ = planned(xi=0.2)
    assert torch.equal(phase.tensors["u_labels"], state["taught"][phase.tensors["u_index"]])
    assert torch.equal(hard.tensors["u_labels"], phase.tensors["u_labels"].argmax(-1))
    assert torch.equal(hard.tensors["u_mask"], phase.tensors["u_mask"])


def test_views_take_turns_by_epoch() -> None:
    """Epoch e has the pseudo-labels of view e mod 2 alone, and votes are those."""
    taught = torch.rand(100, 2, 10, generator=torch.Generator().manual_seed(1)).softmax(-1)
    phase, state = planned(xi=0.12, views=2, views_as="turns", taught=taught)
    steps = len(phase.tensors["u_index"]) // 3
    votes = torch.zeros_like(state["votes"])
    for epoch in range(3):
        probs = taught[:, epoch % 2]
        rows = phase.tensors["u_index"][epoch * steps : (epoch + 1) * steps]
        assert torch.equal(phase.tensors["u_labels"][epoch * steps : (epoch + 1) * steps], probs.argmax(1)[rows])
        assert torch.equal(phase.tensors["u_mask"][epoch * steps : (epoch + 1) * steps], (probs.amax(1) >= 0.12)[rows])
        for sample in set(rows.flatten().tolist()):
            votes[sample, probs[sample].argmax()] += int(probs[sample].max() >= 0.12)
    assert torch.equal(state["votes"], votes)


def made(values: dict[str, Any], **keys: Any) -> Experiment:
    values["sampling"] |= {"name": "score"}
    values["learner"] = {"name": "fednoil", "frac": 0.35, "xi": 0.3, **keys}
    return make_experiment(load_config(values))


READINGS = [
    {"epoch": "whole"},
    {"mu": 3},
    {"ramp": 5},
    {"pseudo_temperature": 0.2},
    {"soft": True},
    {"soft": True, "teacher": "local"},
    {"views": 3, "views_as": "turns"},
    {"views": 3, "views_as": "turns", "soft": True},
    {"x_augment": "strong"},
    {"x_augment": "none"},
    {"redraw": "round"},
    {"ra_ops": 1},
    {"warmup": 1},
    {"ssl_start": 2},
]


@pytest.mark.parametrize("keys", READINGS, ids=str)
def test_every_reading_trains_otherwise(values: dict[str, Any], keys: dict[str, Any]) -> None:
    def end(**keys: Any) -> dict[str, torch.Tensor]:
        experiment = made(values, **keys)
        executor, state = make_executor(experiment, CPU), rounds.start(experiment)
        for _ in range(2):
            state, _ = rounds.play(experiment, executor, state)
        return state.server.tensors

    read, again, published = end(**keys), end(**keys), end()
    assert_same(read, again)
    assert any(not torch.equal(read[name], published[name]) for name in read)


@pytest.mark.parametrize("key", sorted(FedNoilConfig.later))
def test_a_default_says_what_was_meant_before(values: dict[str, Any], key: str) -> None:
    plain_hash = made(values).config.hash()
    assert made(values, **{key: FedNoilConfig.model_fields[key].default}).config.hash() == plain_hash


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"x_augment": "heavy"}, "learner.x_augment = 'heavy': must be 'none', 'weak' or 'strong'"),
        ({"redraw": "step"}, "learner.redraw = 'step'"),
        ({"mu": 0}, "learner.mu = 0"),
        ({"ramp": -1}, "learner.ramp = -1"),
        ({"ssl_start": 0}, "learner.ssl_start = 0"),
        ({"pseudo_temperature": 0}, "learner.pseudo_temperature = 0"),
        ({"soft": "very"}, "learner.soft = 'very'"),
    ],
)
def test_bad_values_get_one_clear_line(values: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        made(values, **keys)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
