"""Folders that a run may not write to: what is refused, and that nothing in them is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import fednoil, refused, resume, tiny_arrays
from stopped_runs import LISTED, Stop, add, lose, results, snapshot

from fednoil import runner
from fednoil.config import load_config, read_toml
from fednoil.records.folder import RunFolder


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
        ("--set", "noise.kind=manifest", "--set", "noise.file=missing.parquet"),
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
    assert f"leave the preset and these keys out to continue: fednoil run --resume --out {stopped}" in line
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
    said = "the data have changed since this run began (data_hash)"
    assert said in refused("run", "--resume", "--out", out)
    assert said in refused("audit", out, "--folds", 2)
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
        pytest.param(edit_index(format=1), "checkpoint.json", id="another version"),
        pytest.param(edit_index(format=3), "checkpoint.json", id="before the default was another"),
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
def test_a_damaged_checkpoint_is_reported_in_one_line(
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
