"""FedNoiL against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from made_fednoil import learner, make, size_of
from torch.nn import functional as F

from fednoil import rounds, schedules
from fednoil.augment import plain, strong, weak, weak_plan
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.executors.base import Job
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners.base import Client, Task, Turn
from fednoil.learners.fednoil import FedNoil, FedNoilConfig
from fednoil.learners.pseudo_labels import decided, unlabelled_loss
from fednoil.seeds import Seed
from fednoil.study import preset

CPU = torch.device("cpu")


# --- epochs ----------------------------------------------------------------------------------------------------


def test_a_list_of_shares_goes_by_groups_of_clients() -> None:
    """Six clients and three shares: clients 0 and 1 have the first, 2 and 3 the second, 4 and 5 the third."""
    fednoil = FedNoil(FedNoilConfig(frac=(0.5, 0.3, 0.1)), Task(10, (1, 28, 28), 32, 0.05, 150, sizes=(100,) * 6))
    pool, labels = torch.zeros(1, 1, 28, 28, dtype=torch.uint8), torch.arange(100) % 10
    clients = [Client(k, pool, torch.zeros(100).long(), labels) for k in range(6)]
    states = [{"confidence": torch.rand(100)} for _ in clients]
    sizes = [size_of(fednoil, client, state) for client, state in zip(clients, states, strict=True)]
    assert sizes == [50, 50, 30, 30, 10, 10]
    late = Client(7, pool, torch.zeros(100).long(), labels)  # a site that wasn't there at the start
    assert size_of(fednoil, late, {"confidence": torch.rand(100)}) == 10
    with pytest.raises(UserError, match=r"learner.frac = \[0.5, 0.3, 0.1\]: 3 shares for 2 clients"):
        FedNoil(FedNoilConfig(frac=(0.5, 0.3, 0.1)), Task(10, (1, 28, 28), 32, 0.05, 150, sizes=(100,) * 2))


@pytest.mark.parametrize(
    ("n", "frac", "labelled", "shape"),
    [
        (500, 0.35, 175, (6, 32, 55)),
        (500, 0.55, 275, (9, 32, 25)),
        (505, 0.35, 177, (6, 32, 55)),  # 176.75
        (600, 0.35, 210, (7, 32, 56)),
        (800, 0.4, 320, (10, 32, 48)),  # full batches
        (600, 0.55, 330, (11, 32, 25)),
        (1000, 0.35, 350, (11, 32, 60)),
        (1000, 0.55, 550, (18, 32, 25)),
    ],
)
def test_epoch_shapes(n: int, frac: float, labelled: int, shape: Any) -> None:
    client = Client(0, torch.zeros(1, 1, 28, 28, dtype=torch.uint8), torch.zeros(n).long(), torch.arange(n) % 10)
    assert size_of(learner(frac=frac), client, {"confidence": torch.rand(n)}) == labelled

    def shapes(**keys: Any) -> list[tuple[int, ...]]:
        state = {"confidence": torch.rand(n), "taught": torch.rand(n, 10), "drawn": torch.zeros(n).long()}
        state["votes"] = torch.zeros(n, 10).long()
        batch = learner(**keys).plan({}, client, state, Turn(1, 1, Seed(0)), range(1))[0].tensors
        return [tuple(batch[name].shape) for name in ("x_index", "u_index") if name in batch]

    steps, size, beside = shape
    assert shapes(frac=frac) == [(steps, size), (steps, beside)]
    assert shapes(frac=frac, weight=0.0) == [(steps, size)]
    assert shapes(frac=1.0) == [(-(-n // 32), 32)]


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 120), st.floats(0.01, 1.0))
def test_plan_covers_both_sets(n: int, frac: float) -> None:
    """D^x ∩ D^u = ∅, their union is D_k, each is passed at least once in an epoch, batches are full."""
    method = learner(frac=frac)
    client = Client(0, torch.zeros(500, 1, 28, 28, dtype=torch.uint8), torch.arange(n) + 300, torch.arange(n) % 10)
    state = {
        "confidence": torch.rand(n),
        "drawn": torch.zeros(n, dtype=torch.int64),
        "votes": torch.zeros(n, 10, dtype=torch.int64),
        "taught": F.one_hot(torch.arange(n) % 7, 10) * (1 - 0.5 * (torch.arange(n) % 2))[:, None],
    }
    (phase,) = method.plan({}, client, state, Turn(1, 3, Seed(n)), range(3))
    size = size_of(method, client, state)
    assert int(state["drawn"].sum()) == 3 * size
    labels = phase.tensors["x_labels"]
    assert torch.equal(labels, (phase.tensors["x_index"] - 300) % 10)
    steps = phase.steps // 3
    for e in range(3):
        rows = slice(e * steps, (e + 1) * steps)
        x = set(phase.tensors["x_index"][rows].flatten().tolist())
        assert len(x) == size
        if size == n:
            assert "u_index" not in phase.tensors
            continue
        u = set(phase.tensors["u_index"][rows].flatten().tolist())
        assert not x & u
        assert x | u == set(range(300, 300 + n))
        position = phase.tensors["u_index"][rows] - 300
        assert torch.equal(phase.tensors["u_labels"][rows], position % 7)
        assert torch.equal(phase.tensors["u_mask"][rows], position % 2 == 0)


# --- FixMatch ----------------------------------------------------------------------------------------------------


def test_fixmatch_oracle() -> None:
    labelled, labels = torch.tensor([[2.0, 0, 0], [0, 1, 0]]), torch.tensor([0, 2])
    weak = torch.tensor([[5.0, 0, 0], [1, 0, 0], [0, 6, 1]])
    strong = torch.tensor([[2.0, 1, 0], [0, 0, 3], [1, 2, 0]])
    probs = torch.softmax(weak, 1)
    assert probs.max(1).values.tolist() == pytest.approx([0.986703, 0.576117, 0.990867], abs=1e-6)
    pseudo, mask = decided(probs, 0.95)
    assert (pseudo.tolist(), mask.tolist()) == ([0, 0, 1], [True, False, True])
    assert float(unlabelled_loss(strong, pseudo, mask)) == pytest.approx(0.271737, abs=1e-6)
    assert float(unlabelled_loss(strong, pseudo, mask & False)) == 0
    batch = {"x": labelled, "x_labels": labels, "u": strong, "u_labels": pseudo, "u_mask": mask}
    for weight, loss in ((1.0, 1.167232), (2.0, 0.895495 + 2 * 0.271737)):
        batch["u_weight"] = torch.tensor(weight)
        assert float(learner().step({"model": lambda x: x}, labelled, batch, {}, "train")) == pytest.approx(
            loss, abs=2e-6
        )


def test_step_is_the_loss_written_out(fednoil_values: dict[str, Any]) -> None:
    """A whole step against a plain computation from the plan, with the images augmented one by one."""
    experiment = make(fednoil_values, xi=0.2)
    executor = make_executor(experiment, CPU)
    bench, client, method = executor.bench, executor.clients[2], experiment.learner
    bench.load(experiment.initial_model(), {})
    turn = Turn(1, 2, Seed(5))
    state = bench.open(client, {}, turn)
    (phase,) = method.plan({}, client, state, turn, range(2))
    batch = {name: tensor[1] for name, tensor in phase.tensors.items()}
    assert bool(batch["u_mask"].any())
    net = bench.nets["model"]
    net.train()
    position = torch.searchsorted(client.index, batch["u_index"])
    weak_pairs = zip(batch["x_index"], batch["x_weak"], strict=True)
    x = torch.cat([weak(client.pool, i[None], p[None]) for i, p in weak_pairs])
    strong_pairs = zip(batch["u_index"], batch["u_strong"], strict=True)
    u = torch.cat([strong(client.pool, i[None], p[None]) for i, p in strong_pairs])
    labels = {int(i): int(label) for i, label in zip(client.index, client.labels, strict=True)}
    with torch.no_grad():
        loss_x = float(F.cross_entropy(net(x), torch.tensor([labels[int(i)] for i in batch["x_index"]])))
        pseudo, accepted = decided(state["taught"], 0.2)
        each = F.cross_entropy(net(u), pseudo[position], reduction="none").tolist()
        batch |= method.views(client.pool, batch)
        loss = float(method.step(bench.nets, client.pool, batch, state, "train"))
    loss_u = sum(e for e, a in zip(each, accepted[position], strict=True) if a) / len(each)
    assert loss == pytest.approx(loss_x + loss_u, abs=1e-5)


def test_pseudo_labels_are_the_mean_over_views(fednoil_values: dict[str, Any]) -> None:
    experiment = make(fednoil_values)
    executor = make_executor(experiment, CPU)
    bench, client, method = executor.bench, executor.clients[0], experiment.learner
    bench.load(experiment.initial_model(), {})
    bench.nets["model"].eval()
    plans = weak_plan(Seed(1).keys(range(3)), 20)
    taught = method.survey(bench.nets, client, {"weak": plans.transpose(0, 1)})["taught"]
    with torch.no_grad():
        logits = [bench.nets["model"](weak(client.pool, client.index, plan)) for plan in plans]
    assert torch.allclose(taught, sum(torch.softmax(z, 1) for z in logits) / 3, atol=1e-6)


def test_clients_that_are_asked_together_are_asked_the_same(fednoil_values: dict[str, Any]) -> None:
    experiment = make_experiment(load_config(fednoil_values))
    executor = make_executor(experiment, torch.device("cpu"))
    clients = list(executor.clients.values())  # pyright: ignore[reportAttributeAccessIssue]
    clients[1] = replace(clients[1], index=clients[1].index[:-3], labels=clients[1].labels[:-3])
    turns = [Turn(2, 1, Seed(5).child("client", k)) for k in range(len(clients))]
    asked = experiment.learner.asks_all(clients, turns)  # pyright: ignore[reportAttributeAccessIssue]
    for client, turn, own in zip(clients, turns, asked, strict=True):
        keys = turn.seed.child("teacher").keys(range(2))
        wanted = weak_plan(keys, len(client), experiment.task.pad, flip=experiment.task.flip).transpose(0, 1)
        assert torch.equal(own["weak"], wanted)


def test_a_turn_begins_with_what_the_received_model_says(
    fednoil_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confidence at τ and pseudo-labels, both in eval mode: seen on a model with BatchNorm."""
    monkeypatch.setattr(FedNoil, "teachers", 1)
    fednoil_values["model"] = {"name": "test_rounds:bn_model"}
    experiment = make(fednoil_values, xi=0.9)
    executor = make_executor(experiment, CPU)
    bench, client = executor.bench, executor.clients[1]
    module = experiment.build_model("model").eval()
    module[4].weight.data.mul_(8)  # surer of some images than of others
    module[1].running_mean.fill_(-0.5)  # statistics that no batch has
    module[1].running_var.fill_(0.5)
    received = {f"model/{name}": tensor for name, tensor in module.state_dict().items()}
    turn = Turn(1, 2, Seed(3))
    state = bench.begin(client, Job(1, received, {}, turn))
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
    with torch.no_grad():
        logits = module((client.pool[client.index].float() / 255 - mean) / std)
        expected = torch.softmax(logits / 0.5, 1).gather(1, client.labels[:, None])[:, 0]
        (plan,) = weak_plan(turn.seed.child("teacher").keys(range(1)), 20, experiment.task.pad)
        views = weak(client.pool, client.index, plan)
        certainty, labels = torch.softmax(module((views.float() / 255 - mean) / std), 1).max(1)
    assert torch.allclose(state["confidence"], expected, atol=1e-5)
    pseudo, accepted = decided(state["taught"], 0.9)
    assert torch.equal(pseudo, labels)
    assert torch.equal(accepted, certainty >= 0.9)
    assert 0 < int(accepted.sum()) < 20
    assert not torch.equal(pseudo, client.labels)


def test_scored_models_are_tested_in_eval_mode(fednoil_values: dict[str, Any]) -> None:
    fednoil_values["model"] = {"name": "test_rounds:bn_model"}
    experiment = make(fednoil_values)
    executor = make_executor(experiment, CPU)
    module = experiment.build_model("model").eval()
    module[1].running_var.fill_(5.0)
    executor.train([Job(0, experiment.initial_model(), {}, Turn(1, 1, Seed(0)))])  # leaves networks in train mode
    got = executor.test_logits({f"model/{name}": t for name, t in module.state_dict().items()})
    images = torch.tensor(experiment.setting.dataset.test.images).float() / 255
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
    with torch.no_grad():
        assert torch.allclose(got, module((images - mean) / std), atol=1e-5)


@pytest.mark.parametrize("learner_name", ["erm", "fednoil", "josrc", "dividemix"])
def test_the_shift_of_views_is_the_configured_one(fednoil_values: dict[str, Any], learner_name: str) -> None:
    fednoil_values["train"]["pad"] = 0
    fednoil_values["learner"] = {"name": learner_name}
    experiment = make_experiment(load_config(fednoil_values))
    executor = make_executor(experiment, CPU)
    turn = Turn(1, 2, Seed(0))
    state = executor.bench.begin(executor.clients[0], Job(0, experiment.initial_model(), {}, turn))
    shifts = [
        tensor[..., 1:3]
        for phase in executor.bench.planned(executor.clients[0], state, turn, range(1))
        for name, tensor in phase.tensors.items()
        if name in ("weak", "x_weak", "u_strong", "first", "second")
    ]
    assert shifts
    assert all(not shift.any() for shift in shifts)


@pytest.mark.parametrize("keys", [{}, {"frac": 0.9}], ids=str)
def test_no_share_is_over_a_hundred_percent(fednoil_values: dict[str, Any], keys: dict[str, Any]) -> None:
    """Samples that come twice in an epoch, because batches are full, are counted once."""
    experiment = make(fednoil_values, **{"xi": 0.0001, **keys})
    _, record = rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))
    assert record.pseudo_accept == pytest.approx(100)
    assert record.effective_recall <= 100


def planned(**keys: Any) -> dict[str, torch.Tensor]:
    """A plan of two epochs for a client of 100 samples whose confidences and pseudo-labels are made up."""
    client = Client(0, torch.empty(0), torch.arange(100), torch.arange(100) % 10)
    state = {
        "confidence": torch.linspace(0.1, 0.9, 100),
        "drawn": torch.zeros(100, dtype=torch.int64),
        "votes": torch.zeros(100, 10, dtype=torch.int64),
        "taught": torch.softmax(torch.randn(100, 10, generator=torch.Generator().manual_seed(0)), 1),
    }
    (phase,) = learner(frac=0.35, **keys).plan({}, client, state, Turn(1, 2, Seed(1)), range(2))
    return dict(phase.tensors)


def test_labels_are_drawn_anew_in_each_epoch() -> None:
    first, second = (set(rows.flatten().tolist()) for rows in planned()["x_index"].chunk(2))
    assert len(first) == len(second) == 35
    assert first != second


@pytest.mark.parametrize(("form", "name"), [("none", None), ("weak", "x_weak"), ("strong", "x_strong")])
def test_views_of_the_labelled_set(form: str, name: str | None) -> None:
    batch = planned(x_augment=form)
    assert {n for n in batch if n.startswith("x_")} - {"x_index", "x_labels"} == ({name} if name else set())
    pool = torch.randint(0, 256, (100, 1, 28, 28), dtype=torch.uint8)
    images = learner(x_augment=form).views(pool, batch)["x"]
    if form == "none":
        assert torch.equal(images, plain(pool, batch["x_index"]))
    if form == "strong":
        assert torch.equal(images, strong(pool, batch["x_index"], batch["x_strong"]))
        assert not torch.equal(batch["x_strong"][:, :2], batch["u_strong"][:, :2])


def test_operations_of_a_strong_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedNoil, "rand_augment", (3, 1.0))
    plans = planned()["u_strong"]
    assert plans.shape[-1] == 5 + 4 * 3
    assert bool(plans[..., 6:-2:4].all())  # each is applied


# --- variants run, and do what their name says -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"frac": "auto"},
        {"frac": 1.0},
        {"x_augment": "none"},
        {"x_augment": "strong"},
        {"weight": 0.0},
    ],
    ids=str,
)
def test_every_variant_runs_and_repeats_itself(fednoil_values: dict[str, Any], keys: dict[str, Any]) -> None:
    states = []
    for _ in range(2):
        experiment = make(fednoil_values, **keys)
        executor, state = make_executor(experiment, CPU), rounds.start(experiment)
        for _ in range(2):
            state, record = rounds.play(experiment, executor, state)
        states.append((state, record))
    (a, record), (b, _) = states
    assert_same(a.server.tensors, b.server.tensors)
    assert 0 <= record.label_precision <= 100
    assert (record.pseudo_accept is not None) == (keys not in ({"frac": 1.0}, {"weight": 0.0}))


def test_everything_labelled_and_uniform_clients_is_fedavg_by_another_order(fednoil_values: dict[str, Any]) -> None:
    """frac = 1 leaves cross-entropy on all given labels: as many steps as FedAvg, and every label drawn."""
    fednoil_values["sampling"]["name"] = "uniform"
    experiment = make(fednoil_values, frac=1.0)
    state, record = rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))
    assert state.train_batches == 2 * 2 * 3
    assert record.label_recall == 100.0
    assert record.label_precision == pytest.approx(100 - record.selected_noise)


# --- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"frac": 0}, "learner.frac"),
        ({"frac": 1.5}, "learner.frac"),
        ({"frac": "half"}, "learner.frac"),
        ({"xi": 1.01}, "learner.xi = 1.01"),
        ({"xi": 0}, "learner.xi = 0"),
        ({"weight": -1}, "learner.weight = -1"),
        ({"x_augment": "heavy"}, "learner.x_augment = 'heavy': must be 'none', 'weak', 'strong' or 'both'"),
        ({"mix": 1}, "it is a key of fednoil-plus"),
        ({"fraction": 0.3}, "did you mean 'frac'"),
    ],
)
def test_bad_values_get_one_clear_line(fednoil_values: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        make(fednoil_values, **keys)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("noise", "frac"), [("symmetric-high", 0.35), ("pair-high", 0.35), ("symmetric-low", 0.55), ("clean", 0.55)]
)
def test_presets_follow_the_paper(noise: str, frac: float) -> None:
    config = load_config(preset(f"paper/fashion-mnist/iid/{noise}/fednoil-cosine"))
    assert isinstance(config.learner, FedNoilConfig)
    assert config.learner.frac == frac
    assert config.sampling.name == "score"
    assert schedules.make(config.schedule).total(150) == 7061


def test_demo_methods_have_the_same_number_of_local_epochs() -> None:
    totals = {schedules.make(load_config(preset(f"demo/{m}")).schedule).total(20) for m in ("fedavg", "fednoil")}
    assert totals == {298}
