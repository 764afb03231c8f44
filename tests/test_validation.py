"""Validation samples: kept out of training, met with given labels only, the same on both executors."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same, fednoil
from made_labels import true_labels
from test_stack import stacked

from fednoil import metrics, rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.evaluation import validate
from fednoil.executors.base import HeldOut
from fednoil.executors.sequential import held_out
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.base import Client
from fednoil.records.folder import RunFolder
from fednoil.testing.federation import with_garbage

CPU = torch.device("cpu")


def made(values: dict[str, Any], share: float, **sections: dict[str, Any]) -> Experiment:
    values = copy.deepcopy(values)
    values["data"]["validation"] = share
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys}
    return make_experiment(load_config(values))


def test_samples_are_either_trained_on_or_kept(values: dict[str, Any]) -> None:
    whole, part = make_experiment(load_config(values)).setting, made(values, 0.25).setting
    assert part.validation is not None
    for k in range(4):
        trained, kept = part.parts[k], part.validation.parts[k]
        assert (len(trained), len(kept)) == (15, 5)
        assert sorted([*trained, *kept]) == sorted(whole.parts[k])
        labels = dict(zip(whole.parts[k], whole.labels.given[k], strict=True))
        assert [labels[i] for i in trained] == part.labels.given[k].tolist()
        assert [labels[i] for i in kept] == part.validation.given[k].tolist()
        true = whole.dataset.train.labels
        assert true_labels(part.truth)[k].tolist() == true[trained].tolist()
    assert made(values, 0.25).task.sizes == (15, 15, 15, 15)


def test_they_depend_on_the_seed_alone(values: dict[str, Any]) -> None:
    first, again, other = (made(values, 0.25, run={"seed": seed}).setting.validation for seed in (0, 0, 1))
    assert first is not None
    assert again is not None
    assert other is not None
    assert all(np.array_equal(a, b) for a, b in zip(first.parts, again.parts, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first.parts, other.parts, strict=True))


def test_accuracy_and_loss_by_hand() -> None:
    """Clients of two and one samples: one of two right, then none; losses ln 2, ln 2 and ln 4."""
    clients = [
        Client(7, torch.empty(0), torch.arange(2), torch.tensor([0, 1])),
        Client(3, torch.empty(0), torch.arange(1), torch.tensor([1])),
    ]
    logits = torch.tensor([[1.0, 1.0], [1.0, 1.0], [3.0, 1.0]]).log()
    first, second = held_out(logits, clients)
    assert (first.right, first.samples, second.right, second.samples) == (1, 2, 0, 1)
    assert first.loss == pytest.approx(np.log(2))
    assert second.loss == pytest.approx(np.log(4))


def test_clients_count_by_their_samples() -> None:
    """One of two right at a loss of 1, and one of six at a loss of 3: 2/8 and (2 · 1 + 6 · 3)/8."""
    assert metrics.mean_held_out([HeldOut(1, 2, 1.0), HeldOut(1, 6, 3.0)]) == pytest.approx((25.0, 2.5))


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"server": {"average": 0.5}},
        {"server": {"name": "apfl"}},
        {"server": {"name": "cfl"}},
        {"learner": {"name": "dividemix", "warmup": 1}},
    ],
    ids=str,
)
def test_agreement_is_recorded_every_round(values: dict[str, Any], sections: dict[str, Any]) -> None:
    """With the model that is each client's own, against a plain count from its logits."""
    experiment = made(values, 0.25, **sections)
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    for _ in range(2):
        state, record = rounds.play(experiment, executor, state)
    held, right, loss = experiment.setting.validation, 0, 0.0
    assert held is not None
    for k in range(4):
        model = {**experiment.server.model_for(state.final("last"), k), **state.keep.get(k, {})}
        images = torch.from_numpy(experiment.setting.dataset.train.images[held.parts[k]])
        logits, given = executor.bench.logits(model, images), torch.from_numpy(held.given[k])
        right += int((logits.argmax(1) == given).sum())
        loss += float(torch.nn.functional.cross_entropy(logits, given, reduction="sum"))
    assert record.val_accuracy == pytest.approx(100 * right / 20)
    assert record.val_loss == pytest.approx(loss / 20, rel=1e-5)


def test_both_executors_agree(values: dict[str, Any]) -> None:
    experiment = made(values, 0.25)
    state = rounds.start(experiment)

    def job_of(client: int) -> Any:
        return rounds.make_job(experiment, state, client, 0)

    reference = make_executor(experiment, CPU)
    found = validate(experiment, reference, job_of)
    executor = stacked(experiment, 2)
    executor.eager.validation = reference.validation
    assert validate(experiment, executor, job_of) == found
    assert found[1] == pytest.approx(np.log(4), abs=0.2)


def test_nothing_is_recorded_without_them(experiment: Experiment) -> None:
    _, record = rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))
    assert record.val_accuracy is None


def test_true_labels_change_nothing(values: dict[str, Any]) -> None:
    experiment = made(values, 0.25)
    ends = []
    for one in (experiment, Experiment(**{**vars(experiment), "setting": with_garbage(experiment.setting)})):
        state, record = rounds.play(one, make_executor(one, CPU), rounds.start(one))
        ends.append((state.server.tensors, record.val_accuracy, record.val_loss))
    assert_same(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]


def test_a_run_reports_them_in_its_summary(tmp_path: Path, tiny_npz: Path) -> None:
    sets = [f"data.name=npz:{tiny_npz}", "data.validation=0.5", "partition.clients=4", "train.rounds=2"]
    sets += ["schedule.epochs=1", "model.width=2", "run.device=cpu", "noise.kind=symmetric", "train.batch_size=8"]
    words = [word for one in sets for word in ("--set", one)]
    assert fednoil("run", "demo/fedavg", *words, "--out", tmp_path / "run", "--quiet")[0] == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    records = RunFolder(tmp_path / "run").records()
    assert summary["val_accuracy"] == records[-1].val_accuracy
    assert summary["last10_val_accuracy"] == pytest.approx(sum(r.val_accuracy for r in records) / 2)
    resumed = fednoil("run", "demo/fedavg", *words, "--out", tmp_path / "run", "--resume", "--quiet")
    assert resumed[0] == 0


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.01, "data.validation = 0.01 keeps 0 of the 20 samples of client 0 out of training"),
        (0.99, "data.validation = 0.99 keeps 20 of the 20 samples of client 0 out of training"),
        (1.0, "data.validation = 1.0: must be a share below 1, such as 0.1, or a fold"),
        (-0.1, "data.validation = -0.1: must be a share below 1"),
    ],
)
def test_bad_shares_get_one_clear_line(values: dict[str, Any], share: float, message: str) -> None:
    with pytest.raises(UserError) as error:
        made(values, share)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
