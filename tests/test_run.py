"""Recorded runs: what a folder holds, and that whatever stops a run, `--resume` ends as if nothing had happened."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import assert_same, fednoil, refused, tiny_arrays
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from fednoil import runner
from fednoil.config import load_config, read_toml
from fednoil.learners.base import Client, Final, LearnerConfig, Nets, Turn
from fednoil.learners.erm import Erm
from fednoil.manifest import read_manifest
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent
from fednoil.tensors import Tensors

ROUNDS = 4
LISTED = {
    "config.toml",
    "environment.json",
    "noise.parquet",
    "rounds.jsonl",
    "summary.json",
    "confusion.json",
    "model.safetensors",
    "checkpoint/checkpoint.json",
    f"checkpoint/server-{ROUNDS:06d}-0000.safetensors",
}
ROUND_KEYS = {
    "round",
    "test_accuracy",
    "test_loss",
    "local_epochs",
    "train_batches",
    "selected",
    "noise_ratio",
    "bytes_down",
    "bytes_up",
    "wall_s",
}
SUMMARY_KEYS = {
    "final_accuracy",
    "best_accuracy",
    "last10_accuracy",
    "converged",
    "per_class_accuracy",
    "rounds",
    "train_batches",
    "bytes_down",
    "bytes_up",
    "wall_s",
}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def results(folder: Path) -> dict[str, Any]:
    """Everything a run leaves but what may differ: times and the environment."""
    found: dict[str, Any] = snapshot(folder)
    del found["environment.json"]
    found["rounds.jsonl"] = [{k: v for k, v in line.items() if k != "wall_s"} for line in lines(folder)]
    summary = json.loads(found["summary.json"])
    found["summary.json"] = {k: v for k, v in summary.items() if k != "wall_s"}
    return found


@pytest.fixture(scope="module")
def toml(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny experiment as a user's file; a checkpoint after rounds 3 and 4."""
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(
        f"""
        [data]
        name = "npz:{tiny_npz}"
        [partition]
        clients = 4
        [noise]
        kind = "symmetric"
        [model]
        width = 2
        [server]
        client_fraction = 0.5
        [schedule]
        epochs = 1
        [train]
        rounds = {ROUNDS}
        batch_size = 8
        [run]
        device = "cpu"
        checkpoint_every = 3
        """
    )
    return path


@pytest.fixture(scope="module")
def reference(toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that nothing has disturbed."""
    out = tmp_path_factory.mktemp("runs") / "reference"
    assert fednoil("run", toml, "--out", out, "--quiet") == (0, "", "")
    return out


class Stop(Silent):
    """Ctrl-C as soon as `after` rounds are done."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, record: dict[str, Any]) -> None:
        if record["round"] == self.after:
            raise KeyboardInterrupt


@pytest.fixture
def stopped(toml: Path, tmp_path: Path) -> Path:
    """A run stopped after round 3 of 4, which has a checkpoint."""
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        runner.run(load_config(read_toml(toml)), out, Stop(3))
    return out


def resume(out: Path, *more: object) -> None:
    assert fednoil("run", *more, "--resume", "--out", out, "--quiet") == (0, "", "")


def test_folder_holds_what_is_promised_and_no_more(reference: Path) -> None:
    assert set(snapshot(reference)) == LISTED


def test_rounds_have_the_promised_keys_and_hand_worked_values(reference: Path) -> None:
    records = lines(reference)
    assert [r["round"] for r in records] == [1, 2, 3, 4]
    table = pq.read_table(reference / "noise.parquet").to_pydict()
    client, given, true = (np.array(table[k]) for k in ("client", "given", "true"))
    noise = [100 * np.mean(given[client == k] != true[client == k]) for k in range(4)]
    parameters = (25 * 2 + 2) + (2 * 25 * 4 + 4) + (4 * 2 * 2 * 4 + 4)
    for r in records:
        assert r.keys() >= ROUND_KEYS
        assert len(set(r["selected"])) == 2
        assert r["local_epochs"] == 1
        assert r["train_batches"] == r["round"] * 2 * 3  # 2 clients × ⌈20 / 8⌉ batches
        assert r["bytes_down"] == r["bytes_up"] == 2 * (4 * parameters + 2 * 8)
        assert r["noise_ratio"] == pytest.approx(np.mean([noise[k] for k in r["selected"]]))
        assert r["test_accuracy"] in [2.5 * n for n in range(41)]
        assert r["wall_s"] > 0


def test_summary_follows_from_the_rounds(reference: Path) -> None:
    summary, records = json.loads((reference / "summary.json").read_text()), lines(reference)
    accuracies = [r["test_accuracy"] for r in records]
    assert summary.keys() >= SUMMARY_KEYS
    assert summary["final_accuracy"] == accuracies[-1]
    assert summary["best_accuracy"] == max(accuracies)
    assert summary["last10_accuracy"] == pytest.approx(np.mean(accuracies))
    assert np.mean(summary["per_class_accuracy"]) == pytest.approx(accuracies[-1])
    assert len(summary["per_class_accuracy"]) == 4
    assert summary["converged"] is None
    assert (summary["rounds"], summary["train_batches"]) == (4, records[-1]["train_batches"])
    assert summary["bytes_up"] == sum(r["bytes_up"] for r in records)


def test_converged_is_told_from_six_rounds_on(toml: Path, tmp_path: Path) -> None:
    still = ["--set", "train.lr=1e-30", "--set", "train.rounds=6"]
    assert fednoil("run", toml, *still, "--out", tmp_path / "r", "--quiet")[0] == 0
    assert json.loads((tmp_path / "r/summary.json").read_text())["converged"] is True


def test_model_file_tells_all_that_predict_needs(reference: Path) -> None:
    with safe_open(reference / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["fednoil"])
        assert set(file.keys()) == {f"{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias")}
    config = load_config(read_toml(reference / "config.toml"))
    assert about["architecture"] == {"name": "cnn", "width": 2, "norm": None}
    assert about["class_names"] == ["0", "1", "2", "3"]
    assert about["image_shape"] == [1, 8, 8]
    assert len(about["mean"]) == len(about["std"]) == 1
    assert about["config_hash"] == config.hash()
    server = load_file(reference / f"checkpoint/server-{ROUNDS:06d}-0000.safetensors")
    model = load_file(reference / "model.safetensors")
    assert_same({f"model/{k}": v for k, v in model.items()}, server)


LAYERS = ("conv1", "conv2", "head")


def test_noise_manifest_can_be_read_and_has_the_recorded_hash(reference: Path) -> None:
    summary = json.loads((reference / "summary.json").read_text())
    environment = json.loads((reference / "environment.json").read_text())
    assert environment["precision"] == "float32"  # what `auto` is on a CPU
    metadata = pq.read_schema(reference / "noise.parquet").metadata
    assert metadata[b"noise_hash"].decode() == summary["noise_hash"] == environment["noise_hash"]
    assert metadata[b"data_hash"].decode() == summary["data_hash"] == environment["data_hash"]
    parts, labels, truth = read_manifest(reference / "noise.parquet", tiny_arrays()["y_train"], 4, summary["data_hash"])
    assert sorted(np.concatenate(parts)) == list(range(80))
    assert truth.labels is not None
    assert any((g != t).any() for g, t in zip(labels.given, truth.labels, strict=True))


def test_same_seed_is_bit_identical_and_another_is_not(reference: Path, toml: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        assert fednoil("run", toml, "--seed", seed, "--out", tmp_path / name, "--quiet")[0] == 0
    assert results(tmp_path / "same") == results(reference)
    same, other = results(reference), results(tmp_path / "other")
    assert other["noise.parquet"] != same["noise.parquet"]
    assert other["rounds.jsonl"] != same["rounds.jsonl"]
    assert other["model.safetensors"] != same["model.safetensors"]


def test_manifest_of_another_run_gives_its_split_and_labels(reference: Path, toml: Path, tmp_path: Path) -> None:
    noise = ["--set", "noise.kind=manifest", "--set", f"noise.manifest={reference / 'noise.parquet'}"]
    assert fednoil("run", toml, *noise, "--seed", 7, "--out", tmp_path / "r", "--quiet") == (0, "", "")
    assert pq.read_table(tmp_path / "r/noise.parquet").equals(pq.read_table(reference / "noise.parquet"))
    assert [r["selected"] for r in lines(tmp_path / "r")] != [r["selected"] for r in lines(reference)]


def test_what_needs_the_truth_is_absent_without_it(toml: Path, tmp_path: Path) -> None:
    status, out, _ = fednoil("run", toml, "--set", "noise.kind=auto", "--out", tmp_path / "r")
    assert status == 0
    assert "noise of" not in out
    assert all("noise_ratio" not in line for line in lines(tmp_path / "r"))
    assert "noise_ratio" not in (tmp_path / "r/summary.json").read_text()
    assert pq.read_table(tmp_path / "r/noise.parquet").column("true").null_count == 80


def test_resuming_a_finished_run_changes_nothing(reference: Path, toml: Path) -> None:
    before = snapshot(reference)
    resume(reference)
    resume(reference, toml)
    assert snapshot(reference) == before


def test_checkpoint_interval_and_device_may_change_between(reference: Path, stopped: Path) -> None:
    resume(stopped, "--set", "run.checkpoint_every=1", "--device", "auto")
    assert results(stopped)["rounds.jsonl"] == results(reference)["rounds.jsonl"]


def add(name: str, content: str = "") -> Callable[[Path], None]:
    def change(out: Path) -> None:
        with (out / name).open("a") as file:
            file.write(content)

    return change


def cut_newline(out: Path) -> None:
    path = out / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-1])


def forget_checkpoint(out: Path) -> None:
    shutil.rmtree(out / "checkpoint")


def lose(name: str) -> Callable[[Path], None]:
    return lambda out: (out / name).unlink()


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


def test_resume_when_killed_before_the_first_file(reference: Path, toml: Path, tmp_path: Path) -> None:
    add(".lock")(tmp_path)
    add("config.toml.part", "[da")(tmp_path)
    resume(tmp_path, toml)
    assert results(tmp_path) == results(reference)


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
    values["server"] = {"client_fraction": 0.5, "sampling": "score"}
    config = load_config(values)
    runner.run(config, tmp_path / "whole", Silent())
    with pytest.raises(KeyboardInterrupt):
        runner.run(config, tmp_path / "cut", Stop(3))
    resume(tmp_path / "cut")
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_a_damaged_memory_of_a_client_is_told(toml: Path, tmp_path: Path) -> None:
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
import fednoil.runner, fednoil.cli.reporters  # once; each run is a fork of this process, made before any thread
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


def spawn(*command: str, **options: Any) -> subprocess.Popen[str]:
    """Another process, single-threaded, in which Ctrl-C works even if it is ignored here."""
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=options.pop("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.default_int_handler)),
        **options,
    )


def test_kill_9_at_every_write_and_resume_ends_identical(reference: Path, toml: Path, tmp_path: Path) -> None:
    with spawn("-c", DRIVER, str(toml), str(tmp_path)) as driver:
        _, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, err
    expected = results(reference)
    for out in tmp_path.iterdir():
        assert results(out) == expected, out.name
        assert set(snapshot(out)) == LISTED, out.name


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


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (None, 143)])
def test_stopping_saves_the_last_whole_round(
    number: signal.Signals | None, status: int, reference: Path, toml: Path, tmp_path: Path
) -> None:
    """By a signal, or (None) by the end of the process that holds its standard input."""
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
        assert [{k: r[k] for k in ("round", "selected")} for r in whole] == [
            {k: r[k] for k in ("round", "selected")} for r in expected["rounds.jsonl"][: len(whole)]
        ]
        resume(out, toml)
        assert results(out) == expected, moment
    pytest.fail("the run never got through")


def test_a_file_too_large_for_the_system_is_told_and_resumed(reference: Path, toml: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_an_existing_run_is_not_touched_without_a_flag(state: str, toml: Path, stopped: Path) -> None:
    if state == "finished":
        resume(stopped)
    before = snapshot(stopped)
    assert "--resume" in refused("run", toml, "--out", stopped)
    assert snapshot(stopped) == before


def test_force_replaces_the_runs_own_files_only(reference: Path, toml: Path, stopped: Path) -> None:
    own = {"notes.txt": "mine", "checkpoint/notes.txt": "mine", "plots.part": "mine"}
    for name, content in own.items():
        add(name, content)(stopped)
    assert fednoil("run", toml, "--out", stopped, "--seed", 3, "--force", "--quiet")[0] == 0
    found = snapshot(stopped)
    assert set(found) == LISTED | set(own)
    assert all(found[name].decode() == content for name, content in own.items())
    assert fednoil("run", toml, "--out", stopped, "--force", "--quiet")[0] == 0
    assert {k: v for k, v in results(stopped).items() if k in LISTED} == results(reference)


@pytest.mark.parametrize(
    "bad",
    [
        ("--set", "train.lr=-1"),
        ("--set", "data.name=npz:missing.npz"),
        ("--set", "partition.clients=81"),
        ("--set", "model.name=nowhere:at_all"),
        ("--set", "noise.kind=manifest", "--set", "noise.manifest=missing.parquet"),
        ("--device", "tpu"),
    ],
)
def test_force_with_bad_input_deletes_nothing(bad: tuple[str, ...], toml: Path, stopped: Path) -> None:
    before = snapshot(stopped)
    refused("run", toml, "--out", stopped, "--force", *bad)
    assert snapshot(stopped) == before


@pytest.mark.parametrize("flag", ["--resume", "--force", "--quiet"])
@pytest.mark.parametrize(
    "files",
    [
        {"notes.txt": "mine"},
        {"model.safetensors": "mine"},
        {"summary.json": "{}", "rounds.jsonl": ""},
        {"config.toml": "[build]\njobs = 2\n"},
        {"config.toml": "not TOML"},
    ],
)
def test_a_folder_of_somebody_elses_is_refused(flag: str, files: dict[str, str], toml: Path, tmp_path: Path) -> None:
    for name, content in files.items():
        add(name, content)(tmp_path)
    before = snapshot(tmp_path)
    assert str(tmp_path) in refused("run", toml, "--out", tmp_path, flag)
    assert snapshot(tmp_path) == before


def test_another_configuration_is_refused_with_the_keys_that_differ(toml: Path, stopped: Path) -> None:
    before = snapshot(stopped)
    line = refused("run", toml, "--out", stopped, "--resume", "--set", "train.lr=0.125", "--set", "server.name=fedprox")
    assert "train.lr is 0.05 there and 0.125 now" in line
    assert "server.name is 'fedavg' there and 'fedprox' now" in line
    assert "server.mu" in line
    assert "run.checkpoint_every" not in line
    assert snapshot(stopped) == before


def test_other_data_under_the_same_name_is_refused(tmp_path: Path, toml: Path) -> None:
    data, out = tmp_path / "mine.npz", tmp_path / "r"
    arrays = tiny_arrays()
    np.savez(data, allow_pickle=False, **arrays)
    config = load_config({**read_toml(toml), "data": {"name": f"npz:{data}"}})
    with pytest.raises(KeyboardInterrupt):
        runner.run(config, out, Stop(3))
    arrays["x_train"][0, 0, 0] ^= 1
    np.savez(data, allow_pickle=False, **arrays)
    before = snapshot(out)
    assert "data_hash" in refused("run", "--resume", "--out", out)
    assert snapshot(out) == before


def edit_index(**changes: object) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        path = out / "checkpoint/checkpoint.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def overwrite(name: str, content: str | Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        path = out / name
        path.write_bytes(content.encode() if isinstance(content, str) else content(path.read_bytes()))

    return change


SERVER = "checkpoint/server-000003-0000.safetensors"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(overwrite(SERVER, lambda b: b[:-9]), SERVER, id="truncated tensors"),
        pytest.param(overwrite(SERVER, lambda b: b[:-1] + bytes([b[-1] ^ 1])), SERVER, id="one bit flipped"),
        pytest.param(overwrite(SERVER, lambda b: b.replace(b"model/head", b"model/hand")), SERVER, id="renamed tensor"),
        pytest.param(overwrite(SERVER, ""), SERVER, id="empty tensors"),
        pytest.param(lose(SERVER), SERVER, id="missing tensors"),
        pytest.param(overwrite("checkpoint/checkpoint.json", '{"format": 1,'), "checkpoint.json", id="broken JSON"),
        pytest.param(overwrite("checkpoint/checkpoint.json", "[]"), "checkpoint.json", id="other JSON"),
        pytest.param(overwrite("checkpoint/checkpoint.json", "[" * 99999), "checkpoint.json", id="deep JSON"),
        pytest.param(edit_index(format=1), "checkpoint.json", id="another format"),
        pytest.param(edit_index(round="3"), "checkpoint.json", id="round is text"),
        pytest.param(edit_index(round=-1), "checkpoint.json", id="round is negative"),
        pytest.param(edit_index(round=99), "rounds.jsonl", id="round never played"),
        pytest.param(edit_index(server=None), "checkpoint.json", id="no server"),
        pytest.param(edit_index(parts=[1]), "checkpoint.json", id="parts are a list"),
        pytest.param(edit_index(noise_hash="0" * 64), "noise_hash", id="other noise"),
        pytest.param(lose("rounds.jsonl"), "rounds.jsonl", id="no log"),
        pytest.param(overwrite("rounds.jsonl", lambda b: b"{}\n" + b), "rounds.jsonl, line 1", id="damaged line"),
        pytest.param(overwrite("rounds.jsonl", lambda b: b.split(b"\n", 1)[1]), "rounds.jsonl", id="lost line"),
        pytest.param(overwrite("config.toml", "[data"), "config.toml", id="broken config"),
    ],
)
def test_a_damaged_checkpoint_is_told_in_one_line(
    change: Callable[[Path], None], named: str, toml: Path, stopped: Path
) -> None:
    change(stopped)
    before = snapshot(stopped)
    assert named in refused("run", toml, "--resume", "--out", stopped)
    assert snapshot(stopped) == before


def test_the_lock_keeps_others_out_and_leaves_nothing(toml: Path, stopped: Path) -> None:
    before = snapshot(stopped)
    with RunFolder(stopped).locked():
        assert "is being written by another process" in refused("run", "--resume", "--out", stopped)
        assert "is being written by another process" in refused("run", toml, "--force", "--out", stopped)
    assert snapshot(stopped) == before


def test_resume_without_a_run_says_so_and_creates_nothing(tmp_path: Path) -> None:
    assert "no config.toml" in refused("run", "--resume", "--out", tmp_path / "r")
    assert not (tmp_path / "r").exists()
