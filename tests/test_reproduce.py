"""`fednoil reproduce`: the plan, its time, going on, failures, and several processes."""

from __future__ import annotations

import errno
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import fednoil, refused

from fednoil.batch.cell import Cell, parse_seeds
from fednoil.batch.cluster import run_on_ray
from fednoil.batch.duration import expected, kind_of, work_of
from fednoil.batch.workers import Outcome, _reason, run_in_processes
from fednoil.config import load_config, parse_set
from fednoil.config.loading import merge
from fednoil.errors import UserError
from fednoil.history import RoundRecord
from fednoil.records.folder import RunFolder
from fednoil.schedules import make
from fednoil.study import preset
from fednoil.study.places import command_of, values_of
from fednoil.study.plan import GOALS, PlanOptions, make_plan

TINY = ["train.rounds=2", "partition.samples_per_client=40", "model.width=2", "schedule.epochs=1", "schedule.t_min=1"]
SMALL = ["--scale", "small", *(part for change in TINY for part in ("--set", change))]


def cells_of(goal: str, scale: str = "paper", seeds: int = 5, **wanted: list[str]) -> list:
    return make_plan(goal, PlanOptions(scale, seeds=range(seeds), **wanted))


# ---- the plan


def test_plans_have_the_papers_cells() -> None:
    """Counted from the paper: rows × columns × seeds."""
    sizes = {
        "table1": 3 * 14 * 8 * 5,
        "table2": 11 * 8 * 5,
        "table3": 3 * 3 * 2 * 5,
        "table4": 2 * 4 * 5,
        "schedules": 0,
        "efficiency": 16 * 5,
        "tradeoff": 7 * 5,
        "ablation": 3 * 5,
        "clean": 2 * 5,
    }
    assert {goal: len(cells_of(goal)) for goal in GOALS} == sizes


def test_the_most_informative_cells_come_first() -> None:
    """FedNoiL in all eight settings of Fashion-MNIST, then its baselines; all of seed 0 before seed 1."""
    cells = cells_of("table1", seeds=2)
    first = cells[:16]
    assert {(c.place.dataset, c.config.run.seed) for c in first} == {("fashion-mnist", 0)}
    assert {c.place.method for c in first} == {"fednoil-cosine", "fednoil-logarithm"}
    assert len({(c.place.setting, c.place.noise) for c in first}) == 8
    seeds = [c.config.run.seed for c in cells_of("all", seeds=2)]
    assert seeds == sorted(seeds)


def test_shared_cells_are_run_once() -> None:
    every = cells_of("all", seeds=1)
    folders = [cell.folder for goal in GOALS for cell in cells_of(goal, seeds=1)]
    assert len({cell.config.hash() for cell in every}) == len(every) == len(set(folders)) < len(folders)


def test_cells_are_narrowed_down() -> None:
    found = cells_of(
        "table1", datasets=["fashion-mnist"], noises=["pair-high-shared"], methods=["FedNoiL(Cosine)"], seeds=2
    )
    assert {cell.place.noise for cell in found} == {"pair-high-shared"}
    assert {cell.place.method for cell in found} == {"fednoil-cosine"}
    assert len(found) == 2  # IID, two seeds: others have no preset
    assert {cell.place.noise for cell in cells_of("all", noises=["clean"], seeds=1)} == {"clean"}


def test_small_cells_are_the_same_experiment_on_the_embedded_data() -> None:
    for big, small in zip(cells_of("table4", seeds=1), cells_of("table4", "small", seeds=1), strict=True):
        assert small.config.data.name == "fashion-mnist-mini"
        assert big.place.method == small.place.method
        assert big.config.learner.name == small.config.learner.name
        assert work_of(small.config) < work_of(big.config) / 40


def test_constant_schedules_match_the_rounds_that_are_run() -> None:
    wanted = PlanOptions("paper", methods=["fednoil-constant-as-cosine(40)"], changes={"train": {"rounds": 50}})
    (cell,) = make_plan("efficiency", wanted)
    decay = load_config(values_of("paper", "cifar10", "iid", "symmetric-high", "fednoil-cosine(40)"))
    assert make(cell.config.schedule).total(50) == make(decay.schedule).total(50)


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_the_command_of_a_cell_makes_that_cell(scale: str) -> None:
    for cell in [c for goal in GOALS for c in cells_of(goal, scale, seeds=2)[::7]]:
        args = command_of(cell.config.model_dump(mode="json"))
        assert args is not None
        changes = parse_set([args[i + 1] for i, a in enumerate(args) if a == "--set"])
        config = load_config(merge(merge(preset(args[1]), changes), {"run": {"seed": int(args[-1])}}))
        assert config.hash() == cell.config.hash()


def test_a_cell_says_where_it_came_from() -> None:
    """A schedule of the figures is a preset with another schedule; the preset with what was set makes the same cell."""
    wanted = PlanOptions("small", methods=["fednoil-cosine(40)"], changes=parse_set(TINY[:3]), seeds=[3])
    (cell,) = make_plan("efficiency", wanted)
    assert cell.origin is not None
    assert cell.origin["preset"] == "small/iid/symmetric-high/fednoil-logarithm"
    again = merge(preset(cell.origin["preset"]), parse_set([*cell.origin["set"], "run.seed=3"]))
    assert load_config(again).hash() == cell.config.hash()


def test_seeds() -> None:
    assert parse_seeds("0..4") == [0, 1, 2, 3, 4]
    assert parse_seeds("3,0..1, 3") == [3, 0, 1]
    for wrong in ("", "4..0", "-1", "a", "1..", "0..99999999"):
        with pytest.raises(UserError, match="--seeds"):
            parse_seeds(wrong)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert "did you mean 'table3'?" in refused("reproduce", "tabel3")
    assert "--scale tiny" in refused("reproduce", "table3", "--scale", "tiny")
    assert "--method fednoll-cosine" in refused("reproduce", "table1", "--method", "fednoll-cosine")
    assert "--dataset" in refused("reproduce", "table1", "--scale", "small", "--dataset", "cifar10")
    assert "--seeds" in refused("reproduce", "table1", "--set", "run.seed=3")
    assert "train.lr = -1" in refused("reproduce", "table1", "--set", "train.lr=-1", "--seeds", "0")
    assert "has --noise clean with --method fedprox; leave it out" in refused(
        "reproduce", "all", "--noise", "clean", "--method", "fedprox"
    )
    assert "--dataset fashion-mnist with --setting imbalanced" in refused(
        "reproduce", "all", "--dataset", "fashion-mnist", "--setting", "imbalanced"
    )
    assert "don't apply" in refused("reproduce", "schedules", "--noise", "clean", "--out", tmp_path)


def test_what_would_fail_later_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, Ray and the folder are looked at before anything is measured, let alone run."""

    def measured(*_: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("fednoil.batch.duration.expected", measured)
    (tmp_path / "file").touch()
    clean = ("reproduce", "clean", *SMALL[:2], "--method", "fedavg", "--seeds", "0")
    assert "choose another folder" in refused(*clean, "--out", tmp_path / "file/x")
    out = tmp_path / "out"
    message = refused("reproduce", "clean", "--dataset", "cifar10", "--data-dir", tmp_path, "--out", out)
    assert "data.name = 'cifar10' was not found" in message
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "fednoil[ray]" in refused(*clean, "--ray", "auto", "--out", out)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "fednoil[plot]" in refused("reproduce", "ablation", "--scale", "small", "--out", out)
    assert not out.exists()


# ---- its time


def test_an_estimate_from_earlier_runs() -> None:
    """A run took 12 s; a plan of two such cells, one at a time, takes twice that."""
    cells = cells_of("table3", "small", seeds=2, noises=["pair-high"], methods=["fednoil-logarithm"])
    past = (cells[0].config, 12.0)
    found = expected(cells, [past], 1, 1, None)
    assert found.seconds == pytest.approx(2 * 12.0)
    assert found.source == "1 kind of run from earlier ones"
    assert expected(cells, [past], 2, 1, None).seconds == pytest.approx(12.0 + 3.0)  # and a process's start


@pytest.mark.parametrize("error", ["CUDA error: out of memory", "CUDA error: misaligned address"])
def test_a_full_gpu_leaves_a_plan_without_an_estimate(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    """The runs themselves say what would help; other errors are reported unchanged."""
    cells = cells_of("table3", "small", seeds=1, noises=["pair-high"], methods=["fednoil-logarithm"])
    monkeypatch.setattr("fednoil.batch.duration._speed", lambda *_: (_ for _ in ()).throw(RuntimeError(error)))
    if "out of memory" in error:
        assert expected(cells, [], 1, 1, None).seconds is None
    else:
        with pytest.raises(RuntimeError, match="misaligned"):
            expected(cells, [], 1, 1, None)


def test_work_is_samples_times_epochs() -> None:
    config = load_config(preset("paper/fashion-mnist/iid/symmetric-high/fedavg"))
    assert work_of(config) == 150 * 30 * 6 * 600
    assert kind_of(config) == ("cnn", "{'width': 32}", "fedavg", "erm")
    pooled = load_config(preset("paper/fashion-mnist/iid/symmetric-high/centralized+dividemix"))
    assert work_of(pooled) == 300 * 20 * 600


@pytest.mark.parametrize(("large", "samples", "epochs"), [(False, 500, 45), (False, 300, 45), (True, 500, 42)])
def test_the_epochs_of_a_network_and_its_clients_are_part_of_an_estimate(
    monkeypatch: pytest.MonkeyPatch, large: bool, samples: int, epochs: int
) -> None:
    """Whatever is timed takes a second: three epochs of one client with 300 samples, and the test after each of three
    rounds. A round has 15 epochs, since there are few; of a large network 30, 6 and 6."""
    keys = ["partition.clients=4", f"partition.samples_per_client={samples}", "model.width=2", "sampling.fraction=0.5"]
    keys += ["schedule.name=network", "schedule.epochs=30 %", "train.rounds=3", "run.device=cpu"]
    config = load_config(merge(preset("demo/fedavg"), parse_set(keys)))
    ticks = itertools.count()
    monkeypatch.setattr("fednoil.batch.duration.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr("fednoil.experiment.is_large", lambda _: large)
    found = expected([Cell(config, "a", "a", "a")], [], 1, 1, None)
    assert work_of(config) == 9 * 2 * samples
    assert found.seconds == pytest.approx(epochs * 2 * samples / (3 * 300) + 3)


def test_a_dry_run_measures_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, text, err = fednoil("reproduce", "table3", *SMALL, "--out", out, "--dry-run", "--json")
    assert (status, err) == (0, "")
    plan = json.loads(text)
    assert (plan["to_run"], len(plan["cells"])) == (18, 18)
    assert 0 < plan["estimate_s"] < 600
    assert "measured" in plan["estimate_from"]
    assert not out.exists()


# ---- running


def run(out: Path, *more: object) -> tuple[int, str, str]:
    return fednoil("reproduce", "table3", *SMALL, "--out", out, "--noise", "pair-high", "--seeds", "0", *more)


def test_a_plan_is_run_once_and_reported(tmp_path: Path) -> None:
    status, text, err = run(tmp_path, "--jobs", 1)
    assert (status, err) == (0, "")
    assert text.count("% in ") == 3
    folders = sorted(p.name for p in tmp_path.iterdir() if p.is_dir() and p.name != "figures")
    assert len(folders) == 3
    written = {p.name for p in tmp_path.iterdir() if p.is_file()}
    assert written == {"table3-small.html", "table3-small.md", "table3-small.tex"}
    assert {p.suffix for p in (tmp_path / "figures").iterdir()} == {".svg", ".pdf", ".png", ".csv"}
    for folder in folders:
        origin = json.loads((tmp_path / folder / "environment.json").read_text())["origin"]
        assert origin["preset"].startswith("small/iid/pair-high/fednoil-")
        assert origin["set"] == TINY
    before = {f: (tmp_path / f / "summary.json").stat().st_mtime_ns for f in folders}
    status, text, err = run(tmp_path)
    assert (status, err) == (0, "")
    assert "3 runs, 3 done, 0 to run" in text
    assert before == {f: (tmp_path / f / "summary.json").stat().st_mtime_ns for f in folders}


def test_cells_in_processes_go_on_past_a_failure(tmp_path: Path) -> None:
    """One cell's folder is taken by something else; the other is run, and the end says why."""
    methods = ["fednoil-logarithm", "fednoil-uniform-local"]
    plan = make_plan("table3", PlanOptions("small", noises=["pair-high"], methods=methods, changes=parse_set(TINY)))
    taken = tmp_path / plan[0].folder
    taken.mkdir()
    (taken / "letter.txt").write_text("mine")
    status, _, err = run(tmp_path, "--jobs", 2, *(part for m in methods for part in ("--method", m)))
    assert status == 1
    assert "1 of 2 runs failed" in err
    assert "not empty and not a run folder" in err
    assert [cell.is_done(tmp_path) for cell in plan] == [False, True]
    assert (taken / "letter.txt").read_text() == "mine"
    assert not list(tmp_path.glob("*.toml"))


WORD = "AcceleratorError: CUDA error: an illegal memory access was encountered"
CUDA_ERROR = f"""Traceback (most recent call last):
  File "rounds.py", line 7, in play
    results = executor.train(jobs)
torch.{WORD}
CUDA kernel errors might be asynchronously reported at some other API call.

Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize(
    ("status", "errors", "reason"),
    [
        (0, "a warning\n", ""),
        (1, CUDA_ERROR, f"torch.{WORD}"),
        (1, f"{CUDA_ERROR}\nDuring handling\n\n{CUDA_ERROR.replace('torch.', 'last.')}", f"last.{WORD}"),
        (1, "Traceback (most recent call last):\n  cut off\n", "ended with status 1"),
        (2, f"{CUDA_ERROR}fednoil: no such data\n\n", "no such data"),
        (-9, "", "killed by signal 9 (out of memory?)"),
        (-9, "a note\n\n", "killed by signal 9 (out of memory?); its last line: a note"),
    ],
)
def test_the_reason_is_what_a_process_said_went_wrong(status: int, errors: str, reason: str) -> None:
    assert _reason(status, errors.splitlines(keepends=True)) == reason


def test_what_a_users_own_code_prints_fails_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that prints stands between the records that a cell's process writes."""
    record = RoundRecord(round=1, local_epochs=1, train_batches=2, selected=[0], bytes_down=3, bytes_up=4, wall_s=0.5)
    lines = ["hello", json.dumps({"loss": 1}), "[1]", json.dumps({"round": 1}), json.dumps(record.to_json())]
    script = f"for line in {lines!r}: print(line)"

    def start(*_: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    monkeypatch.setattr("fednoil.batch.workers._Processes._start", start)
    (cell,) = make_plan("clean", PlanOptions("small", methods=["fedavg"]))
    seen: list[RoundRecord] = []
    view = SimpleNamespace(started=lambda _: None, round=lambda _, record: seen.append(record), ended=lambda _: None)
    (outcome,) = run_in_processes([cell], tmp_path, None, view, jobs=1)
    assert (outcome.status, seen) == ("done", [record])


def test_a_process_that_cannot_start_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_plan("clean", PlanOptions("small", methods=["fedavg"], seeds=[0, 1]))

    def start(pool: object, cell: Cell) -> subprocess.Popen[str]:
        if cell is first:
            raise OSError(errno.ENOSPC, "No space left on device")
        return subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    monkeypatch.setattr("fednoil.batch.workers._Processes._start", start)
    view = SimpleNamespace(started=lambda _: None, ended=lambda _: None)
    outcomes = run_in_processes([first, second], tmp_path, None, view, jobs=2)
    assert [(one.status, "No space left" in one.reason) for one in outcomes] == [("failed", True), ("done", False)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_plan_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    """However it is stopped its cells write their checkpoints; the same command then ends as if never stopped."""
    changes = ["--set", "train.rounds=40", "--set", "run.checkpoint_every=1000", *SMALL[4:]]
    options = ["--scale", "small", *changes, "--noise", "pair-high", "--method", "fednoil-logarithm", "--seeds", "0..1"]
    command = [sys.executable, "-m", "fednoil", "reproduce", "table3", *options, "--out", str(tmp_path), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while sum(len(p.read_text().splitlines()) > 2 for p in tmp_path.glob("*/rounds.jsonl")) < 2:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=120)
    if number == signal.SIGTERM:
        assert process.returncode == 128 + signal.SIGTERM, err
        assert f"0 of 2 runs are done in {tmp_path}; run the same command again to continue" in err
    while list(tmp_path.glob("*/.lock")):  # a cell that lives on holds its folder
        assert time.monotonic() < until
        time.sleep(0.05)
    checkpoints = list(tmp_path.glob("*/checkpoint/checkpoint.json"))
    assert len(checkpoints) == 2
    assert all(json.loads(path.read_text())["round"] > 2 for path in checkpoints)
    assert not list(tmp_path.glob("*/summary.json"))
    assert fednoil(*command[3:-1], "1", "-q")[0] == 0
    assert len(list(tmp_path.glob("*/summary.json"))) == 2
    (environment,) = {tuple(r["after_round"] > 2 for r in _resumed(p)) for p in tmp_path.glob("*/environment.json")}
    assert environment == (True,)


def _resumed(path: Path) -> list[dict]:
    return json.loads(path.read_text())["resumed"]


def test_schedules_need_no_run(tmp_path: Path) -> None:
    status, text, err = fednoil("reproduce", "schedules", "--out", tmp_path)
    assert (status, err) == (0, "")
    assert "0 runs" in text
    rows = (tmp_path / "figures/schedules-paper.csv").read_text().splitlines()
    assert "Logarithm,Logarithm(80),10,58.0,58.0,58.0,1" in rows
    assert "Cosine,Cosine(80),40,77.0,77.0,77.0,1" in rows
    assert len(rows) == 1 + 8 * 200


# ---- Ray


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own
@pytest.mark.parametrize("shared", [True, False], ids=["shared file system", "no shared file system"])
def test_cells_on_a_local_ray_with_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """Two cells and one that fails, on separate workers; all results are in one folder, whoever wrote them."""
    ray = pytest.importorskip("ray", reason="ray is not installed; make test-slow installs it")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        methods = ["fednoil-logarithm", "fednoil-uniform-local"]
        plan = make_plan("table3", PlanOptions("small", noises=["pair-high"], methods=methods, changes=parse_set(TINY)))
        broken = make_plan(
            "clean", PlanOptions("small", methods=["fedavg"], changes={"data": {"name": "npz:none.npz"}})
        )
        if not shared:  # workers look for a file that isn't there
            monkeypatch.setattr(Path, "touch", lambda *_, **__: None)
        outcomes = run_on_ray([*plan, *broken], tmp_path, None, Unseen(), "auto", 1)
    finally:
        ray.shutdown()
        gc.collect()  # files that Ray leaves open are this test's, not the next one's
    assert [outcome.status for outcome in outcomes] == ["done", "done", "failed"]
    assert "none.npz" in outcomes[2].reason
    assert [cell.is_done(tmp_path) for cell in plan] == [True, True]
    assert all(RunFolder(tmp_path / cell.folder).is_finished() for cell in plan)
    assert not list(tmp_path.glob(".ray-*"))


class Unseen:
    """A silent view of a plan."""

    def started(self, cell: Cell) -> None: ...

    def round(self, cell: Cell, record: dict) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...
