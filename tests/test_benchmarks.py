"""The benchmarks' own arithmetic: floors with as many parameters and steps, least times, tables."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import fednoil as fednoil_command

import fednoil
from fednoil.batch import together
from fednoil.config import load_config
from fednoil.executors.joint import Joint
from fednoil.models import build
from fednoil.records.environment import commit
from fednoil.seeds import Seed

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = ("images", "floor", "scaling", "charts", "peers", "peer_work", "peer_engines",
         "peer_rounds", "peers_gpu", "checkpoints", "learners", "profiling",
         "gpu_steps", "written", "many_runs", "uneven", "many_clients")  # fmt: skip


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The scripts as modules, as they find each other when they run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("name", "width", "shape"), [("cnn", 12, (1, 28, 28)), ("resnet18", 64, (3, 32, 32))])
def test_the_floor_has_the_model_s_parameters(
    modules: dict[str, ModuleType], name: str, width: int, shape: tuple[int, int, int]
) -> None:
    floor = modules["floor"]
    plain = floor.PlainCNN(width) if name == "cnn" else floor.plain_resnet18()
    ours = build(load_config({"model": {"name": name, "width": width}}).model, shape, 10, Seed(0))
    sizes = [sorted(p.shape for p in m.parameters()) for m in (plain, ours)]
    assert sizes[0] == sizes[1]


def test_what_is_measured_has_its_version(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    modules["written"].write(tmp_path / "new" / "found.json", {"rows": [1]})
    found = json.loads((tmp_path / "new" / "found.json").read_text())
    assert found == {"version": fednoil.__version__, "commit": commit(), "rows": [1]}


def test_a_point_counts_the_steps_that_a_round_makes(modules: dict[str, ModuleType]) -> None:
    """40 samples, 14 of them labelled: one step of 32 + 26 an epoch; 2 clients × 2 epochs are 4 steps."""
    scaling = modules["scaling"]
    point = scaling.Point("clients", 2, 2, 40, 32)
    row = scaling.measure(point, "cpu", scaling.Size(width=2, epochs=2, samples=40, clients=2, repeats=1))
    assert (row["steps"], row["batch"]) == (4, 58)
    assert row["bare_s"] > 0
    assert row["round_s"] > 0


def test_operations_of_a_step_are_counted(modules: dict[str, ModuleType]) -> None:
    """A CNN of width 1: 784·25 + 196·25·2 products forward in its convolutions and 98·10 in the linear layer, two
    operations each. Backward twice that, less the first layer's gradient of the images: 3, 3 and 2 times."""
    floor = modules["floor"]
    first, rest = 784 * 25, 196 * 25 * 2 + 98 * 10
    assert floor.step_flops(floor.PlainCNN(1), (5, 1, 28, 28)) == 5 * 2 * (2 * first + 3 * rest)


def test_the_least_times_count_and_equal_steps_share_theirs(modules: dict[str, ModuleType]) -> None:
    def row(value: int, steps: int, batch: int, round_s: float, bare_s: float) -> dict[str, Any]:
        return {"axis": "clients", "value": value, "steps": steps, "batch": batch, "round_s": round_s, "bare_s": bare_s}

    rows = [row(1, 2, 65, 5.0, 2.0), row(2, 4, 65, 8.0, 3.2), row(1, 2, 65, 4.0, 3.0), row(3, 1, 10, 1.0, 0.5)]
    found = modules["scaling"].shortest(rows)
    assert [r["round_s"] for r in found] == [4.0, 8.0, 1.0]
    assert [r["bare_s"] for r in found] == pytest.approx([1.6, 3.2, 0.5])  # 0.8 s is the least for a step of 65


def test_ratios_to_the_loop_are_of_the_same_clock(modules: dict[str, ModuleType]) -> None:
    found = {
        "plain": {"seconds": [2.0, 4.0, 6.0], "cpu": [1.0, 2.0, 3.0], "accuracy": [60.0]},
        "fednoil": {"seconds": [9.0, 9.0, 9.0], "cpu": [0.5, 1.0, 1.0], "accuracy": [60.0]},
        "flower": {"seconds": [8.0, 12.0, 16.0], "cpu": [2.0, 3.0, 4.0], "accuracy": [60.0]},
    }
    rows = {row["engine"]: row for row in modules["peers"].table(found)}
    names = ("cpu_best_ratio", "cpu_median_ratio", "wall_best_ratio", "wall_median_ratio")
    assert [rows["plain"][name] for name in names] == [1, 1, 1, 1]
    assert [rows["fednoil"][name] for name in names] == [0.5, 0.5, 4.5, 2.25]
    assert [rows["flower"][name] for name in names] == [2.0, 1.5, 4.0, 3.0]


def test_the_loop_and_ours_learn_alike_on_the_peers_work(modules: dict[str, ModuleType]) -> None:
    """Both climb from chance to well over half in some rounds; an engine that trained nothing would stay at 10 %."""
    work, timing = modules["peer_work"], modules["peer_rounds"]
    same, saved = work.Work(), []
    engines = {name: timing.engine(name, same, 2, False) for name in ("plain", "fednoil")}
    found = timing.measured(engines, 6, save=saved.append)
    assert all(engine["accuracies"][6] > 30 for engine in found.values())
    assert all(len(engine["seconds"]) == len(engine["cpu"]) == 6 for engine in found.values())
    assert all(engine["equal"] for engine in found.values())
    assert saved[-1] == found


def test_an_engine_that_fails_or_has_no_time_says_so_and_the_others_go_on(modules: dict[str, ModuleType]) -> None:
    """The second run of `drifts` ends with other bits."""
    timing, count = modules["peer_rounds"], itertools.count()

    def good() -> Iterator[tuple[float, list[torch.Tensor]]]:
        while True:
            yield 50.0, [torch.zeros(2)]

    def bad() -> Iterator[tuple[float, list[torch.Tensor]]]:
        yield 50.0, [torch.zeros(2)]
        raise RuntimeError("no such GPU\nand more")

    def drifts() -> Iterator[tuple[float, list[torch.Tensor]]]:
        while True:
            yield 50.0, [torch.tensor(next(count))]

    starts = {"good": good, "bad": bad, "drifts": drifts}
    found = timing.measured({name: timing.Engine(start) for name, start in starts.items()}, 3)
    assert [len(found[name]["seconds"]) for name in starts] == [3, 0, 3]
    assert [found[name]["equal"] for name in starts] == [True, True, False]
    assert found["bad"]["failed"] == "RuntimeError: no such GPU"
    late = timing.measured({"good": timing.Engine(good)}, 3, until=0)
    assert late["good"] == {"seconds": [], "cpu": [], "accuracies": [], "failed": "no time left", "bytes": 0}


def test_memory_is_what_an_engine_holds_and_its_peaks_not_what_others_hold(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes 30 bytes for a while and keeps 7 of them; another engine has 100, and 5 are shared images."""
    timing, held, peak = modules["peer_rounds"], [100], [0]

    def start() -> Iterator[tuple[float, list[torch.Tensor]]]:
        while True:
            peak[0] = held[0] + 30
            held[0] += 7
            yield 50.0, [torch.zeros(2)]

    for name, value in {
        "is_available": lambda: True,
        "memory_allocated": lambda: held[0],
        "max_memory_allocated": lambda: peak[0],
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda: peak.__setitem__(0, held[0]),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    engine = timing.Engine(start, shares=5)
    engine.begin()
    engine.play()
    held[0] += 1000  # another engine's
    engine.play()
    assert (engine.own, engine.peak) == (14, 5 + 7 + 30)
    other = timing.Engine(start, memory=lambda: 77)  # says itself what it has
    other.begin()
    other.play()
    assert (other.own, other.peak) == (0, 77)


def test_the_plain_networks_of_the_peers_have_our_parameters(modules: dict[str, ModuleType]) -> None:
    work = modules["peer_work"]
    for name in ("cnn", "resnet18"):
        same = work.Work(work.task_of(name, clients=2, selected=1, samples=10, epochs=1, batch=5))
        sizes = [sorted(p.shape for p in m.parameters()) for m in (same.model, same.experiment.build_model("model"))]
        assert sizes[0] == sizes[1]
        assert same.task.steps == 2
        assert sorted(same.orders(0, 1).flatten().tolist()) == list(range(10))


def test_ours_is_compared_with_the_best_peer(modules: dict[str, ModuleType]) -> None:
    """500 client-steps of 50 images in 0.1 s are 5,000 and 250,000 a second; the loop's 0.4 s is four times as long."""
    gpu, names = modules["peers_gpu"], ["fednoil", "plain", "pfl", "flower"]

    def engine(*seconds: float) -> dict[str, Any]:
        played = [10.0 * k for k in range(1, len(seconds) + 1)]
        return {"seconds": [*seconds], "accuracies": played, "equal": True, "bytes": 2**30}

    engines = {"fednoil": engine(0.1, 0.1, 0.3), "plain": engine(0.5, 0.3), "pfl": engine(0.9, 0.9, 0.9)}
    engines["flower"] = {"failed": "not installed here: ray"}
    rows = gpu.table("cnn", names, {"engines": engines, "steps": 500, "images": 25000, "real": True})
    assert rows[0]["client_steps_a_second"] == pytest.approx(5000)
    assert rows[0]["images_a_second"] == pytest.approx(250_000)
    assert [row.get("accuracy") for row in rows] == [20.0, 20.0, 20.0, None]  # after two rounds
    assert rows[3] == {"task": "cnn", "engine": "flower", "failed": "not installed here: ray"}
    assert gpu.ratios(rows) == {"cnn": pytest.approx(4)}
    assert gpu.ratios(rows[1:]) == {"cnn": 0.0}
    assert "not measured: not installed here: ray" in gpu.shown(rows[3])
    table = modules["charts"].peers_gpu_table(
        {"device": "GPU", "commit": "abc", "versions": {"pfl": "0.6.0"}, "rows": rows}
    )
    assert "| fednoil | 5,000 | 250,000 | 1 | 20.0 | yes | 1.0× |" in table
    assert "| pfl 0.6.0 | 556 | 27,778 | 1 | 20.0 | yes | 9.0× |" in table
    assert table.endswith("Not measured: flwr on the CNN (not installed here: ray).")


def test_a_peer_that_lacks_something_is_not_measured(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = modules["peers_gpu"]
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None if name == "ray" else name)
    assert gpu.missing("flower") == "not installed here: ray"
    assert gpu.missing("plain") is None
    assert gpu.missing("pfl") is None


def test_the_readme_is_what_the_results_say(modules: dict[str, ModuleType]) -> None:
    """`python benchmarks/charts.py` writes it."""
    charts = modules["charts"]
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert charts.fill(text, charts.tables(charts.load(BENCHMARKS / "results"))) == text
    assert len(re.findall(r"[^\s|]+", text)) <= 1500


def test_the_readme_quotes_the_peers() -> None:
    rows = json.loads((BENCHMARKS / "results" / "peers-gpu.json").read_text(encoding="utf-8"))["rows"]
    said, counts = [], {5: "five", 6: "six"}
    for task in ("cnn", "resnet18"):
        _, *others = (row["ours_is_times_as_fast"] for row in rows if row["task"] == task and "failed" not in row)
        said.append(f"{min(others):.1f} times as fast as with the best of {counts[len(others)]}")
    text = " ".join((BENCHMARKS.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"is {said[0]} other engines for a CNN, and {said[1]}" in text


def test_a_readme_without_a_place_is_reported(modules: dict[str, ModuleType]) -> None:
    with pytest.raises(ValueError, match="0 places for 'peers'"):
        modules["charts"].fill("nothing", {"peers": "x"})


def test_the_time_in_a_method_is_noted_and_the_method_put_back(modules: dict[str, ModuleType]) -> None:
    class Owner:
        def work(self) -> str:
            return "done"

    plain, seconds = Owner.work, []
    with modules["checkpoints"].timed(Owner, "work", seconds):
        assert Owner().work() == "done"
    assert Owner.work is plain
    assert len(seconds) == 1


def test_kernels_of_a_profile_are_added_up_and_gaps_are_idle(modules: dict[str, ModuleType]) -> None:
    """Over 100 µs: a GEMM twice for 30 and 10, and a copy of 20 beside the first; nothing from 40 to 90."""
    profiling = modules["profiling"]
    gemm, copy = "void at::native::gemm<4>(float*, int)", "Memcpy DtoD (Device -> Device)"
    times = ((gemm, 0.0, 30.0), (copy, 20.0, 40.0), (gemm, 90.0, 100.0))
    spans = [profiling.Span(profiling.short(name), *span) for name, *span in times]
    assert profiling.idle(spans) == (0.1, 0.05)
    rows = profiling.table(spans, steps=4)
    assert [row["kernel"] for row in rows] == ["gemm<4>", "Memcpy DtoD"]
    assert [(row["launches_a_step"], row["us"], row["ms"]) for row in rows] == [(0.5, 20.0, 0.04), (0.25, 20.0, 0.02)]
    assert [row["share"] for row in rows] == pytest.approx([0.4, 0.2])


def test_steps_without_pseudo_labels_have_a_row_of_their_own(modules: dict[str, ModuleType]) -> None:
    rows = [
        {"model": model, "style": style, "clients": 6, "ms": ms, "gib": 1.0, "epochs": 8}
        for model in ("cnn", "resnet18")
        for style, ms in (("stacked", 2.0), ("labelled", 0.5))
    ]
    text = modules["charts"].steps_table({"device": "a GPU", "torch": "2", "rows": rows})
    assert "| all at once, 6 clients | 2 | 2 |" in text
    assert "| all at once, 6 clients, steps of 32 images (no pseudo-labels) | 0.5 | 0.5 |" in text


def test_a_profile_of_a_turn_lists_steps_stages_and_operations(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two epochs of 150 images, two clients at once: in batches of 32 that are 10 joint steps."""
    profiling, found = modules["profiling"], tmp_path / "found.json"
    monkeypatch.setattr(profiling, "WARM_TURNS", 1)
    options = ["--device", "cpu", "--learner", "erm", "--clients", "2", "--epochs", "2", "--width", "2"]
    monkeypatch.setattr(sys, "argv", ["profiling.py", *options, "--rows", "3", "--json", str(found)])
    profiling.main()
    report = json.loads(found.read_text(encoding="utf-8"))
    assert report["steps"] == 10
    by_name = {row["kernel"]: row for row in report["kernels"]}
    assert by_name["aten::max_pool2d_with_indices"]["launches_a_step"] == 2
    assert all(report["stages"][stage] > 0 for stage in ("survey", "plan", "replay", "finish"))
    assert sum(report["stages"].values()) <= report["host_seconds"]
    assert 0 < report["idle_ms"] < report["profiled_ms"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 3 + 1 + 2
    assert lines[-2].startswith("10 joint steps")


def test_a_checkpoint_of_personal_models_is_that_of_those_that_trained(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    narrow = modules["checkpoints"].ResNet18
    monkeypatch.setattr(modules["checkpoints"], "ResNet18", lambda shape, classes: narrow(shape, classes, width=2))
    (_, everything, _), (what, some, _), (_, nothing, _) = modules["checkpoints"].personal(10, tmp_path)
    assert what == "3 that trained"
    assert (some / everything, nothing) == (pytest.approx((3 + 1) / (10 + 1), rel=0.01), 0)


@pytest.mark.parametrize("script", ["scaling", "learners", "checkpoints", "gpu_steps", "profiling", "many_runs"])
def test_without_a_gpu_a_script_that_needs_one_says_so(
    modules: dict[str, ModuleType], script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        sys, "argv", [f"{script}.py", *([] if script in ("gpu_steps", "many_runs") else ["--device", "cuda"])]
    )
    with pytest.raises(SystemExit) as stop:
        modules[script].main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"{script}.py needs a CUDA GPU here, but PyTorch sees none\n"


def test_seeds_together_and_apart_are_timed_and_compared(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_npz: Path
) -> None:
    """On a CPU in this process: stacked, then one after another."""
    script, told = modules["many_runs"], []
    monkeypatch.setattr("fednoil.batch.together.stackable", lambda config: True)
    monkeypatch.setattr(Joint, "train", Joint.train)  # which the script replaces
    monkeypatch.setattr("fednoil.batch.together.run_together", together.run_together)

    def seconds(words: list[str]) -> float:
        if "--inside" in words:
            with pytest.raises(SystemExit) as end:
                script.inside(Path(words[3]), words[4:])
            assert not end.value.code
            return 3.0
        told.append(words[-2:])
        assert fednoil_command(*words[3:-1], "1")[0] == 0
        return 6.0

    monkeypatch.setattr(script, "seconds", seconds)
    args = argparse.Namespace(preset="demo/fedavg", seeds="0..2", together=False)
    sets = [f"data.name=npz:{tiny_npz}", "partition.clients=4", "train.rounds=2", "run.device=cpu"]
    row = script.measured(args, tmp_path / "0", sets)
    assert told == [["--jobs", "3"]]
    assert (row["together_s"], row["processes_s"], row["ratio"], row["rounds"]) == (3.0, 6.0, 0.5, 2)
    assert 0 < row["training_s"] < row["all_runs_s"]
    assert row["largest_difference"] == 0
    alone = script.measured(argparse.Namespace(**{**vars(args), "together": True}), tmp_path / "1", sets)
    assert told == [["--jobs", "3"]]
    assert alone["together_s"] == 3.0
    assert not {"processes_s", "ratio", "largest_difference"} & set(alone)


def test_a_step_of_an_uneven_run_is_compared_with_one_of_an_even_run(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three rounds, of which the first warms up; 21 of 60 samples make one step an epoch for six clients."""
    script, found = modules["uneven"], tmp_path / "found.json"
    monkeypatch.delitem(script.LEARNERS, "fednoil-plus")
    options = "--device=cpu --rounds=3 --epochs=1 --samples=60 --width=2 --runs=2 --repeat=1"
    monkeypatch.setattr(sys, "argv", ["uneven.py", *options.split(), f"--json={found}"])
    status = script.main()
    alone, both = json.loads(found.read_text())["rows"]
    assert (alone["iid"]["steps"], both["iid"]["steps"]) == (12, 24)
    assert alone["ratio"] == pytest.approx(alone["non-iid"]["us_a_step"] / alone["iid"]["us_a_step"], abs=0.001)
    assert status == (alone["ratio"] > 1.2)


def test_a_case_of_many_clients_has_its_time_and_the_size_of_its_files(modules: dict[str, ModuleType]) -> None:
    """Nobody's record or checkpoint grows with clients that are silent; with scores everybody has evidence."""
    script, args = modules["many_clients"], argparse.Namespace(device="cpu", rounds=2)
    few, many, scored = (
        script.measured(*case, args) for case in ((10, 5, "uniform"), (40, 5, "uniform"), (40, 5, "score"))
    )
    assert many["checkpoint_kib"] == pytest.approx(few["checkpoint_kib"], rel=0.01)
    assert many["record_bytes"] == pytest.approx(few["record_bytes"], rel=0.05)
    assert scored["checkpoint_kib"] > 1.2 * many["checkpoint_kib"]
    assert min(row["round_s"] for row in (few, many, scored)) > 0
