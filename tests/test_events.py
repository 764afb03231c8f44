"""TensorBoard's event files, and what a finished run says of the clients' given labels."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fednoil.config import load_config, merge
from fednoil.errors import UserError
from fednoil.history import RoundRecord
from fednoil.metrics import agreement
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent, run


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads: tag -> (step, value)."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_event_files_hold_every_round_once(values: dict[str, Any], tmp_path: Path) -> None:
    """Also after a run that was stopped: it continues from round 2 and writes the events of all rounds again."""
    out = tmp_path / "run"
    config = load_config(merge(values, {"run": {"tensorboard": True}}))

    class StopAfterThree(Silent):
        def round(self, record: RoundRecord) -> None:
            if record.round == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, out, StopAfterThree())
    run(config, out, Silent(), resume=True)
    records = RunFolder(out).records()
    found = scalars(out)
    assert found["test_accuracy"] == [(r.round, pytest.approx(r.test_accuracy)) for r in records]
    assert len(found["train_loss"]) == len(records) == 4
    assert "selected" not in found
    run(load_config(values), out, Silent(), force=True)
    assert not (out / "tensorboard").exists()


def test_without_the_package_one_line_says_what_to_do(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(UserError, match="pip install 'fednoil\\[tensorboard\\]'"):
        run(load_config(merge(values, {"run": {"tensorboard": True}})), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


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
