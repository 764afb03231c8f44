"""A checkpoint writes what changed since the last one and nothing else."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same
from stopped_runs import Stop

from fednoil import rounds, runner
from fednoil.config import load_config
from fednoil.experiment import make_executor, make_experiment
from fednoil.records import checkpoint, store
from fednoil.records.checkpoint import Checkpoints
from fednoil.rounds import RunState
from fednoil.runner import Silent, Simulation, run
from fednoil.servers.base import ServerState
from fednoil.tensors import Tensors, message_bytes

HEADER = 2000  # bytes of names in the tiny experiment's files, at most


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes of every file that a checkpoint writes, by name, since the test last cleared it."""
    sizes: dict[str, int] = {}
    real = checkpoint.write_bytes

    def count(path: Path, content: bytes) -> None:
        sizes[path.name] = len(content)
        real(path, content)

    monkeypatch.setattr(checkpoint, "write_bytes", count)
    return sizes


def parts(folder: Path) -> dict[str, str]:
    index = json.loads((folder / "checkpoint.json").read_text())
    return {name: entry["file"] for name, entry in index["parts"].items()}


def states(values: dict[str, Any], count: int) -> list[tuple[RunState, dict[str, Any]]]:
    experiment = make_experiment(load_config(values))
    executor, state, played = make_executor(experiment, torch.device("cpu")), rounds.start(experiment), []
    for _ in range(count):
        state, record = rounds.play(experiment, executor, state)
        played.append((state, record))
    return played


def test_personal_models_are_written_for_the_clients_that_trained(
    values: dict[str, Any], written: dict[str, int], tmp_path: Path
) -> None:
    values["server"] = {"name": "apfl"}  # one of four clients a round
    values["sampling"] = {"fraction": 0.25}
    checkpoints = Checkpoints(tmp_path, {})
    for state, record in states(values, 6):
        written.clear()
        checkpoints.save(state)
        (trained,) = record.selected
        clients = [name for name in written if name.startswith("client-")]
        assert clients == [parts(tmp_path)[f"client/{trained}"]]
        changed = message_bytes(state.keep[trained], {}) + message_bytes(state.server.tensors, {})
        assert sum(written.values()) <= changed + 2 * HEADER
    assert len(state.keep) > 1
    assert {p.name for p in tmp_path.glob("*.safetensors")} == set(parts(tmp_path).values())


def test_cfl_writes_the_updates_and_clusters_that_changed(
    values: dict[str, Any], written: dict[str, int], tmp_path: Path
) -> None:
    values["server"] = {"name": "fednoil.testing.splitting:Splitting"}
    values["sampling"] = {"fraction": 0.25}
    checkpoints, everything, before, splits = Checkpoints(tmp_path, {}), [], {}, 0
    for state, record in states(values, 8):
        written.clear()
        checkpoints.save(state)
        now = parts(tmp_path)
        (trained,) = record.selected
        if len(state.server.values["splits"]) == splits and before:
            cluster = next(c for c, members in enumerate(record.extra["clusters"]) if trained in members)
            expected = {f"server/update {trained}", f"server/cluster {cluster}"}
            assert {name for name in now if now[name] != before.get(name)} == expected
            assert set(written) == {now[name] for name in expected}
        before, splits = now, len(state.server.values["splits"])
        everything.append((sum(written.values()), message_bytes(state.server.tensors, {})))
        assert_same(Checkpoints(tmp_path, {}).load().server.tensors, state.server.tensors)
    assert splits > 0
    assert everything[-1][0] < 0.7 * everything[-1][1]  # of what the whole state is


def test_after_a_load_nothing_is_written_twice(values: dict[str, Any], written: dict[str, int], tmp_path: Path) -> None:
    values["server"] = {"name": "apfl"}
    values["sampling"] = {"fraction": 0.5}
    state, _ = states(values, 2)[-1]
    Checkpoints(tmp_path, {}).save(state)
    again = Checkpoints(tmp_path, {})
    state = again.load()
    written.clear()
    again.save(state)
    assert written == {}
    moved = RunState(  # as after a move to a device: the same numbers in other tensors
        state.round_idx,
        ServerState({n: t.clone() for n, t in state.server.tensors.items()}, state.server.values),
        {k: {n: t.clone() for n, t in kept.items()} for k, kept in state.keep.items()},
        state.train_batches,
    )
    again.save(moved)
    assert written == {}


def test_a_tensor_changed_in_place_is_written(written: dict[str, int], tmp_path: Path) -> None:
    """A user's server should return new tensors; one that doesn't must not lose what it changed."""
    checkpoints, tensors = Checkpoints(tmp_path, {}), {"a/w": torch.zeros(3), "b/w": torch.zeros(3)}
    checkpoints.save(RunState(1, ServerState(tensors)))
    tensors["a/w"] += 1
    written.clear()
    checkpoints.save(RunState(2, ServerState(tensors)))
    assert list(written) == [parts(tmp_path)["server/a"]]
    assert_same(Checkpoints(tmp_path, {}).load().server.tensors, tensors)


def test_saving_holds_no_tensors(tmp_path: Path) -> None:
    """Old models must go when the run lets them go: a hundred of them are gigabytes."""
    import gc
    import weakref

    checkpoints, tensors = Checkpoints(tmp_path, {}), {"a/w": torch.zeros(3)}
    alive = weakref.ref(tensors["a/w"])
    checkpoints.save(RunState(1, ServerState(tensors)))
    del tensors
    gc.collect()
    assert alive() is None


def test_behind_the_run_the_state_of_the_moment_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread writes later; what the run changes meanwhile is of the next checkpoint."""
    go, plain = threading.Event(), checkpoint.tensor_bytes

    def slow(tensors: Tensors) -> bytes:
        assert go.wait(10)
        return plain(tensors)

    monkeypatch.setattr(checkpoint, "tensor_bytes", slow)
    checkpoints = Checkpoints(tmp_path, {}, behind=True)
    tensors, values = {"a/w": torch.zeros(3)}, {"splits": [1]}
    checkpoints.save(RunState(1, ServerState(tensors, values)))
    assert not checkpoints.exists()
    tensors["a/w"] += 1
    values["splits"].append(2)
    go.set()
    checkpoints.wait()
    state = Checkpoints(tmp_path, {}).load()
    assert state.server.tensors["a/w"].tolist() == [0, 0, 0]
    assert state.server.values == {"splits": [1]}
    checkpoints.save(RunState(2, ServerState(tensors, values)))
    checkpoints.wait()
    assert Checkpoints(tmp_path, {}).load().server.tensors["a/w"].tolist() == [1, 1, 1]


def test_behind_the_run_an_error_is_reported_at_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    checkpoints, state = Checkpoints(tmp_path, {}, behind=True), RunState(1, ServerState({"a/w": torch.zeros(3)}))
    checkpoints.save(state)
    checkpoints.wait()
    monkeypatch.setattr(checkpoint, "write_bytes", full)
    checkpoints.save(RunState(2, ServerState({"a/w": torch.ones(3)})))
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(state)
    assert Checkpoints(tmp_path, {}).load().round_idx == 1


def test_a_run_that_saves_behind_resumes_as_one_that_does_not(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values["run"]["checkpoint_every"] = 2
    config = load_config(values)
    wanted = run(config, tmp_path / "plain", Silent())
    monkeypatch.setattr(
        store, "Checkpoints", lambda folder, hashes, behind: Checkpoints(folder, hashes, behind=not behind)
    )

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "behind", Stop(2))
    got = run(config, tmp_path / "behind", Silent(), resume=True)
    assert {k: v for k, v in got.items() if "wall" not in k} == {k: v for k, v in wanted.items() if "wall" not in k}


@pytest.mark.parametrize("stopped", [True, False])
def test_what_failed_behind_the_run_is_tried_again_at_its_end(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """A disk that was full for a moment costs no round: neither one that is stopped later nor the last one."""
    values["train"]["rounds"], values["run"]["checkpoint_every"] = 4, 2 if stopped else 4
    real, failures = checkpoint.write_bytes, [OSError(28, "No space left on device")]

    def full_once(path: Path, content: bytes) -> None:
        if failures:
            raise failures.pop()
        real(path, content)

    monkeypatch.setattr(checkpoint, "write_bytes", full_once)
    monkeypatch.setattr(
        store, "Checkpoints", lambda folder, hashes, behind: Checkpoints(folder, hashes, behind=not behind)
    )
    with pytest.raises(KeyboardInterrupt if stopped else OSError):
        run(load_config(values), tmp_path / "run", Stop(3) if stopped else Silent())
    index = json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())
    assert index["round"] == (3 if stopped else 4)


@pytest.mark.parametrize("simulated", [True, False])
def test_only_a_simulation_saves_behind_the_run(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: bool
) -> None:
    """Nodes of a federation delete what the checkpoint of the previous round can no longer need."""
    asked: list[bool] = []

    def noted(folder: Path, hashes: dict[str, str], behind: bool) -> Checkpoints:
        asked.append(behind)
        raise KeyboardInterrupt  # before anything is done on the device, which there may be none of

    class Elsewhere:
        experiment = Simulation().experiment

    monkeypatch.setattr(store, "Checkpoints", noted)
    monkeypatch.setattr(runner, "pick_device", lambda name: torch.device("cuda"))
    engine: Any = Simulation() if simulated else Elsewhere()
    with pytest.raises(KeyboardInterrupt):
        run(load_config(values), tmp_path / "run", Silent(), engine=engine)
    assert asked == [simulated]
