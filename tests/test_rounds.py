"""The round loop and its parts, against hand-worked numbers and a plain loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same, sgd_step
from made_labels import true_labels
from torch import nn

from fednoil import metrics, rounds
from fednoil.augment import weak
from fednoil.config import load_config
from fednoil.executors.base import Job
from fednoil.experiment import Experiment, make_bench, make_executor, make_experiment
from fednoil.history import RoundRecord
from fednoil.learners.base import Client, Learner, LearnerConfig, Nets, Phase, Task, Turn, chunks
from fednoil.learners.batches import full_batches
from fednoil.models.network import Network
from fednoil.seeds import Seed
from fednoil.servers.base import Update
from fednoil.servers.fedprox import Proximal
from fednoil.tensors import Tensors, message_bytes, weighted_mean

CPU = torch.device("cpu")


def play(experiment: Experiment, count: int) -> tuple[rounds.RunState, list[RoundRecord]]:
    executor, state, records = make_executor(experiment, CPU), rounds.start(experiment), []
    for _ in range(count):
        state, record = rounds.play(experiment, executor, state)
        records.append(dataclasses.replace(record, wall_s=0.0))
    return state, records


def test_aggregation_oracle() -> None:
    """n = (500, 300, 200), θ = (1, 2, 4) gives 1.9; counters take the largest."""
    messages = [{"w": torch.tensor([t]), "n": torch.tensor(c)} for t, c in ((1.0, 3), (2.0, 9), (4.0, 5))]
    mean = weighted_mean(messages, [500, 300, 200])
    assert mean["w"].item() == pytest.approx(1.9)
    assert mean["n"].item() == 9


def test_the_loss_of_a_round_is_the_mean_over_its_clients(values) -> None:
    values["sampling"] = {"fraction": 0.75}
    experiment = make_experiment(load_config(values))
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    _, record = rounds.play(experiment, executor, state)
    jobs = [rounds.make_job(experiment, state, k, record.local_epochs) for k in record.selected]
    losses = [result.loss for result in executor.train(jobs)]
    assert len(set(losses)) == 3
    assert record.train_loss == pytest.approx(sum(losses) / 3)


def test_classes_of_which_no_test_image_is_found_are_counted(experiment) -> None:
    state, (record,) = play(experiment, 1)
    assert record.lost_classes == [accuracy == 0 for accuracy in state.per_class].count(True)
    assert 0 < record.lost_classes < 4


def test_the_loss_of_a_turn_is_the_mean_over_its_steps(experiment, monkeypatch) -> None:
    executor, losses = make_executor(experiment, CPU), []
    step = executor.bench.learner.step

    def spy(*args):
        losses.append(step(*args))
        return losses[-1]

    monkeypatch.setattr(executor.bench.learner, "step", spy)
    (result,) = executor.train([rounds.make_job(experiment, rounds.start(experiment), 0, 2)])
    assert len(losses) == 6  # two epochs of 20 samples in batches of eight
    assert result.loss == pytest.approx(float(torch.stack(losses).detach().mean()), rel=1e-5)


def test_progress_goes_from_client_to_client(experiment) -> None:
    seen: list[float] = []
    jobs = [rounds.make_job(experiment, rounds.start(experiment), k, 2) for k in (0, 1)]
    make_executor(experiment, CPU).train(jobs, seen.append)
    assert seen == [0.5, 1.0]


def test_bytes_of_a_message() -> None:
    assert message_bytes({"a": torch.zeros(3, 2), "b": torch.zeros((), dtype=torch.int64)}, {"n": 1.0}) == 24 + 8 + 8


def test_full_batches_wrap_round() -> None:
    order = torch.tensor([[4, 3, 2, 1, 0], [0, 1, 2, 3, 4]])
    assert full_batches(order, 2).tolist() == [[[4, 3], [2, 1], [0, 4]], [[0, 1], [2, 3], [4, 0]]]
    assert full_batches(order[:1, :2], 5).tolist() == [[[4, 3, 4, 3, 4]]]
    assert full_batches(order[:1], 5).tolist() == [[[4, 3, 2, 1, 0]]]


def test_every_sample_is_in_every_epoch(experiment: Experiment) -> None:
    client = make_executor(experiment, CPU).clients[1]
    turn = Turn(1, 3, Seed(0).child("t"))
    (phase,) = experiment.learner.plan({}, client, {}, turn, range(3))
    assert phase.tensors["index"].shape == (3 * 3, 8)
    for epoch in phase.tensors["index"].view(3, -1):
        assert set(epoch.tolist()) == set(client.index.tolist())
    position = torch.searchsorted(client.index, phase.tensors["index"])
    assert torch.equal(client.labels[position], phase.tensors["labels"])


def test_another_seed_changes_split_noise_and_sampling(values) -> None:
    runs = []
    for seed in (0, 1):
        values["run"]["seed"] = seed
        experiment = make_experiment(load_config(values))
        runs.append((experiment.setting, play(experiment, 3)[1]))
    (setting_a, log_a), (setting_b, log_b) = runs
    assert any(not np.array_equal(p, q) for p, q in zip(setting_a.parts, setting_b.parts, strict=True))
    assert setting_a.manifest_hash() != setting_b.manifest_hash()
    assert [r.selected for r in log_a] != [r.selected for r in log_b]


def test_a_users_dropout_is_reproducible_in_any_order(values) -> None:
    values["model"] = {"name": f"{__name__}:dropout_model"}
    experiment = make_experiment(load_config(values))
    executor = make_executor(experiment, CPU)
    received = experiment.initial_model()
    jobs = [Job(k, received, {}, Turn(1, 2, experiment.seed.child("round", 1, "client", k))) for k in range(3)]
    one = {r.client: r.tensors for r in executor.train(jobs)}
    torch.rand(7)  # the global generator is somewhere else now
    two = {r.client: r.tensors for r in executor.train(jobs[::-1])}
    for k in one:
        assert_same(one[k], two[k])
    assert not torch.equal(one[0]["model/2.weight"], one[1]["model/2.weight"])


def dropout_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))


def test_round_equals_a_plain_pytorch_loop(values) -> None:
    """One round of FedAvg on a BatchNorm model, written out with torch.optim and averaged by hand."""
    values |= {
        "model": {"name": f"{__name__}:bn_model"},
        "partition": {"kind": "dirichlet", "clients": 4, "min_size": 8},
    }
    experiment = make_experiment(load_config(values))
    state, records = play(experiment, 1)
    executor, seed = make_executor(experiment, CPU), experiment.seed.child("round", 1)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
    expected: dict[str, torch.Tensor] = {}
    selected = records[0].selected
    total = sum(len(experiment.setting.parts[k]) for k in selected)
    for k in selected:
        module = experiment.build_model("model")
        sgd = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5, weight_decay=1e-4)
        client = executor.clients[k]
        for epoch in range(2):
            turn = Turn(1, 2, seed.child("client", k))
            (phase,) = experiment.learner.plan({}, client, {}, turn, range(epoch, epoch + 1))
            for s in range(phase.steps):
                images = weak(client.pool, phase.tensors["index"][s], phase.tensors["weak"][s])
                sgd.zero_grad()
                logits = module((images.float() / 255 - mean) / std)
                nn.functional.cross_entropy(logits, phase.tensors["labels"][s]).backward()
                sgd.step()
        for name, tensor in module.state_dict().items():
            part = tensor.double() * len(client) / total
            expected[name] = expected[name] + part if name in expected else part
    assert "1.running_mean" in expected
    for name, tensor in expected.items():
        if "num_batches" not in name:
            difference = (state.server.tensors[f"model/{name}"].double() - tensor).norm() / tensor.norm()
            assert difference < 1e-5, name


def bn_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    conv = nn.Conv2d(image_shape[0], 4, 3, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, num_classes))


class Quadratic(Learner):
    """f(w) = 0.3 w: gradient 0.3 whatever the data."""

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return [Phase({"index": torch.zeros(1, 1, dtype=torch.int64)})]

    def step(self, nets: Nets, pool: torch.Tensor, batch: Tensors, state: Tensors, kind: str) -> torch.Tensor:
        return 0.3 * nets["model"].module.w.sum()


class OneWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0]))


def test_fedprox_oracle() -> None:
    """w = 1.5, w_global = 1, g = 0.3, μ = 0.1, lr = 0.05 gives 1.4825 (no momentum, no decay)."""
    task = Task(2, (1, 1, 1), 1, 0.05, 1)
    learner = Proximal(Quadratic(LearnerConfig(name="q"), task), mu=0.1)
    net = Network(OneWeight(), (0.0,), (1.0,), CPU)
    client = Client(0, torch.zeros(1, 1, 1, 1), torch.zeros(1), torch.zeros(1))
    state = learner.init({"model": net}, client, {}, Turn(1, 1, Seed(0)))
    net.params.fill_(1.5)
    learner.step({"model": net}, client.pool, {}, state, "train").backward()
    learner.gradients({"model": net}, {}, state, "train")
    sgd_step(net, 0.05, 0.0, 0.0)
    assert net.params.item() == pytest.approx(1.4825)


def test_fedprox_without_pull_is_fedavg_and_with_it_is_not(values) -> None:
    fedavg, _ = play(make_experiment(load_config(values)), 2)
    states = {}
    for mu in (0.0, 1.0):
        values["server"] = {"name": "fedprox", "mu": mu}
        values["sampling"] = {"fraction": 0.5}
        states[mu], _ = play(make_experiment(load_config(values)), 2)
    assert_same(fedavg.server.tensors, states[0.0].server.tensors)
    assert not torch.equal(states[1.0].server.tensors["model/head.weight"], fedavg.server.tensors["model/head.weight"])


def test_record_of_a_round(experiment: Experiment) -> None:
    state, records = play(experiment, 2)
    first, second = records
    size = sum(t.numel() * 4 for t in state.server.tensors.values())
    assert first.bytes_down == 2 * (size + 16)
    assert first.bytes_up == 2 * (size + 16)
    assert first.local_epochs == 2
    assert second.train_batches == 2 * 2 * 2 * 3  # rounds × clients × epochs × ceil(20 / 8)
    given, true = experiment.setting.labels.given, true_labels(experiment.setting.truth)
    assert true is not None
    ratios = [100 * np.mean(given[k] != true[k]) for k in first.selected]
    assert first.selected_noise == pytest.approx(np.mean(ratios))


def test_it_learns(values) -> None:
    values["noise"] = {"kind": "none"}
    values["schedule"]["epochs"] = 10
    values["model"]["width"] = 8
    _, records = play(make_experiment(load_config(values)), 4)
    assert records[-1].test_accuracy > 90


def test_update_reaches_the_server_sorted(experiment: Experiment) -> None:
    seen: list[int] = []

    class Spy(type(experiment.server)):
        def aggregate(self, state, round_idx: int, updates: list[Update]):
            seen.extend(u.client for u in updates)
            return super().aggregate(state, round_idx, updates)

    spy = Spy(experiment.server.config, experiment.task)
    play(dataclasses.replace(experiment, server=spy), 1)
    assert seen == sorted(seen)
    assert len(seen) == 2


def test_converged_oracles() -> None:
    assert metrics.converged([70, 71, 70.5, 72.4, 71, 70]) is True
    assert metrics.converged([70, 71, 70.5, 72.5, 71, 70]) is False
    assert metrics.converged([0, 50, 70, 71, 70.5, 72.4, 71, 70]) is True
    assert metrics.converged([70, 70, 70, 70, 70]) is None
    assert metrics.converged([2.01, 0.01, 0.01, 0.01, 0.01, 0.01]) is False  # in floats this jump is a hair under 2


def test_scores() -> None:
    logits = torch.tensor([[2.0, 0, 0], [0, 1, 0], [0, 1, 0]])
    score = metrics.score_logits(logits, torch.tensor([0, 1, 0]))
    assert score.accuracy == pytest.approx(200 / 3)
    assert score.per_class == (50.0, 100.0, None)
    assert metrics.score_logits(logits[:2], torch.tensor([0, 2])).loss == pytest.approx(0.895495, abs=1e-6)
    both = metrics.mean_score([score, metrics.Score(0.0, 1.0, (0.0, 0.0, None))], [1, 3])
    assert both.accuracy == pytest.approx(200 / 12)
    assert both.per_class == (12.5, 25.0, None)


def test_summary() -> None:
    records = [
        RoundRecord(
            round=a,
            test_accuracy=float(a),
            local_epochs=1,
            train_batches=5 * a,
            selected=[0],
            bytes_down=10,
            bytes_up=1,
            wall_s=0.5,
        )
        for a in range(1, 13)
    ]
    summary = metrics.summarise(records, (1.0,))
    assert summary["final_accuracy"] == 12
    assert summary["best_accuracy"] == 12
    assert summary["last10_accuracy"] == 7.5
    assert summary["converged"] is True
    assert (summary["bytes_down"], summary["bytes_up"], summary["train_batches"]) == (120, 12, 60)


@pytest.mark.parametrize(("side", "asked"), [(8, [8, 3]), (128, [2, 2, 2, 2, 2, 1]), (400, [1] * 11)])
def test_views_are_made_for_as_many_steps_as_fit_in_memory(
    side: int, asked: list[int], values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^15 numbers times the batch size: 2 steps of 128×128 pixels."""
    bench = make_bench(make_experiment(load_config(values)), torch.device("cpu"))
    found: list[int] = []
    monkeypatch.setattr(bench.learner, "views", lambda _, batch: found.append(len(batch["index"])) or {})
    phase = Phase({"index": torch.arange(44).view(11, 4)})
    batches = list(bench._batches(phase, torch.zeros(1, 1, side, side)))
    assert torch.equal(torch.stack([batch["index"] for batch in batches]), phase.tensors["index"])
    assert found == asked


@pytest.mark.parametrize(
    ("count", "shape", "views", "size"),
    [
        (300, (1, 28, 28), 1, 128),
        (300, (1, 28, 28), 2, 64),
        (300, (3, 224, 224), 1, 81),
        (3, (1, 4096, 4096), 1, 1),
        (2500, (12,), 1, 1000),
    ],
)
def test_a_span_fits_the_cache_and_the_memory(count: int, shape: tuple[int, ...], views: int, size: int) -> None:
    """Of 224×224 pixels 1000 · 4096 // 224² = 81."""
    spans = chunks(count, torch.empty(0, *shape), views)
    assert spans[0] == slice(0, size)
    assert [span.start for span in spans] == list(range(0, count, size))
