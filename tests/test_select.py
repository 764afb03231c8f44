"""The choice of a round by given labels that clients hold out (`run.select`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from conftest import assert_same, fednoil, refused
from made_runs import round_record
from stopped_runs import Stop, snapshot

from fednoil import load, metrics, rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_executor, make_experiment
from fednoil.history import RoundRecord
from fednoil.records.checkpoint import Checkpoints
from fednoil.records.folder import RunFolder
from fednoil.reporters import closing
from fednoil.rounds.final import final_looks
from fednoil.runner import Silent, run
from fednoil.tensors import read_tensors

CPU = torch.device("cpu")
AGREED = (40.0, 60.0, 60.0, 50.0)  # by round: the second is best, the third equals it


@pytest.fixture
def chosen(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Four rounds with these agreements."""
    values["data"]["validation"] = 0.25
    values["run"]["select"] = "best"

    def validate(experiment: Any, executor: Any, job_of: Any) -> tuple[float, float]:
        return AGREED[job_of(0).turn.round_idx - 2], 1.0

    monkeypatch.setattr("fednoil.rounds.loop.validate", validate)
    return values


def test_the_summary_has_the_best_round_of_all_and_the_earlier_of_equals() -> None:
    records = [round_record(n, test_accuracy=10.0 * n, val_accuracy=val) for n, val in enumerate(AGREED, start=1)]
    summary = metrics.summarise(records, ())
    assert summary["best_by_validation"] == {"round": 2, "test_accuracy": 20.0}
    assert summary["final_accuracy"] == 40.0
    assert "best_by_validation" not in metrics.summarise([round_record(1, test_accuracy=50.0)], ())


def test_a_run_ends_with_the_model_of_its_best_round(chosen: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(chosen)
    summary = run(config, tmp_path / "best", Silent())
    records = RunFolder(tmp_path / "best").records()
    assert (summary["final_round"], summary["final_accuracy"]) == (2, records[1].test_accuracy)
    assert summary["best_by_validation"] == {"round": 2, "test_accuracy": records[1].test_accuracy}
    assert "(round 2, chosen by held-out labels)" in closing(summary, None)
    chosen["train"]["rounds"] = 2
    short = run(load_config(chosen), tmp_path / "short", Silent())
    best, wanted = (read_tensors(tmp_path / name / "model.safetensors") for name in ("best", "short"))
    assert_same(best, wanted)
    assert summary["per_class_accuracy"] == short["per_class_accuracy"]
    confusions = [json.loads((tmp_path / name / "confusion.json").read_text()) for name in ("best", "short")]
    assert confusions[0] == confusions[1]


def test_a_finished_run_ends_with_the_other_round_if_asked(chosen: dict[str, Any], tmp_path: Path) -> None:
    """Both are kept: no round is played again, in either direction."""
    best = run(load_config(chosen), tmp_path / "best", Silent())
    chosen["run"]["select"] = "last"
    last = run(load_config(chosen), tmp_path / "last", Silent())
    assert (best["final_round"], "final_round" in last) == (2, False)
    for name, select in (("last", "best"), ("best", "last")):
        chosen["run"]["select"] = select
        other = tmp_path / select
        summary = run(load_config(chosen), tmp_path / name, Never(), resume=True)
        assert {**summary, "wall_s": 0} == {**json.loads((other / "summary.json").read_text()), "wall_s": 0}
        assert_same(*(read_tensors(path / "model.safetensors") for path in (tmp_path / name, other)))
        chosen["run"]["select"] = name  # and back, for the next
        run(load_config(chosen), tmp_path / name, Never(), resume=True)


class Never(Silent):
    def round(self, record: RoundRecord) -> None:
        raise AssertionError(f"round {record.round} is played")


def test_an_audit_takes_the_round_it_is_asked_for(chosen: dict[str, Any], tmp_path: Path) -> None:
    run(load_config(chosen), tmp_path / "run", Silent())
    tables = {}
    for select in ("last", "best"):
        status, _, err = fednoil("audit", tmp_path / "run", "--select", select, "--out", tmp_path / select)
        assert (status, err) == (0, "")
        tables[select] = (tmp_path / select / "labels.csv").read_text()
        found = load(tmp_path / "run").audit(select=select)
        assert found.table["p_wrong"] == pq.read_table(tmp_path / select / "labels.parquet")["p_wrong"].to_pylist()
    assert tables["last"] != tables["best"]
    assert "--select worst is unknown; choose last or best" in refused("audit", tmp_path / "run", "--select", "worst")
    assert "--select is for a RUN" in refused("audit", "--data", "npz:x", "--model", "m", "--select", "best")


def test_a_best_round_that_was_not_kept_is_refused(chosen: dict[str, Any], tmp_path: Path) -> None:
    chosen["run"]["select"] = "last"
    run(load_config(chosen), tmp_path / "run", Silent())
    index = tmp_path / "run/checkpoint/checkpoint.json"  # as earlier versions have written it
    index.write_text(json.dumps({k: v for k, v in json.loads(index.read_text()).items() if k != "best"}))
    before = snapshot(tmp_path / "run")
    chosen["run"]["select"] = "best"
    with pytest.raises(UserError, match="its checkpoint has only the last round"):
        run(load_config(chosen), tmp_path / "run", Silent(), resume=True)
    assert snapshot(tmp_path / "run") == before


@pytest.mark.parametrize("server", ["fedavg", "cfl"])
def test_the_best_round_survives_a_stop(chosen: dict[str, Any], server: str, tmp_path: Path) -> None:
    chosen["server"] = {"name": server}
    config = load_config(chosen)
    whole = run(config, tmp_path / "whole", Silent())
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "stopped", Stop(3))
    resumed = run(config, tmp_path / "stopped", Silent(), resume=True)
    for timed in (whole, resumed):
        timed.pop("wall_s")
    assert whole == resumed
    models = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert_same(*models)


def test_a_checkpoint_holds_the_best_round(chosen: dict[str, Any], tmp_path: Path) -> None:
    experiment = make_experiment(load_config(chosen))
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    states = []
    for _ in range(4):
        state, _ = rounds.play(experiment, executor, state)
        states.append(state)
    assert state.best is not None
    assert (state.best.round_idx, state.best.val_accuracy) == (2, 60.0)
    assert_same(state.final("best").tensors, states[1].scored.tensors)
    Checkpoints(tmp_path, {}).save(state)
    loaded = Checkpoints(tmp_path, {}).load()
    assert loaded.best is not None
    assert (loaded.best.round_idx, loaded.best.val_accuracy, loaded.best.per_class) == (2, 60.0, states[1].per_class)
    assert_same(loaded.final("best").tensors, state.final("best").tensors)
    assert_same(loaded.server.tensors, state.server.tensors)
    looks = [final_looks(experiment, one, CPU) for one in (loaded, states[1])]  # what an audit goes by
    assert_same({str(k): t for k, t in looks[0].items()}, {str(k): t for k, t in looks[1].items()})


def test_another_choice_is_another_experiment(chosen: dict[str, Any]) -> None:
    best = load_config(chosen)
    chosen["run"]["select"] = "last"
    assert load_config(chosen).hash() != best.hash()


def test_without_held_out_labels_there_is_nothing_to_choose_by(values: dict[str, Any]) -> None:
    values["run"]["select"] = "best"
    with pytest.raises(UserError, match=r"run\.select = 'best' .* data\.validation = 0 holds out none"):
        load_config(values)
