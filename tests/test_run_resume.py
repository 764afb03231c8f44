"""A run that is resumed ends as if nothing had happened, whatever a kill has left of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import fednoil, refused, resume
from stopped_runs import LISTED, Stop, add, lose, results, snapshot, spawn
from torch import Tensor

from fednoil import runner
from fednoil.config import load_config, read_toml
from fednoil.learners.base import Client, Final, LearnerConfig, Nets, Turn
from fednoil.learners.erm import Erm
from fednoil.runner import Silent
from fednoil.tensors import Tensors


def test_resuming_a_finished_run_changes_nothing(reference: Path, toml: Path) -> None:
    before = snapshot(reference)
    resume(reference)
    resume(reference, toml)
    assert snapshot(reference) == before


def test_checkpoint_interval_and_device_may_change_between(reference: Path, stopped: Path) -> None:
    resume(stopped, "--set", "run.checkpoint_every=1", "--device", "auto")
    assert results(stopped)["rounds.jsonl"] == results(reference)["rounds.jsonl"]


def cut_newline(out: Path) -> None:
    path = out / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-1])


def forget_checkpoint(out: Path) -> None:
    shutil.rmtree(out / "checkpoint")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda out: None, id="stopped cleanly"),
        pytest.param(add("rounds.jsonl", '{"round": 4, "test_acc'), id="cut last line"),
        pytest.param(add("rounds.jsonl", '{"round": 4, "test_accuracy": 99.0}\n'), id="line after the checkpoint"),
        pytest.param(add("rounds.jsonl", "\0\0\0\0"), id="zeros at the end"),
        pytest.param(add("rounds.jsonl", '\0\0\0\0\n{"round": 5}\n'), id="a hole after the checkpoint"),
        pytest.param(cut_newline, id="last line without its end"),
        pytest.param(add("rounds.jsonl.part", "x"), id="half a log"),
        pytest.param(add("model.safetensors.part", "x"), id="half a model"),
        pytest.param(add("noise.parquet.part", "x"), id="half a manifest"),
        pytest.param(add("checkpoint/server-000004-0000.safetensors.part", "x"), id="half a checkpoint"),
        pytest.param(add("checkpoint/server-000004-0000.safetensors", "x"), id="next checkpoint without its index"),
        pytest.param(add("checkpoint/server-000001-0000.safetensors", "x"), id="old checkpoint not yet removed"),
        pytest.param(add(".lock"), id="lock of a killed process"),
        pytest.param(forget_checkpoint, id="killed before the first checkpoint"),
        pytest.param(lose("environment.json"), id="environment lost"),
        pytest.param(lose("noise.parquet"), id="manifest lost"),
    ],
)
def test_resume_from_what_a_killed_run_leaves(change: Callable[[Path], None], reference: Path, stopped: Path) -> None:
    change(stopped)
    resume(stopped)
    assert results(stopped) == results(reference)
    assert set(snapshot(stopped)) == LISTED


def test_a_run_without_a_checkpoint_says_that_it_begins_anew(stopped: Path) -> None:
    forget_checkpoint(stopped)
    notice = f"{stopped} has no checkpoint yet (run.checkpoint_every): starting again at round 1"
    status, out, err = fednoil("run", "--resume", "--out", stopped)
    assert (status, out.splitlines()[0], err) == (0, notice, "")
    assert notice not in fednoil("run", "--resume", "--out", stopped)[1]


def test_a_run_of_an_earlier_version_is_not_resumed(stopped: Path, toml: Path) -> None:
    config = stopped / "config.toml"
    config.write_text(config.read_text().replace("[server]\n", "[server]\nstep = 1.0\n"))
    before = snapshot(stopped)
    for source in ((), (toml,)):
        assert "is a run of an earlier version" in refused("run", *source, "--resume", "--out", stopped)
    assert "is a run of an earlier version" in refused("audit", stopped)
    assert snapshot(stopped) == before


def test_a_checkpoint_of_a_version_with_other_keys_is_not_resumed(stopped: Path) -> None:
    """Its config.toml may say nothing of it: a key that was added since has its default there."""
    index = stopped / "checkpoint" / "checkpoint.json"
    values = json.loads(index.read_text())
    index.write_text(json.dumps(values | {"config_hash": "0" * 64}))
    before = snapshot(stopped)
    for command in (("run", "--resume", "--out", stopped), ("audit", stopped)):
        assert "an earlier version of fednoil made the run, or config.toml was edited since" in refused(*command)
    assert snapshot(stopped) == before
    assert fednoil("report", stopped)[0] == 0


class RememberingConfig(LearnerConfig):
    augment: str = "none"


class Remembering(Erm):
    """Cross-entropy that weighs more with each turn a client has had, which only the client knows."""

    Config = RememberingConfig

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"turns": keep.get("turns", torch.zeros(())) + 1}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return state["turns"] * super().step(nets, pool, batch, state, kind)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(keep={"turns": state["turns"]})


@pytest.mark.parametrize("learner", [f"{__name__}:Remembering", "fednoil"])
def test_resume_of_learners_that_remember_or_sample(learner: str, toml: Path, tmp_path: Path) -> None:
    values = {**read_toml(toml), "learner": {"name": learner}}
    values["sampling"] = {"name": "score", "fraction": 0.5}
    config = load_config(values)
    runner.run(config, tmp_path / "whole", Silent())
    with pytest.raises(KeyboardInterrupt):
        runner.run(config, tmp_path / "cut", Stop(3))
    resume(tmp_path / "cut")
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_a_damaged_memory_of_a_client_is_reported(toml: Path, tmp_path: Path) -> None:
    config = load_config({**read_toml(toml), "learner": {"name": f"{__name__}:Remembering"}})
    with pytest.raises(KeyboardInterrupt):
        runner.run(config, tmp_path, Stop(3))
    memory = next((tmp_path / "checkpoint").glob("client-*.safetensors"))
    memory.write_bytes(memory.read_bytes()[:-1] + b"!")
    assert memory.name in refused("run", "--resume", "--out", tmp_path)


def test_resumptions_are_noted(stopped: Path) -> None:
    resume(stopped)
    (note,) = json.loads((stopped / "environment.json").read_text())["resumed"]
    assert (note["after_round"], note["precision"]) == (3, "float32")


def test_records_are_on_disk_before_the_checkpoint_that_needs_them(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flushed are the first files, then again and again the lines, the checkpoint's parts, its index; never one line
    for itself."""
    real, flushed = os.fsync, []

    def noted(number: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{number}").readlink().name.split("-")[0].removesuffix(".part"))
        real(number)

    monkeypatch.setattr(os, "fsync", noted)
    assert fednoil("run", toml, "--out", tmp_path / "r", "--quiet")[0] == 0
    order = [name for name in flushed if name in ("rounds.jsonl", "checkpoint.json")]
    assert order == ["rounds.jsonl", "checkpoint.json"] * 2  # of four rounds, two with a checkpoint


DRIVER = """
import os, signal, stat, sys
import fednoil.runner, fednoil.reporters  # once; each run is a fork of this process, made before any thread
from fednoil.cli import main

def run(args, moment):
    if os.fork():
        return os.waitstatus_to_exitcode(os.wait()[1])
    count = 0

    def watch(name):
        real = getattr(os, name)

        def watched(*args, **kwargs):
            nonlocal count
            count += 1
            if count == moment:
                if name == "fsync" and stat.S_ISREG(os.fstat(args[0]).st_mode):
                    os.ftruncate(args[0], os.fstat(args[0]).st_size - 7)  # what was not flushed may be lost
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, watched)

    watch("fsync")
    watch("replace")
    sys.argv = ["fednoil", "run", "--quiet", *args]
    os._exit(main._run_app())

toml, base = sys.argv[1:]
moment, status = 0, -9
while status == -9:  # kill the run at its first write, its second, …, until it has no more
    moment += 1
    out = f"{base}/{moment}"
    status = run([toml, "--out", out], moment)
    if status == -9:
        assert run([toml, "--resume", "--out", out], 0) == 0, moment
assert status == 0, status
assert moment > 20, moment
out = f"{base}/again and again"
for moment in (15, 6, 3, 2, 1):
    assert run([toml, "--resume", "--out", out], moment) == -9, moment
assert run(["--resume", "--out", out], 0) == 0
"""


def test_kill_9_at_every_write_and_resume_ends_identical(reference: Path, toml: Path, tmp_path: Path) -> None:
    with spawn("-c", DRIVER, str(toml), str(tmp_path)) as driver:
        _, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, err
    expected = results(reference)
    for out in tmp_path.iterdir():
        assert results(out) == expected, out.name
        assert set(snapshot(out)) == LISTED, out.name
