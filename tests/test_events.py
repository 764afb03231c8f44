"""Loggers, each read back from its own store, and what a finished run says of the clients' given labels."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stopped_runs import Stop

from fednoil.config import load_config, merge
from fednoil.errors import UserError
from fednoil.history import RoundRecord
from fednoil.metrics import agreement
from fednoil.records.folder import RunFolder
from fednoil.records.loggers import LOGGERS, Logger
from fednoil.runner import Silent, run


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads: tag -> (step, value)."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def stopped_and_resumed(values: dict[str, Any], out: Path, log: str) -> list[RoundRecord]:
    """The records of a run that is stopped in round 3 and continues from the last whole one."""
    config = load_config(merge(values, {"run": {"log": log}}))
    with pytest.raises(KeyboardInterrupt):
        run(config, out, Stop(3))
    run(config, out, Silent(), resume=True)
    return RunFolder(out).records()


def test_event_files_hold_every_round_once(values: dict[str, Any], tmp_path: Path) -> None:
    """Also after a run that was stopped: it writes the events of all rounds again."""
    out = tmp_path / "run"
    records = stopped_and_resumed(values, out, "tensorboard")
    found = scalars(out)
    assert found["test_accuracy"] == [(r.round, pytest.approx(r.test_accuracy)) for r in records]
    assert len(found["train_loss"]) == len(records) == 4
    assert "selected" not in found
    run(load_config(values), out, Silent(), force=True)
    assert not (out / "tensorboard").exists()


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning", "ignore::DeprecationWarning")
def test_mlflow_has_every_round_once(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow's local store needs sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    records = stopped_and_resumed(values, tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("fednoil").experiment_id])
    points = client.get_metric_history(found.info.run_id, "test_accuracy")
    assert [(p.step, p.value) for p in points] == [(r.round, pytest.approx(r.test_accuracy)) for r in records]
    assert len(records) == 4
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["train.rounds"] == "4"
    assert "selected" not in found.data.metrics


def kept(folder: Path) -> list[Any]:
    """The records of the one offline run in a folder; the file is a log in blocks of 32 KiB, as LevelDB's."""
    from wandb.proto import wandb_internal_pb2  # pyright: ignore[reportMissingImports]

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, place, found, part = path.read_bytes(), 7, [], b""
    while place < len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(wandb_internal_pb2.Record.FromString(part))
            part = b""
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wandb_has_every_round_once(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, which is how it runs unless WANDB_MODE asks for more."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    out = tmp_path / "run"
    records = stopped_and_resumed(values, out, "wandb")
    found = kept(out)
    rounds = [{i.key or i.nested_key[0]: json.loads(i.value_json) for i in r.history.item} for r in found]
    rounds = [own for own in rounds if own]
    assert [(own["_step"], own["test_accuracy"]) for own in rounds] == [
        (r.round, pytest.approx(r.test_accuracy)) for r in records
    ]
    (begun,) = [r.run for r in found if r.WhichOneof("record_type") == "run"]
    assert (begun.project, begun.display_name) == ("fednoil", "run")
    assert {i.key: json.loads(i.value_json) for i in begun.config.update}["train.rounds"] == "4"
    assert (found[-1].exit.exit_code if found[-1].HasField("exit") else 0) == 0
    run(load_config(values), out, Silent(), force=True)
    assert not (out / "wandb").exists()


MODULES = {"tensorboard": "torch.utils.tensorboard.writer", "mlflow": "mlflow", "wandb": "wandb"}


@pytest.mark.parametrize("name", list(LOGGERS))
def test_without_the_package_one_line_says_what_to_do(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    with pytest.raises(UserError, match=rf"run.log = '{name}' needs .* pip install 'fednoil\[{name}\]'"):
        run(load_config(merge(values, {"run": {"log": name}})), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


class Moody(Logger):
    """Fails in round 2, or at once."""

    at_once = False

    def start(self, done: Sequence[RoundRecord]) -> None:
        if self.at_once:
            raise OSError("no route to host\nmore")

    def round(self, record: RoundRecord) -> None:
        if record.round == 2:
            raise OSError("no route to host\nmore")

    def close(self, *, finished: bool) -> None:
        raise AssertionError("it was left out")


class Listening(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)


def test_a_logger_that_fails_does_not_end_the_run(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOGGERS, "wandb", Moody)
    config, reporter = load_config(merge(values, {"run": {"log": ["wandb"]}})), Listening()
    run(config, tmp_path / "run", reporter)
    assert reporter.said == ["run.log = 'wandb' failed and is left out from here on: no route to host"]
    assert len(RunFolder(tmp_path / "run").records()) == 4
    monkeypatch.setattr(Moody, "at_once", True)
    with pytest.raises(UserError, match=r"run.log = 'wandb' can't be written: no route to host; or leave the key out"):
        run(config, tmp_path / "other", Silent())


def test_the_key_of_earlier_versions() -> None:
    assert load_config({"run": {"tensorboard": True}}).run.log == ("tensorboard",)
    assert load_config({"run": {"tensorboard": False, "log": "mlflow,wandb"}}).run.log == ("mlflow", "wandb")
    with pytest.raises(UserError, match=r"run.log"):
        load_config({"run": {"log": "comet"}})


def test_given_against_predicted_labels_by_hand() -> None:
    """Two clients, three classes: the first agrees in 2 of 3 samples, the second in 1 of 2."""
    given = (np.array([0, 1, 2]), np.array([2, 2]))
    predicted = (np.array([0, 1, 0]), np.array([2, 1]))
    found = agreement(predicted, given, 3)
    assert found["given_predicted"] == [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    assert found["agreement"] == [pytest.approx(66.6667), 50.0]


def test_a_finished_run_records_what_its_model_makes_of_given_labels(values: dict[str, Any], tmp_path: Path) -> None:
    """The tiny data's classes differ in brightness, so a trained model agrees with clean labels."""
    changes = {"noise": {"kind": "none"}, "train": {"rounds": 12}, "model": {"width": 8}}
    run(load_config(merge(values, changes)), tmp_path / "run", Silent())
    found = json.loads((tmp_path / "run/confusion.json").read_text())
    matrix = np.array(found["given_predicted"])
    assert matrix.sum() == 80
    assert matrix.sum(1).tolist() == [20, 20, 20, 20]
    right = 100 * np.trace(matrix) / 80
    assert right == pytest.approx(np.mean(found["agreement"]))  # clients of equal size
    assert right > 60
