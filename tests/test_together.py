"""Runs that advance together: each is the run it would be alone, and none depends on the others."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fednoil
from stopped_runs import LISTED, lines, results
from torch import Tensor

from fednoil.batch import together
from fednoil.batch.cell import Cell
from fednoil.batch.together import run_cells, run_together, waves
from fednoil.batch.workers import Outcome
from fednoil.cli.stopping import Stopped
from fednoil.config import load_config
from fednoil.errors import Slower
from fednoil.executors.cuda import CudaGraphs
from fednoil.executors.joint import Joint
from fednoil.history import RoundRecord
from fednoil.learners.base import Client, Nets, Turn
from fednoil.learners.erm import Erm
from fednoil.runner import Silent, run
from fednoil.tensors import Tensors

SEEDS = (3, 1, 2)


class Seen:
    """A view that remembers, and may act when a round is over."""

    def __init__(self, act: Any = None) -> None:
        self.rounds: list[tuple[str, int]] = []
        self.outcomes: dict[str, str] = {}
        self.act = act

    def started(self, cell: Cell) -> None:
        pass

    def round(self, cell: Cell, record: RoundRecord) -> None:
        self.rounds.append((cell.folder, record.round))
        if self.act:
            self.act(cell, record)

    def ended(self, outcome: Outcome) -> None:
        self.outcomes[outcome.cell.folder] = outcome.reason


def cell(values: dict[str, Any], seed: int) -> Cell:
    values["run"] = {**values["run"], "seed": seed}
    return Cell(load_config(values), f"seed {seed}", f"seed-{seed}", f"seed {seed}")


def cells_of(values: dict[str, Any], seeds: Sequence[int] = SEEDS) -> list[Cell]:
    return [cell(values, seed) for seed in seeds]


@pytest.fixture
def stacked_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients the stack was asked to train at once, call by call."""
    sizes, train = [], CudaGraphs.train

    def noted(executor: CudaGraphs, jobs: Any, progress: Any = None) -> Any:
        sizes.append(len(jobs))
        return train(executor, jobs, progress)

    monkeypatch.setattr(CudaGraphs, "train", noted)
    return sizes


def same(got: Any, wanted: Any, where: str = "") -> None:
    """Equal but for rounding and time, however deep."""
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys(), where
        for name in wanted.keys() - {"wall_s"}:
            same(got[name], wanted[name], f"{where}.{name}")
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), where
        for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
            same(one, other, f"{where}[{place}]")
    elif isinstance(wanted, float):
        assert got == pytest.approx(wanted, rel=1e-4, abs=1e-5), where
    else:
        assert got == wanted, where


def alike(got: Path, wanted: Path) -> None:
    """The same records but for rounding and time, and the same files."""
    same(lines(got), lines(wanted))
    files = [{str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} for folder in (got, wanted)]
    assert files[0] == files[1]
    for name in ("summary.json", "measures.json", "confusion.json"):
        same(*(json.loads((folder / name).read_text()) for folder in (got, wanted)), name)


CASES: dict[str, dict[str, Any]] = {
    "erm": {},
    "fednoil": {"learner": {"name": "fednoil", "frac": [0.3, 0.5], "xi": 0.3}, "sampling": {"name": "score"}},
    "non-iid": {"partition": {"kind": "dirichlet", "clients": 4, "min_size": 8}, "learner": {"name": "fednoil"}},
    "fednoil-plus": {
        "learner": {"name": "fednoil-plus"},
        "schedule": {"name": "network"},
        "server": {"name": "fedavg", "average": 0.5},
        "data": {"validation": 0.2},
        "run": {"select": "best"},
    },
    "kept": {"server": {"name": "apfl"}},
    "reviews": {"server": {"name": "fedcorr"}},
}


@pytest.mark.parametrize("case", CASES)
def test_each_run_is_what_it_would_be_alone(
    values: dict[str, Any], tmp_path: Path, case: str, stacked_sizes: list[int]
) -> None:
    """The reference is client after client, in a run of its own."""
    for section, keys in CASES[case].items():
        values[section] = {**(values[section] if section in ("data", "run", "sampling") else {}), **keys}
    cells, seen = cells_of(values), Seen()
    outcomes = run_together(cells, tmp_path / "together", None, seen)
    assert [(outcome.cell.config.run.seed, outcome.reason) for outcome in outcomes] == [(s, "") for s in SEEDS]
    assert max(stacked_sizes) == (3 if case == "reviews" else 6)  # clients of three runs, one or two of each
    for one in cells:
        run(one.config, tmp_path / "alone" / one.folder, Silent())
        alike(tmp_path / "together" / one.folder, tmp_path / "alone" / one.folder)
    first = lines(tmp_path / "together/seed-1"), lines(tmp_path / "together/seed-2")
    assert first[0][-1]["test_loss"] != first[1][-1]["test_loss"]
    made = json.loads((tmp_path / "together/seed-1/environment.json").read_text())
    assert made["runs_at_once"] == 3


def test_a_run_that_was_stopped_goes_on_beside_others_or_alone(
    values: dict[str, Any], tmp_path: Path, stacked_sizes: list[int]
) -> None:
    """One is two rounds ahead: it waits until the other has caught up."""
    cells = cells_of(values, (0, 1))
    ahead, behind = cells

    def stop(cell: Cell, record: RoundRecord) -> None:
        if cell is ahead and record.round == 2:
            raise Stopped(signal.SIGINT)

    with pytest.raises(Stopped):
        run(ahead.config, tmp_path / ahead.folder, together.Watcher(ahead, Seen(stop)))
    seen = Seen()
    run_together(cells, tmp_path, None, seen)
    assert stacked_sizes == [2, 2, 4, 4]
    assert seen.rounds == [
        (ahead.folder, 2),
        *((behind.folder, 1), (behind.folder, 2)),
        *((c.folder, r) for r in (3, 4) for c in cells),
    ]
    for one in cells:
        run(one.config, tmp_path / "alone" / one.folder, Silent())
        alike(tmp_path / one.folder, tmp_path / "alone" / one.folder)


@pytest.mark.parametrize("moment", ["between rounds", "in training"])
def test_ctrl_c_stops_all_and_each_can_be_resumed_alone(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A real signal, in round 3 of 4; checkpoints are due every second round, and all have the last whole one."""
    cells, train, calls = cells_of(values), Joint.train, []

    def strike(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    def third(joint: Joint, asked: Any) -> Any:
        calls.append(len(asked))
        if len(calls) == 3:
            strike()
        return train(joint, asked)

    def now(cell: Cell, record: RoundRecord) -> None:
        if cell is cells[1] and record.round == 3:
            signal.pthread_kill(main, signal.SIGTERM)

    def stopped(number: int, _: Any) -> None:
        raise Stopped(number)

    main = threading.get_ident()
    if moment == "in training":
        monkeypatch.setattr(Joint, "train", third)
    before = signal.signal(signal.SIGTERM, stopped)
    try:
        with pytest.raises(Stopped):
            run_together(cells, tmp_path / "r", None, Seen(now if moment == "between rounds" else None))
    finally:
        signal.signal(signal.SIGTERM, before)
    done = [len(lines(tmp_path / "r" / one.folder)) for one in cells]
    assert done == ([2, 2, 2] if moment == "in training" else [3, 3, 2])
    for one, count in zip(cells, done, strict=True):
        folder = tmp_path / "r" / one.folder
        assert json.loads((folder / "checkpoint/checkpoint.json").read_text())["round"] == count
        assert not (folder / ".lock").exists()
        run(one.config, folder, Silent(), resume=True)
        run(one.config, tmp_path / "alone" / one.folder, Silent())
        alike(folder, tmp_path / "alone" / one.folder)
        assert set(results(folder)) == LISTED - {"environment.json"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("seed-")]


class Falls(Erm):
    """Diverges in round 2 of the run with seed 1, which shows in its turns alone."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        bad = turn.seed.root == 1 and turn.round_idx == 2
        return {"factor": torch.tensor(float("nan") if bad else 1.0)}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * state["factor"]


def test_one_that_fails_leaves_the_others(values: dict[str, Any], tmp_path: Path, stacked_sizes: list[int]) -> None:
    values["learner"] = {"name": "test_together:Falls"}
    cells, seen = cells_of(values), Seen()
    outcomes = {o.cell.config.run.seed: o.reason for o in run_together(cells, tmp_path / "r", None, seen)}
    assert "training diverged: client " in outcomes[1]
    assert " in round 2 " in outcomes[1]
    assert (outcomes[2], outcomes[3], seen.outcomes["seed-2"]) == ("", "", "")
    assert stacked_sizes == [6, 6, 2, 2, 2, 4, 4]  # all, all, then each alone to see which one it was
    assert len(lines(tmp_path / "r/seed-1")) == 1
    for one in (cells[0], cells[2]):
        run(one.config, tmp_path / "alone" / one.folder, Silent())
        alike(tmp_path / "r" / one.folder, tmp_path / "alone" / one.folder)


class Draws(Erm):
    """A step that can't be captured."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * torch.rand(())


@pytest.mark.parametrize("why", ["steps", "memory", "no room", "frozen parts"])
def test_runs_that_cannot_stay_are_finished_alone(
    values: dict[str, Any], tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch, stacked_sizes: list[int]
) -> None:
    """From the last whole round: the first where steps can't be captured, none with a full GPU or other weights."""
    monkeypatch.setattr(together, "stackable", lambda config: True)
    if why == "steps":
        values["learner"] = {"name": "test_together:Draws"}
    elif why == "memory":
        error = torch.OutOfMemoryError("CUDA out of memory.")
        monkeypatch.setattr(Joint, "train", lambda *_: (_ for _ in ()).throw(error))
    elif why == "no room":
        error = torch.OutOfMemoryError("CUDA out of memory.")
        monkeypatch.setattr(together, "make_stack", lambda *_: (_ for _ in ()).throw(error))
    else:
        values["model"] = {"name": "made_models:part"}  # whose frozen part depends on the seed
    cells, seen = cells_of(values), Seen()
    with pytest.warns(Slower) if why == "steps" else contextlib.nullcontext():
        outcomes = run_cells(cells, tmp_path / "r", None, seen, 1, together=True)
    assert [(o.cell, o.reason) for o in outcomes] == [(one, "") for one in cells]
    assert sum(stacked_sizes) == {"steps": 6, "frozen parts": 2 * 4}.get(why, 0)
    for one in cells:
        run(one.config, tmp_path / "alone" / one.folder, Silent())
        alike(tmp_path / "r" / one.folder, tmp_path / "alone" / one.folder)


def test_what_runs_together(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that differ in seed and labels alone, on a GPU, as many as have room for their clients, in equal groups."""
    assert waves(cells_of(values)) == []  # on a CPU
    monkeypatch.setattr(together, "pick_device", lambda name: torch.device("cuda"))
    assert [len(wave) for wave in waves(cells_of(values, range(3)))] == [3]
    values["run"] |= {"parallel": 9}
    assert [len(wave) for wave in waves(cells_of(values, range(7)))] == [3, 4]  # two clients each: four runs
    values["run"] |= {"parallel": 3}
    assert waves(cells_of(values)) == []
    values["run"] |= {"parallel": 32}
    assert [len(wave) for wave in waves(cells_of(values, range(20)))] == [6, 7, 7]
    one, other = cell(values, 0), cell({**values, "train": {**values["train"], "lr": 0.2}}, 0)
    assert waves([one, other]) == []
    other = cell({**values, "noise": {"kind": "none"}}, 0)
    assert waves([one, other]) == [[one, other]]
    assert waves(cells_of({**values, "noise": {"kind": "openset", "ratios": [0.2]}})) == []  # images of their own
    logged = cells_of({**values, "run": {**values["run"], "log": ("tensorboard",)}})
    assert waves(logged) == []


@pytest.mark.parametrize("command", ["run", "bench"])
def test_commands_make_runs_together_unless_told_how_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacked_sizes: list[int], command: str
) -> None:
    """Three seeds of two clients a round; of a ranking, those of each of two methods."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(together, "stackable", lambda config: True)
    keys = {"partition.samples_per_client": 20, "partition.clients": 4, "sampling.fraction": 0.5, "train.rounds": 2}
    keys |= {"model.width": 2, "schedule.epochs": 1}
    sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    if command == "run":
        words = ["run", "demo/fedavg", "--seeds", "0..2"]
    else:
        words = ["bench", "--method", "fedavg", "--method", "gce", "--setting", "iid/symmetric-high", "--seeds", "0..2"]
    status, out, err = fednoil(*words, *sets, "--device", "cpu", "--out", "together")
    assert (status, err) == (0, "")
    assert stacked_sizes == [6, 6] * (1 if command == "run" else 2)
    assert ("over 3 seeds; results in together" if command == "run" else "6 runs, 0 done, 6 to run, ") in out
    assert fednoil(*words, *sets, "--device", "cpu", "--out", "apart", "--jobs", "1", "-q")[0] == 0
    assert len(stacked_sizes) == (2 if command == "run" else 4)
    folders = [path.parent for path in Path("together").rglob("rounds.jsonl")]
    assert len(folders) == (3 if command == "run" else 6)
    for folder in folders:
        same(lines(folder), lines("apart" / folder.relative_to("together")))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; PyTorch sees none here")
@pytest.mark.parametrize("case", ["erm", "fednoil", "non-iid", "fednoil-plus"])
def test_on_a_gpu_seeds_run_together_by_default(values: dict[str, Any], tmp_path: Path, case: str) -> None:
    """As alone in float32; one is then resumed alone."""
    for section, keys in CASES[case].items():
        values[section] = {**(values[section] if section in ("data", "run", "sampling") else {}), **keys}
    values["run"] |= {"device": "cuda", "precision": "float32"}
    cells = cells_of(values)
    assert waves(cells) == [cells]
    run_cells(cells, tmp_path / "r", None, Seen(), 4, together=True)
    for one in cells:
        run(one.config, tmp_path / "alone" / one.folder, Silent())
        made = json.loads((tmp_path / "r" / one.folder / "environment.json").read_text())
        assert made["runs_at_once"] == 3
        assert "slower" not in made
        for got, wanted in zip(lines(tmp_path / "r" / one.folder), lines(tmp_path / "alone" / one.folder), strict=True):
            assert got["selected"] == wanted["selected"]
            assert got["train_batches"] == pytest.approx(wanted["train_batches"], rel=0.1)  # |D^x| may differ by one
            assert got["train_loss"] == pytest.approx(wanted["train_loss"], rel=0.02)
    (tmp_path / "r/seed-1/summary.json").unlink()
    run(cells[1].config, tmp_path / "r/seed-1", Silent(), resume=True)
    assert [line["round"] for line in lines(tmp_path / "r/seed-1")] == [1, 2, 3, 4]
