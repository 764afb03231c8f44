"""Real federations (`make test-slow`): Flower's simulation engine against ours, processes on loopback with faults."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from conftest import tiny_arrays

from fednoil.config import load_config, to_toml
from fednoil.flower.loopback import SUPERLINK, Loopback, Process
from fednoil.runner import Silent, run
from fednoil.tensors import read_tensors

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
ENGINE = """
import sys
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from fednoil.flower.client import app as client_app
from fednoil.flower.server import Assignment, play

server_app = ServerApp()

@server_app.main()
def main(grid, context):
    play(grid, Assignment(open(sys.argv[1]).read(), sys.argv[2]))

if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, int(sys.argv[3]), backend_config=resources)
"""


def records(out: Path) -> list[dict[str, Any]]:
    path = out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def until(ready: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait for something, on a machine that may be busy."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def test_flowers_simulation_engine_ends_where_ours_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 clients, FedNoiL, three rounds, the same seed, one thread."""
    pytest.importorskip("ray", reason="Flower's simulation engine needs the extra 'simulation'")
    monkeypatch.setenv("HOME", str(tmp_path))  # of the nodes' state
    config = load_config(
        {
            "partition": {"clients": 20},
            "noise": {"kind": "symmetric", "ratios": [0.5, 0.6, 0.7, 0.8]},
            "model": {"name": "cnn", "width": 4},
            "sampling": {"name": "score"},
            "learner": {"name": "fednoil"},
            "schedule": {"epochs": 3},
            "train": {"rounds": 3},
            "run": {"device": "cpu"},
        }
    )
    run(config, tmp_path / "ours", Silent())
    (tmp_path / "config.toml").write_text(to_toml(config))
    (tmp_path / "engine.py").write_text(ENGINE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    arguments = [str(tmp_path / name) for name in ("engine.py", "config.toml", "flowers")]
    command = [sys.executable, *arguments, "20"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for ours, theirs in zip(records(tmp_path / "ours"), records(tmp_path / "flowers"), strict=True):
        assert ours["selected"] == theirs["selected"]
        assert ours["client_scores"] == pytest.approx(theirs["client_scores"], rel=1e-6)
    left, right = (read_tensors(tmp_path / name / "model.safetensors") for name in ("ours", "flowers"))
    for name in left:
        assert torch.allclose(left[name], right[name], rtol=0, atol=1e-6), name


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A folder for a federation; whatever happens, none of its processes is left running."""
    (tmp_path / "faults").mkdir()
    monkeypatch.setenv("FAULTS", str(tmp_path / "faults"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "faults"), prepend=os.pathsep)
    loopback = Loopback(tmp_path / "federation")
    try:
        yield loopback
    finally:
        loopback.down()


def node(federation: Loopback, folder: Path, name: str, number: int) -> str:
    """A site's data, a fifth of the tiny ones, and the settings of its node."""
    arrays = tiny_arrays()
    mine = {key: value[number::5] for key, value in arrays.items()}
    np.savez(folder / f"{name}.npz", class_names=np.array(["a", "b", "c", "d"]), **mine)
    state = federation.folder / "nodes"
    return f'client-id="{name}" data="npz:{folder / name}.npz" state="{state}" trust="faulty:Faulty"'


def start_run(federation: Loopback, out: Path, *more: str) -> subprocess.Popen[str]:
    changes = {
        "data.name": "sites",
        "model.width": 2,
        "sampling.name": "score",
        "sampling.fraction": 1.0,
        "learner.name": "faulty:Faulty",
        "schedule.name": "constant",
        "schedule.epochs": 1,
        "train.rounds": 4,
        "train.batch_size": 4,
        "federation.min_nodes": 3,
        "federation.timeout": 45,
        "federation.evaluate_every": 4,
    }
    sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "fednoil", "federation", "run", "demo/fedavg", *sets]
    command += ["--federation", str(federation.folder), "--out", str(out), *more]
    with (out.parent / f"run{'-'.join(more)}.log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)


def kill(federation: Loopback, name: str) -> Process:
    """kill -9, the process and all that it has started."""
    process = next(p for p in federation.processes if p.name == name)
    os.killpg(process.pid, signal.SIGKILL)
    return process


def test_a_run_outlives_its_nodes_and_its_server(federation: Loopback, tmp_path: Path) -> None:
    """Sites a, b, c; d comes late. In round 2, a is killed while it trains and c is too slow; in round 3, b fails to
    train; in round 4 the SuperLink is killed and started again. A strange key and plaintext are refused all along."""
    out, faults = tmp_path / "run", tmp_path / "faults"
    for name, fault in {"0-2": "wait 200", "2-2": "wait 55", "1-3": "raise", "1-4": "wait 10"}.items():
        (faults / name).write_text(fault)
    configs = {name: node(federation, tmp_path, name, i) for i, name in enumerate("abcd")}
    federation.up({name: configs[name] for name in "abc"})
    run = start_run(federation, out)
    try:
        until(lambda: records(out), 150, "round 1")
        until(lambda: (faults / "0-2.begun").exists(), 150, "a to train in round 2")
        kill(federation, "a")
        federation.add_node("d", configs["d"])
        strangers_and_plaintext_are_refused(federation, node(federation, tmp_path, "stranger", 4))
        until(lambda: (faults / "1-4.begun").exists(), 300, "b to train in round 4")
        kill(federation, SUPERLINK)
        federation.start_superlink()
        if run.wait(timeout=240):  # with the SuperLink went what it had asked; the process ended, and said so
            assert "continue with: fednoil federation run --resume" in (tmp_path / "run.log").read_text()
    finally:
        run.kill()
    assert [r["round"] for r in records(out)][:3] == [1, 2, 3]
    federation.await_nodes(3)
    resume(federation, out)
    played = records(out)
    assert [r["round"] for r in played] == [1, 2, 3, 4]
    one, two, three, four = played
    assert (one["nodes"], one["trained"], one["failed"]) == (["a", "b", "c"], ["a", "b", "c"], {})
    assert set(two["scores"]) == {"a", "b", "c"}
    assert two["failed"]["c"] == "train: no reply within 45 s"
    assert two["failed"]["a"].startswith("train: ")
    assert two["trained"] == ["b"]
    assert "b" in three["scores"]
    assert three["failed"]["b"] == "train: failed at the node with RuntimeError; see its own log"
    assert "b" not in three["trained"]
    # If the server has outlived the SuperLink, what it had asked of one or both may have gone with that.
    assert {"b", "d"} <= {*four["trained"], *four["failed"]}
    if {"b", "d"} <= set(four["trained"]):
        assert four["test_accuracy"] is not None
    else:
        assert bool(four.get("kept")) == (not four["trained"])
    assert not any(r["refused"] for r in played)  # the stranger didn't get as far as to be asked
    assert json.loads((out / "summary.json").read_text())["rounds"] == 4
    made = json.loads((out / "environment.json").read_text())
    assert made["command"][:4] == ["fednoil", "federation", "run", "demo/fedavg"]
    assert made["packages"]["flwr"]
    again = start_run(federation, out)
    assert again.wait(timeout=120) == 2
    said = (tmp_path / "run.log").read_text()
    assert "already exists: add --resume" in said
    assert "Traceback" not in said


def resume(federation: Loopback, out: Path) -> None:
    """Go on with a run. The server's process may have outlived the SuperLink: then the command follows it until it ends
    or is done."""
    end = time.monotonic() + 240
    while True:
        run = start_run(federation, out, "--resume")
        try:
            status = run.wait(timeout=200)
        finally:
            run.kill()
        said = (out.parent / "run--resume.log").read_text()
        if status == 0:
            return
        assert "continue with: fednoil federation run --resume" in said or "nodes came online" in said, said[-3000:]
        assert time.monotonic() < end
        time.sleep(5)


def strangers_and_plaintext_are_refused(federation: Loopback, config: str) -> None:
    """A node with an unregistered key ends by itself; plaintext gets no answer."""
    link = next(p for p in federation.processes if p.name == SUPERLINK)
    stranger = federation.add_node("stranger", config, register=False)
    until(lambda: not stranger.alive(), 60, "the stranger to give up")
    with pytest.raises(OSError, match=r"(?i)disconnected|closed|reset|remote|status|timed out"):
        urllib.request.urlopen(f"http://127.0.0.1:{link.port}/", timeout=10)


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command and program of the numbered parts of docs/federation.md, in order, with one round for two."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    parts = text[text.index("\n## 1. ") : text.index("\n## Over several machines")]
    blocks = re.findall(r"```(python)?\n(.*?)```", parts, re.DOTALL)
    assert [language for language, _ in blocks] == ["", "", "python", ""]
    outputs: dict[str, str] = {}
    try:
        for language, body in blocks:
            if language:
                exec(compile(body, "docs/federation.md", "exec"), {})
                continue
            for line in body.splitlines():
                command = shlex.split(line.replace("train.rounds=2", "train.rounds=1"))
                start = command.index("fednoil")
                command = ["env", *command[:start], sys.executable, "-m", *command[start:]]
                done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
                assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
                outputs[line] = done.stdout
    finally:
        Loopback(tmp_path / "federation").down()
    simulated, federated = (records(tmp_path / "runs" / name)[0] for name in ("simulated", "federated"))
    assert (simulated["test_accuracy"], simulated["selected"]) == (federated["test_accuracy"], federated["selected"])
    assert "2 nodes online" in next(out for line, out in outputs.items() if "status" in line)
    held_out = records(tmp_path / "runs" / "sites")[0]["held_out"]
    sizes = {name: len(np.load(tmp_path / f"{name}.npz")["y_test"]) for name in ("north", "south")}
    assert {name: held["samples"] for name, held in held_out.items()} == sizes
    assert sizes["south"] < sizes["north"] == 100
