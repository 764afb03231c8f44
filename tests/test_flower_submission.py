"""A run that Flower has lost sight of is followed by its folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from conftest import fednoil, refused

from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.flower import submission
from fednoil.flower.loopback import Loopback
from fednoil.flower.submission import EndedEarly, follow
from fednoil.history import RoundRecord
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent, run


def record(number: int) -> RoundRecord:
    numbers = {"local_epochs": 1, "train_batches": 1, "selected": [0], "bytes_down": 0, "bytes_up": 0, "wall_s": 2.0}
    return RoundRecord(round=number, test_accuracy=50.0 + number, **numbers)


def played(out: Path, *steps: Callable[[], Any]) -> None:
    """Follow a run whose process does one of these steps between two looks, and then lets go of the folder."""
    out.mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(RunFolder(out).locked())
        left = [*steps, stack.close]
        follow(out, lambda seconds: left.pop(0)())


def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r"
    folder = RunFolder(out)
    played(out, lambda: folder.append_round(record(1)), lambda: folder.append_round(record(2)),
           lambda: (out / "summary.json").write_text("{}"))  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "round 1  accuracy 51.00 %  2.0 s",
        "round 2  accuracy 52.00 %  2.0 s",
        f"finished; results in {out}",
    ]


def test_a_run_that_ends_before_its_time_is_reported(tmp_path: Path) -> None:
    out = tmp_path / "r"
    with pytest.raises(EndedEarly, match=r"has stopped after round 1$"):
        played(out, lambda: RunFolder(out).append_round(record(1)))


def test_going_on_with_a_run_that_is_being_played_follows_it(
    federated: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r"
    run(load_config(federated), out, Silent())
    followed: list[Path] = []
    monkeypatch.setattr(submission, "follow", followed.append)
    with RunFolder(out).locked():
        status, said, _ = fednoil("federation", "run", "--resume", "--out", out)
    assert (status, followed) == (0, [out])
    assert said == f"{out} is already running; following it\n"


def test_a_run_that_has_stopped_says_how_to_continue(
    federated: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r"
    run(load_config(federated), out, Silent())

    def stopped(path: Path) -> None:
        raise EndedEarly("it has stopped after round 3")

    monkeypatch.setattr(submission, "follow", stopped)
    with RunFolder(out).locked():
        status, _, said = fednoil("federation", "run", "--resume", "--out", out)
    assert status == 2
    how = f"fednoil federation run --resume --out {out}"
    assert said == f"fednoil: it has stopped after round 3; continue with: {how}\n"


@pytest.mark.parametrize(
    ("before", "after", "plays"), [(True, True, False), (False, False, False), (False, True, False), (True, True, True)]
)
def test_a_run_that_flower_calls_failed_is_not_taken_for_an_earlier_one(
    before: bool,
    after: bool,
    plays: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A folder that was finished before says nothing about a run that was refused, and one that was finished since
    without a node that trained is no success. Only a run that has played rounds can be continued."""

    class Streaming:
        stdout = (
            "Successfully started run 7\n",
            "\x1b[91mERROR :     Exit Code: 201\n",
            "fednoil: no node came\x1b[0m\n",
            "An unhandled exception occurred in the ServerApp.\n",
            "\n",
            "For more information, visit: <https://flower.ai>\n",
        )

        def __init__(self, *args: object, **kwargs: object) -> None:
            if after:
                (tmp_path / "summary.json").write_text("{}")
            if plays:
                (tmp_path / "rounds.jsonl").write_text("")

        def __enter__(self) -> Streaming:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(submission.subprocess, "Popen", Streaming)
    monkeypatch.setattr(submission, "_status", lambda *args: "finished:failed")
    if before:
        (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=f"^{'the run failed: ' if plays else ''}no node came$") as error:
        submission.flwr_run(tmp_path, "local", None, tmp_path)
    assert isinstance(error.value, EndedEarly) == plays
    assert (tmp_path / "summary.json").exists() == after
    assert capsys.readouterr().out == "Successfully started run 7\n"


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_folder_that_is_being_written_is_refused_before_anything_is_submitted(
    options: list[str], federated: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the command would follow the other run, and end well as if it had started one. A folder with a run, and
    a model that isn't for the nodes' data, are refused as well."""
    monkeypatch.setattr(submission, "flwr_run", lambda *args, **kwargs: pytest.fail("it was submitted"))
    monkeypatch.setattr(Loopback, "processes", [SimpleNamespace(alive=lambda: True)])
    run(load_config(federated), tmp_path / "r", Silent())
    with RunFolder(tmp_path / "r").locked():
        line = refused("federation", "run", "demo", "--out", tmp_path / "r", *options)
    assert "is being written by another process; wait for it, or choose another --out" in line
    command = ("federation", "run", "demo", "--set=data.name=sites", "--federation", tmp_path, "--out")
    assert "/r already exists: add --resume" in refused(*command, tmp_path / "r")
    (tmp_path / "t.csv").write_text("a,label\n1,x\n2,y\n")
    (tmp_path / "home").mkdir()
    nodes = [{"settings": {"data": f"table:{tmp_path}/t.csv"}}]
    (tmp_path / "home" / "nodes.json").write_text(json.dumps(nodes))
    assert "model.name = 'cnn' is for pictures" in refused(*command, tmp_path / "r", "--force")
