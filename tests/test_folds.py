"""An audit out of folds: no model judges a label that it was trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import fednoil, refused
from stopped_runs import snapshot

from fednoil import load, runner
from fednoil.audit.cases import Cases, load_state, of_state
from fednoil.audit.folds import _means
from fednoil.cli.stopping import Stopped
from fednoil.config import load_config
from fednoil.experiment import make_experiment
from fednoil.records.model_file import load_model
from fednoil.report.runs import find
from fednoil.reporters import headline
from fednoil.rounds import start
from fednoil.rounds.memorised import agreements, alike, learnt, memorised
from fednoil.runner import Silent
from fednoil.seeds import Seed
from fednoil.setting import deal

FOLDS = 3


@pytest.fixture
def made(values: dict[str, Any], tmp_path: Path) -> Path:
    """A finished run of two rounds."""
    values["train"]["rounds"] = 2
    runner.run(load_config(values), tmp_path / "run", Silent())
    return tmp_path / "run"


def test_every_sample_is_in_one_fold_and_classes_are_dealt_evenly(values: dict[str, Any]) -> None:
    experiment = make_experiment(load_config(values))
    dealt = experiment.setting.dealt(FOLDS, experiment.seed)
    for folds, given in zip(dealt, experiment.setting.labels.given, strict=True):
        assert set(folds) == set(range(FOLDS))
        for label in np.unique(given):
            counts = np.bincount(folds[given == label], minlength=FOLDS)
            assert counts.max() - counts.min() <= 1
    values["run"]["seed"] = 1
    again = make_experiment(load_config(values))
    other = again.setting.dealt(FOLDS, again.seed)
    assert any(not np.array_equal(*pair) for pair in zip(dealt, other, strict=True))


def test_every_client_is_dealt_in_an_order_of_its_own() -> None:
    given = np.zeros(20, np.int64)
    assert not np.array_equal(deal(given, 2, Seed(0), 0), deal(given, 2, Seed(0), 1))


def test_an_accuracy_that_one_run_lacks_is_not_known() -> None:
    assert _means([(1.0, None, None), (3.0, 5.0, None)]) == (2.0, None, None)


def test_labels_are_judged_by_the_run_that_left_them_out(made: Path, values: dict[str, Any]) -> None:
    status, out, err = fednoil("audit", made, "--folds", FOLDS)
    assert (status, err) == (0, "")
    assert f"each label was judged by a run that had not seen it, one of {FOLDS} folds" in out
    page = (made / f"audit-folds-{FOLDS}/audit.html").read_text()
    assert f"fednoil relabel --data manifest:{made}/noise.parquet" in page  # whose labels were spoilt
    experiment = make_experiment(load_config(values))
    table = pq.read_table(made / f"audit-folds-{FOLDS}/labels.parquet").to_pylist()
    assert len(table) == sum(experiment.task.sizes)
    said = {(row["client"], row["index"]): row["confidence"] for row in table}
    images = experiment.setting.dataset.train.images
    for fold in range(FOLDS):
        folder = made / f"folds-{FOLDS}/fold-{fold + 1}"
        trained = {(str(r["client"]), r["index"]) for r in pq.read_table(folder / "noise.parquet").to_pylist()}
        model = load_model(folder / "model.safetensors")
        for k, folds in enumerate(experiment.setting.dealt(FOLDS, experiment.seed)):
            rows = experiment.setting.parts[k][folds == fold]
            assert trained.isdisjoint((str(k), int(row)) for row in rows)
            labels = experiment.setting.labels.given[k][folds == fold]
            found = model.probabilities(torch.from_numpy(images[rows])).numpy()[np.arange(len(rows)), labels]
            assert [said[str(k), int(row)] for row in rows] == pytest.approx(found.tolist(), abs=1e-5)


def test_what_was_made_is_kept_and_memory_says_the_same(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fednoil("audit", made, "--folds", FOLDS)[0] == 0
    wanted = (made / f"audit-folds-{FOLDS}/labels.csv").read_text()
    memory = load(made)
    memory._path = None  # as a run that was never written
    assert memory.audit(folds=FOLDS).table["p_wrong"] == load(made).audit(folds=FOLDS).table["p_wrong"]
    first = made / f"folds-{FOLDS}/fold-1"
    (first / "summary.json").unlink()  # stopped at its very end
    kept = snapshot(made / f"folds-{FOLDS}/fold-2")
    assert fednoil("audit", made, "--folds", FOLDS, "--force")[0] == 0
    assert (made / f"audit-folds-{FOLDS}/labels.csv").read_text() == wanted
    assert snapshot(made / f"folds-{FOLDS}/fold-2") == kept
    assert list(find([made])) == [made]  # a report's runs: folds are none


def test_the_first_lines_of_a_run_name_the_fold_that_it_leaves_out(values: dict[str, Any]) -> None:
    values["data"]["validation"] = "2/5"
    lines = headline(make_experiment(load_config(values)), [])
    assert lines[-1] == "fold 2 of 5 of each client's samples is left out (data.validation)"
    values["data"]["validation"] = 0.2
    assert not any("left out" in line for line in headline(make_experiment(load_config(values)), []))


def test_what_cannot_be_dealt_is_refused(made: Path) -> None:
    assert "1 fold: two are the fewest; choose 2 to" in refused("audit", made, "--folds", 1)
    assert "choose 2 to" in refused("audit", made, "--folds", 1000)
    assert "--folds makes a RUN again" in refused("audit", "--data", "npz:x", "--model", "m", "--folds", 3)
    assert "--client 9" in refused("audit", made, "--folds", 2, "--client", 9)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "aurocs"), [("fedavg", (0.64, 0.94)), ("fednoil", (0.79, 0.88))])
def test_on_few_images_folds_find_more(method: str, aurocs: tuple[float, float], tmp_path: Path) -> None:
    """450 images at three sites with 5, 16 and 32 % wrong labels, which a network remembers: as in docs/audit.md."""
    keys = {"partition.clients": 3, "partition.samples_per_client": 150, "noise.ratios": [0.05, 0.16, 0.32]}
    keys |= {"schedule.name": "constant", "schedule.epochs": 5, "train.rounds": 12, "model.width": 8}
    options = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    status, _, err = fednoil("run", f"demo/{method}", *options, "--device", "cpu", "-q", "--out", tmp_path / "run")
    assert (status, err) == (0, "")
    run = load(tmp_path / "run")
    found = [run.audit(folds=n).summary["overall"]["quality"]["auroc"] for n in (0, 4)]
    assert found == pytest.approx(aurocs, abs=0.015)  # another processor rounds otherwise


def test_an_audit_says_when_labels_were_memorised(values: dict[str, Any]) -> None:
    """By hand: of three classes all, half and all of the trained labels are agreed with, 83 %; 50 % of the held-out."""
    experiment = make_experiment(load_config(values))
    given = torch.tensor([0, 0, 1, 1, 2, 2])
    found = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 2, 2, 2]), 4).float()
    bundle = {"given": given, "probabilities": found}

    def shares(*by_class: float | None) -> tuple[float, float] | None:
        return agreements(experiment, replace(start(experiment), per_class=by_class), bundle)

    line = memorised(shares(40.0, 50.0, 60.0, None), "test")
    assert line.startswith("the model agrees with 83 % of the labels it was trained on, and 50 % of test ones")
    assert memorised(shares(60.0, 70.0, 80.0, None), "test") == ""
    assert memorised(shares(), "test") == ""
    assert [alike(shares(*known)) for known in ((80.0, 80.0, 82.0, None), (80.0, 80.0, 80.0, None), ())] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(("smallest", "said"), [(4, "; --folds 4 judges each by a run that has"), (1, "labels")])
def test_no_more_folds_are_advised_than_the_smallest_client_has_samples(
    made: Path, monkeypatch: pytest.MonkeyPatch, smallest: int, said: str
) -> None:
    monkeypatch.setattr("fednoil.audit.cases.memorised", lambda *_: "it may have memorised wrong labels")
    experiment, state = load_state(made)
    sizes = (smallest, *experiment.task.sizes[1:])
    monkeypatch.setattr("fednoil.audit.cases.final_bundle", lambda *_: {})
    monkeypatch.setattr("fednoil.audit.cases.agreements", lambda *_: ())
    monkeypatch.setattr("fednoil.audit.cases.alike", lambda *_: False)
    noticed: list[str] = []

    def cases_of(*args: Any) -> Cases:
        noticed.extend(args[-1])
        return Cases("x", (), [], lambda _: np.zeros(0))

    monkeypatch.setattr("fednoil.audit.cases.cases_of", cases_of)
    of_state(replace(experiment, task=replace(experiment.task, sizes=sizes)), state, None, torch.device("cpu"))
    assert noticed[-1].partition(" not seen")[0].endswith(said)


def test_an_audit_of_few_memorised_labels_goes_out_of_folds(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless nobody wants it, it would take long, or the labels are many: then a notice advises it."""
    monkeypatch.setattr("fednoil.audit.cases.memorised", lambda *_: "it may have memorised wrong labels")
    said = "it may have memorised wrong labels, so each label is judged by a run that has not seen it (5 runs of about "
    advised = "it may have memorised wrong labels; --folds 5 judges each by a run that has not seen it"

    def audited(*more: object) -> tuple[int | None, str]:
        status, out, err = fednoil("audit", made, "--force", *more)
        assert (status, err) == (0, "")
        return json.loads((made / "audit/summary.json").read_text()).get("folds"), out

    folds, out = audited()
    assert folds == 5
    assert said in out
    assert "fold 5 of 5: 2 rounds without it" in out
    assert advised not in out
    (made / "folds-5/fold-3/summary.json").unlink()
    out = audited()[1]
    assert "(1 run of about " in out
    assert [line for line in out.splitlines() if line.startswith("fold ")] == ["fold 3 of 5: 2 rounds without it"]
    assert "has not seen it (its runs are kept)" in audited()[1]
    assert load(made).audit().summary["folds"] == 5
    assert "folds" not in load(made).audit(folds=0).summary
    folds, out = audited("--folds", 0)
    assert folds is None
    assert advised in out
    for limit in ("FEW_LABELS", "_LONG"):
        with monkeypatch.context() as patch:
            patch.setattr(f"fednoil.audit.folds.{limit}", 0)
            folds, out = audited()
            assert folds is None
            assert advised in out
    monkeypatch.setattr("fednoil.cli.audit_folds.of_folds", lambda *_: (_ for _ in ()).throw(Stopped(2)))
    assert fednoil("audit", made, "--force")[::2] == (
        130,
        "fednoil: interrupted; run the same command again to continue\n",
    )


@pytest.mark.parametrize("shares", [(80.0, 79.0), (80.0, 70.0), None])
def test_a_model_is_as_sure_as_labels_show_if_it_has_not_learnt_them(
    made: Path, monkeypatch: pytest.MonkeyPatch, shares: tuple[float, float] | None
) -> None:
    """Where no test set shows it; labels that were learnt better than others show nothing."""
    monkeypatch.setattr("fednoil.audit.cases.agreements", lambda *_: shares)
    known = load(made).audit()._cases.clients
    monkeypatch.setattr("fednoil.audit.cases.known_accuracy", lambda *_: (None, ()))
    found = load(made).audit()._cases.clients
    changed = [not np.allclose(a.probabilities, b.probabilities) for a, b in zip(known, found, strict=True)]
    assert changed == [shares == (80.0, 79.0)] * len(found)
    monkeypatch.setattr("fednoil.audit.folds.known_accuracy", lambda *_: (None, ()))
    (one, *_) = load(made).audit(folds=2)._cases.clients
    own = one.bundle["probabilities"].gather(1, one.bundle["given"][:, None])[:, 0]
    assert not torch.allclose(own, one.bundle["confidence"])  # a single look


def test_what_a_model_may_have_learnt() -> None:
    assert [bool(learnt((80.0, 80.0 - gap))) for gap in (2.9, 3.0, 14.9, 15.0)] == [False, True, True, False]
    assert [bool(memorised((80.0, 80.0 - gap), "test")) for gap in (14.9, 15.0)] == [False, True]
    assert learnt(None) == memorised(None, "test") == ""
