"""What stops a run (a signal, a full GPU, a full disk) is reported in one line, and loses no whole round."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fednoil, refused, resume
from stopped_runs import lines, results, snapshot, spawn

from fednoil import runner
from fednoil.cli import main
from fednoil.cli.stopping import Stopped
from fednoil.config import load_config, read_toml
from fednoil.errors import UserError
from fednoil.executors.sequential import Sequential
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent

SLOW = """
import sys, time
from fednoil.cli.main import main
from fednoil.executors.local import Workbench

real = Workbench.update

def slow(*args, **kwargs):
    time.sleep(0.4)
    return real(*args, **kwargs)

Workbench.update = slow
main()
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (None, 143)]
)
def test_stopping_saves_the_last_whole_round(
    number: signal.Signals | None, status: int, reference: Path, toml: Path, tmp_path: Path
) -> None:
    """By a signal, or (None) by the end of the process that holds its standard input."""
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as under nohup")
    out = tmp_path / "r"
    tied = ["--tied"] if number is None else []
    with spawn("-c", SLOW, "run", str(toml), "--out", str(out), "--json", *tied, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert json.loads(process.stdout.readline())["round"] == 1
        for flag in ("--resume", "--force"):
            assert "is being written by another process" in refused("run", toml, flag, "--out", out)
        if number is None:
            process.stdin.close()
            process.stdin = None
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert err.startswith("fednoil: ")
    assert err.count("\n") == 1
    assert "--resume" in err
    index = json.loads((out / "checkpoint/checkpoint.json").read_text())
    assert index["round"] == len(lines(out)) in (1, 2)  # not the round that a regular checkpoint follows
    assert not (out / ".lock").exists()
    resume(out)
    assert results(out) == results(reference)


def test_a_tied_process_leaves_ctrl_c_to_its_parent(toml: Path, tmp_path: Path) -> None:
    """A terminal's Ctrl-C reaches both, and the parent asks with SIGTERM: one stop, not two."""
    out = tmp_path / "r"
    with spawn("-c", SLOW, "run", str(toml), "--out", str(out), "--json", "--tied", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["round"] == 1
        process.send_signal(signal.SIGINT)
        assert json.loads(process.stdout.readline())["round"] == 2
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)  # the terminal is closed: this one reaches both, too
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.startswith("fednoil: stopped; ")
    assert json.loads((out / "checkpoint/checkpoint.json").read_text())["round"] == len(lines(out))


def test_a_parent_that_asks_twice_stops_a_run_once() -> None:
    """It sends SIGTERM, and its end closes standard input, which is SIGTERM again."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, main._on_signal)
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_full_gpu_is_reported_with_what_to_lower_and_resumed(
    reference: Path, toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the third round; the second, the last whole one, is kept."""
    train, turns = Sequential.train, []

    def full(executor: Sequential, *args: Any) -> Any:
        turns.append(args)
        if len(turns) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation.")
        return train(executor, *args)

    config, out = load_config(read_toml(toml)), tmp_path / "full"
    with monkeypatch.context() as patch:
        patch.setattr(Sequential, "train", full)
        with pytest.raises(
            UserError, match=r"memory is full \(CUDA out of memory.*GiB\.\); lower run.parallel.* 32 at"
        ):
            runner.run(config, out, Silent())
    assert len(lines(out)) == 2
    resume(out, "--set", "run.parallel=1")
    assert results(out)["rounds.jsonl"] == results(reference)["rounds.jsonl"]


@pytest.mark.parametrize("stage", ["fednoil.runner.make_executor", "fednoil.records.store.predicted_labels"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation."),
        torch.OutOfMemoryError(
            "Allocation on device 0 would exceed allowed memory. (out of memory)\nRequested: 2.00 GiB"
        ),
        RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["allocator", "asynchronous allocator", "CUDA", "library"],
)
def test_a_gpu_that_is_full_before_or_after_the_rounds_is_reported_too(
    reference: Path, toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, error: RuntimeError
) -> None:
    """Where the data, networks and streams are put there, and where the last model looks at all samples."""
    out = tmp_path / "full"
    with monkeypatch.context() as patch:
        patch.setattr(stage, lambda *_: (_ for _ in ()).throw(error))
        line = refused("run", toml, "--out", out, "--quiet")
    assert f"memory is full ({str(error).splitlines()[0]}); lower run.parallel" in line
    assert all(word in line for word in ("32 at most", "--device cpu", "--resume", "train.batch_size"))
    assert not (out / ".lock").exists()
    resume(out, "--set", "run.parallel=1")
    assert results(out)["rounds.jsonl"] == results(reference)["rounds.jsonl"]


def test_another_error_of_a_gpu_is_no_matter_of_memory(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(runner, "make_executor", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        runner.run(load_config(read_toml(toml)), tmp_path / "r", Silent())


def test_a_run_that_ends_leaves_a_gpu_no_work(toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it ends; and a GPU that has failed doesn't hide why."""
    asked: list[str] = []

    def failed(device: torch.device) -> None:
        asked.append(str(device))
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(torch.cuda, "synchronize", failed)
    runner._settle(torch.device("cuda"))
    runner._settle(torch.device("cpu"))
    assert asked == ["cuda"]
    monkeypatch.setattr(runner, "_settle", lambda device: asked.append(str(device)))
    monkeypatch.setattr("fednoil.rounds.play", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        runner.run(load_config(read_toml(toml)), tmp_path / "r", runner.Silent())
    monkeypatch.setattr(runner, "make_executor", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        runner.run(load_config(read_toml(toml)), tmp_path / "s", runner.Silent())
    assert asked == ["cuda", "cpu", "cpu"]


@pytest.mark.parametrize("stays_full", [True, False])
def test_a_disk_full_at_any_write_loses_nothing(stays_full: bool, reference: Path, toml: Path, tmp_path: Path) -> None:
    real, expected = os.fsync, results(reference)
    for moment in range(1, 99):
        out, count = tmp_path / str(moment), 0

        def full(fd: int, moment: int = moment) -> None:
            nonlocal count
            count += 1
            if count == moment or (stays_full and count > moment):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(fd)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full)
            status, _, err = fednoil("run", toml, "--out", out, "--quiet")
        if status == 0:  # only syncing a folder may fail unseen
            assert results(out) == expected
            if count < moment:
                assert moment > 12
                return
            continue
        assert status == 2
        assert err.count("\n") == 1
        assert "No space left on device" in err
        assert str(out) in err
        whole = RunFolder(out).records()
        assert [(r.round, r.selected) for r in whole] == [
            (r["round"], r["selected"]) for r in expected["rounds.jsonl"][: len(whole)]
        ]
        resume(out, toml)
        assert results(out) == expected, moment
    pytest.fail("the run never got through")


def test_a_file_too_large_for_the_system_is_reported_and_resumed(reference: Path, toml: Path, tmp_path: Path) -> None:
    """A real refusal by the system: the model file is larger than the process may write."""
    limit = (reference / "model.safetensors").stat().st_size - 1
    assert all(len(content) < limit for name, content in snapshot(reference).items() if name != "model.safetensors")

    def no_larger() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = ("-m", "fednoil", "run", str(toml), "--out", str(tmp_path / "r"), "--quiet")
    with spawn(*command, preexec_fn=no_larger) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == f"fednoil: {tmp_path}/r/model.safetensors: File too large\n"
    assert not (tmp_path / "r/model.safetensors").exists()
    resume(tmp_path / "r")
    assert results(tmp_path / "r") == results(reference)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM])
def test_a_signal_waits_until_a_round_is_recorded(number: signal.Signals) -> None:
    class Called(Exception):
        pass

    def call(*_: object) -> None:
        raise Called

    recorded: list[str] = []

    def record() -> None:
        with runner.uninterrupted():
            signal.raise_signal(number)
            recorded.append("whole")

    before = signal.signal(number, call)
    try:
        with pytest.raises(Called):
            record()
        assert signal.getsignal(number) is call
    finally:
        signal.signal(number, before)
    assert recorded == ["whole"]


def test_an_ignored_signal_takes_no_other_ones_place() -> None:
    """A tied process ignores Ctrl-C; one that comes while a round is recorded must not hide the SIGTERM behind it."""

    class Called(Exception):
        pass

    def call(*_: object) -> None:
        raise Called

    def record() -> None:
        with runner.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, call)
    try:
        with pytest.raises(Called):
            record()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
