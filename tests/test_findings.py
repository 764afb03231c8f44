"""What a finished run tells its user, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_arrays

import fednoil
from fednoil import findings
from fednoil.history import RoundRecord
from fednoil.records.model_file import load_model
from fednoil.rounds.final import final_bundle


def records(values: list[float], of: str = "test_accuracy", **more: Any) -> list[RoundRecord]:
    rest: Any = {"local_epochs": 1, "train_batches": 1, "selected": [0], "bytes_down": 0, "bytes_up": 0}
    rest |= {"wall_s": 0.0, **more}
    return [RoundRecord(round=r, **rest | {of: value}) for r, value in enumerate(values, start=1)]


FLAT, RISING = [50.0, 50.4] * 8, [50.0 + 2 * r for r in range(16)]


@pytest.mark.parametrize(
    ("values", "change", "what"),
    [
        (RISING, 8.0, "rising"),  # the means of the last four and the four before are four rounds of 2 points apart
        (RISING[::-1], -8.0, "falling"),
        (FLAT, 0.0, "steady"),
        ([50.0] * 12 + [50.19] * 4, 0.19, "steady"),
        ([50.0] * 12 + [50.21] * 4, 0.21, "rising"),
        ([40.0, 60, 40, 60, 40, 60, 60, 60], 5.0, "steady"),  # 2·√(133.3 + 100)/2 ≈ 15 points are chance
    ],
)
def test_a_change_counts_where_chance_does_not_explain_it(values: list[float], change: float, what: str) -> None:
    found = findings.recent_trend(records(values))
    assert found is not None
    assert (found["of"], found["rounds"], found["is"]) == ("test_accuracy", 4, what)
    assert found["change"] == pytest.approx(change, abs=1e-3)


def test_the_last_eighth_of_many_rounds_counts() -> None:
    found = findings.recent_trend(records([10.0] * 70 + [20.0] * 10))
    assert found is not None
    assert (found["rounds"], found["change"]) == (10, 10.0)


def test_few_rounds_say_nothing() -> None:
    assert findings.recent_trend(records([1.0, 2, 3, 4, 5, 6, 7])) is None


def test_held_out_labels_come_before_test_images() -> None:
    found = findings.recent_trend(records(RISING, "val_accuracy", test_accuracy=90.0))
    assert found is not None
    assert (found["of"], found["is"]) == ("val_accuracy", "rising")


def test_the_sentences() -> None:
    summary = {
        "noise_ratios": {"nord": 0.123, "süd": 0.61, "ost": 0.2},
        "classes": ["cat", "dog", "frog", "ship"],
        "per_class_accuracy": [90.0, 0.0, 41.0, 97.0],  # mean 57: frog is 16 below it, dog is lost
        "trend": {"of": "val_accuracy", "rounds": 4, "change": -1.26, "is": "falling"},
    }
    assert findings.sentences(summary, "try more") == [
        "no test sample of class 'dog' is classified correctly; try more",
        "wrong labels, estimated: 12 % (client nord) to 61 % (client süd), median 20 %; an audit shows how sure",
        "hard classes: frog 41 % (mean over classes 57 %)",
        "agreement with held-out labels was still falling, by 1.3 points over the last 4 rounds: fewer rounds may help",
    ]
    assert findings.sentences({"per_class_accuracy": [100.0, None], "classes": ["cat", "dog"]}) == [
        "no test sample is of class 'dog': how well it is recognised is not known"
    ]
    assert findings.sentences({"noise_ratios": {"0": 0.07}}) == [
        "wrong labels, estimated: 7 %; an audit shows how sure"
    ]
    assert findings.sentences({"noise_ratios": {"ost": 1.0}, "clients": ["ost", "nord", "süd"]}) == [
        "wrong labels, estimated: 100 % (client ost), not known at 2 other clients; an audit shows how sure"
    ]
    alike = findings.sentences({"noise_ratios": {"0": 0.001, "1": 0.004}})
    assert alike == ["wrong labels, estimated: 0 % at every client; an audit shows how sure"]
    assert findings.sentences({"per_class_accuracy": [None, 80.0], "trend": None}) == [
        "no test sample is of class 0: how well it is recognised is not known"
    ]
    rare = {"final_accuracy": 89.2, "balanced_accuracy": 90.9, "largest_class": {"class": 1, "percent": 95.4}}
    assert findings.sentences({**rare, "classes": ["ill", "well"]}) == [
        "always answering 'well' is right for 95.4 % of the test samples, the model for 89.2 %; with all classes "
        "counting alike, 90.9 % of its answers are right"
    ]
    assert findings.sentences({**rare, "final_accuracy": 95.4}) == []
    same = {"final_accuracy": 200 / 3, "largest_class": {"class": 0, "percent": 66.667}}
    assert findings.sentences(same) == []


def learnt(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose model knows the images at its end."""
    values["model"]["width"], values["schedule"]["epochs"], values["train"]["rounds"] = 8, 10, 4
    values["noise"], values["sampling"] = {"kind": "symmetric", "ratios": [0.2]}, {"name": "score", "fraction": 0.5}
    return values


def test_a_run_estimates_what_its_audit_does(values: dict[str, Any]) -> None:
    run = fednoil.run(learnt(values), progress=False)
    ratios = run.summary["noise_ratios"]
    assert ratios == pytest.approx({str(k): ratio for k, ratio in run.audit().noise_ratios.items()}, abs=1e-6)
    assert len(ratios) == values["partition"]["clients"]
    assert run.findings[0].startswith("wrong labels, estimated: ")


@pytest.fixture
def untested(tmp_path: Path) -> dict[str, Any]:
    """Data without test images, a fifth of whose labels are wrong."""
    arrays, rng = tiny_arrays(400), np.random.default_rng(1)
    wrong, given = rng.random(400) < 0.2, arrays["y_train"]
    labels = np.where(wrong, (given + 1 + rng.integers(0, 3, 400)) % 4, given)
    np.savez(tmp_path / "own.npz", x_train=arrays["x_train"], y_train=labels)
    changes = {"data.name": f"npz:{tmp_path / 'own.npz'}", "partition.clients": 4, "model.width": 8, "train.pad": 1}
    return changes | {"schedule.name": "constant", "schedule.epochs": 3, "train.rounds": 4, "train.batch_size": 8}


def test_without_test_images_too(untested: dict[str, Any], tmp_path: Path) -> None:
    """By labels that were held out, which are as wrong as the others: no accuracy is known of the model."""
    run = fednoil.run("demo/fedavg", set=untested, out=tmp_path / "run", progress=False)
    ratios = run.summary["noise_ratios"]
    assert ratios == pytest.approx({str(k): ratio for k, ratio in run.audit(folds=0).noise_ratios.items()}, abs=1e-6)
    model = load_model(tmp_path / "run" / "model.safetensors")
    assert (model.accuracy, model.per_class) == (None, ())


def test_a_model_that_may_have_learnt_wrong_labels_estimates_nothing(
    untested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fednoil.findings.agreements", lambda *_: (82.0, 70.0))
    monkeypatch.setattr("fednoil.audit.cases.agreements", lambda *_: (82.0, 70.0))
    run = fednoil.run("demo/fedavg", set=untested, progress=False)
    assert run.summary["noise_ratios"] == {}
    said = run.audit(folds=0).summary["clients"][0]["notices"]
    line = "the model agrees with 82 % of the labels it was trained on, and 70 % of held-out ones: it may have learnt"
    assert any(one.startswith(line) and "; --folds 5 judges each by a run that" in one for one in said)


def test_with_test_images_a_gap_is_no_doubt(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednoil.audit.cases.agreements", lambda *_: (82.0, 70.0))
    notices = fednoil.run(values, progress=False).audit(folds=0).summary["clients"][0]["notices"]
    assert not any("may have learnt" in line for line in notices)


def test_what_would_take_long_is_left_to_the_audit(untested: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients with four classes: 4 · 4² = 64."""
    monkeypatch.setattr(findings, "_WORK", 63)
    assert "noise_ratios" not in fednoil.run("demo/fedavg", set=untested, progress=False).summary


def test_without_a_number_for_each_sample_nothing_is_estimated(
    untested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*args: Any) -> Any:
        bundle = final_bundle(*args)
        bundle["probabilities"][0] = float("nan")
        return bundle

    monkeypatch.setattr(findings, "agreements", lambda *_: (70.0, 70.0))
    monkeypatch.setattr(findings, "final_bundle", damaged)
    assert fednoil.run("demo/fedavg", set=untested, progress=False).summary["noise_ratios"] == {}


def test_a_model_that_knows_nothing_estimates_nothing(values: dict[str, Any]) -> None:
    values["train"]["rounds"], values["train"]["lr"] = 1, 1e-6
    run = fednoil.run(values, progress=False)
    assert run.summary["noise_ratios"] == {}
    assert "wrong labels: no estimate is reliable; an audit shows more" in run.findings
    lost = [c for c, right in enumerate(run.summary["per_class_accuracy"]) if right == 0]
    assert lost
    assert run.findings[0].startswith("no test sample of the class")
    assert run.findings[0].endswith(" is classified correctly")


def test_the_noise_of_many_clients_is_left_to_the_audit(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_MOST", 3)
    assert "noise_ratios" not in fednoil.run(learnt(values), progress=False).summary
