"""The command line as a hostile user meets it: one line for whatever is wrong, and nothing created or changed."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import conftest
import numpy as np
import pytest
import torch
from conftest import fednoil, tiny_arrays
from PIL import Image
from rich.console import Console

from fednoil import __version__, runner
from fednoil.cli.reporters import Bars
from fednoil.config import load_config, preset_names
from fednoil.learners import LEARNERS
from fednoil.servers import SERVERS

COMMANDS = ["run", "presets", "methods", "data", "compare", "predict", "version"]
TINY = {
    "partition.clients": 4,
    "model.width": 2,
    "schedule.epochs": 1,
    "train.rounds": 3,
    "train.batch_size": 8,
    "run.device": "cpu",
}


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(*args: object) -> str:
    """The one line of a command that must fail with status 2 and leave the current folder as it was."""
    before = tree(Path())
    err = conftest.refused(*args)
    assert tree(Path()) == before
    return err


def sets(**more: object) -> list[str]:
    """A preset and `--set` for the tiny experiment; `section__key=value` changes it."""
    values = {**TINY, **{key.replace("__", "."): value for key, value in more.items()}}
    return ["demo/fedavg", *(part for key, value in values.items() for part in ("--set", f"{key}={value}"))]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder: the default place of results is below it, and so is a user's own code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def finished(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert fednoil("run", *sets(data__name=f"npz:{tiny_npz}"), "--out", out, "-q") == (0, "", "")
    return out


def test_no_command_shows_the_help() -> None:
    status, out, err = fednoil()
    assert (status, err) == (2, "")
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, flag: str) -> None:
    status, out, err = fednoil(command, flag)
    assert (status, err) == (0, "")
    assert out.startswith("Usage: ")
    assert f" {command} [OPTIONS]" in out


def test_help_explains_arguments_and_defaults() -> None:
    """Typer and click have lost one or the other between two of their versions."""
    assert re.search(r"RUN\.\.\. +Run folders, folders of run folders", fednoil("report", "--help")[1])
    text = fednoil("reproduce", "--help")[1]
    assert re.search(r"GOAL +table1, table2", text)
    assert "[default: paper]" in text
    assert "\\[" not in text


def test_help_of_run_names_every_option() -> None:
    out = fednoil("run", "--help")[1]
    options = "--set --data-dir --out --seed --device --resume --force --quiet --json"
    assert all(option in out for option in options.split())


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("--bogus", ["--bogus"]),
        ("bogus", ["bogus"]),
        ("run --bogus", ["--bogus"]),
        ("run --seed abc", ["run.seed = 'abc'", "integer"]),
        ("run --seed -1", ["run.seed = '-1'", "greater than or equal to 0"]),
        ("run --seed", ["--seed"]),
        ("run --out", ["--out"]),
        ("run --resume --force --out x", ["--resume and --force"]),
        ("run --quiet --json", ["--quiet and --json"]),
        ("run --device tpu", ["run.device = 'tpu'", "'auto', 'cpu' or 'cuda'"]),
        ("run demo extra", ["extra"]),
        ("run dmeo", ["unknown preset 'dmeo'", "did you mean 'demo'"]),
        ("run paper/cifar10/iid/symmetric-high/fedagv", ["unknown method 'fedagv'", "did you mean 'fedavg'"]),
        ("run paper/cifar11/iid/symmetric-high/fedavg", ["unknown dataset 'cifar11'", "did you mean 'cifar10'"]),
        ("run paper/cifar10/iid", ["unknown preset 'paper/cifar10/iid'"]),
        ("run missing.toml", ["cannot read missing.toml"]),
        ("run --set train.rounds", ["--set train.rounds", "section.key=value"]),
        ("run --data-dir nowhere --set data.name=cifar10", ["nowhere", "does not exist"]),
        ("compare", ["RUN"]),
        ("compare nowhere", ["nowhere is not a run folder"]),
        ("predict", ["MODEL"]),
        ("predict m.safetensors", ["IMAGE"]),
        ("predict m.safetensors a.png", ["m.safetensors", "no such file"]),
        ("presets --jsno", ["--jsno"]),
    ],
)
def test_wrong_usage(args: str, parts: list[str]) -> None:
    line = refused(*args.split())
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("train.roundz=5", ["unknown key 'train.roundz'", "did you mean 'rounds'"]),
        ("trian.rounds=5", ["unknown section 'trian'", "did you mean 'train'"]),
        ("server.mu=1", ["unknown key 'server.mu'"]),
        ("train.lr=-1", ["train.lr = -1", "greater than 0"]),
        ("train.lr=0", ["train.lr = 0"]),
        ("train.lr=nan", ["train.lr = nan", "finite"]),
        ("train.lr=inf", ["train.lr = inf", "finite"]),
        ("train.lr=fast\nand\nloose", ["train.lr = 'fast", "valid number"]),
        ("train.lr=", ["train.lr = ''"]),
        ("train.rounds=0", ["train.rounds = 0", "greater than or equal to 1"]),
        ("train.rounds=1.5", ["train.rounds = 1.5", "integer"]),
        ("train.rounds=[1]", ["train.rounds = [1]", "integer"]),
        ("train.momentum=1", ["train.momentum = 1", "less than 1"]),
        ("train.weight_decay=-0.1", ["train.weight_decay = -0.1"]),
        ("train.batch_size=1", ["train.batch_size = 1", "greater than or equal to 2"]),
        ("run.checkpoint_every=0", ["run.checkpoint_every = 0"]),
        ("server.client_fraction=0", ["server.client_fraction = 0", "greater than 0"]),
        ("server.client_fraction=1.5", ["server.client_fraction = 1.5", "less than or equal to 1"]),
        ("server.name=fedagv", ["server.name = 'fedagv'", "did you mean 'fedavg'"]),
        ("server.name=3", ["server.name = 3"]),
        ("learner.name=fednoli", ["learner.name = 'fednoli'", "did you mean 'fednoil'"]),
        ("schedule.name=linear", ["schedule.name = 'linear'", "constant, cosine, logarithm"]),
        ("schedule.epochs=0", ["schedule.epochs = 0"]),
        ("schedule.t_max=5", ["unknown key 'schedule.t_max'"]),
        ("partition.clients=0", ["partition.clients = 0"]),
        ("partition.beta=0", ["partition.beta = 0"]),
        ("partition.kind=random", ["partition.kind = 'random'", "'iid', 'dirichlet', 'quantity' or 'mixture'"]),
        ("noise.kind=gauss", ["noise.kind = 'gauss'"]),
        ("noise.mode=medium", ["noise.mode = 'medium'", "'high' or 'low'"]),
        ("noise.ratios=[0.5, 1.0]", ["noise.ratios.1 = 1.0", "less than 1"]),
        ("noise.ratios=[-0.1]", ["noise.ratios.0 = -0.1"]),
        ("noise.ratios=[]", ["noise.ratios = []"]),
        ("noise.ratios=0.5", ["noise.ratios = 0.5"]),
        ("noise.pair_map=none", ["noise.pair_map = 'none'", "'per_client', 'per_group' or 'shared'"]),
        ("noise.kind=manifest", ["noise.manifest"]),
        ("noise.manifest=a.parquet", ["noise.manifest"]),
        ("model.width=0", ["model.width = 0"]),
        ("model.name=cnm", ["model.name = 'cnm'", "did you mean 'cnn'"]),
        ("data.name=cifar11", ["data.name = 'cifar11'", "did you mean 'cifar10'"]),
        ("data.name=3", ["data.name = 3", "string"]),
        ("data.name=npz:", ["data.name = 'npz:'"]),
        ("data.mean=[0.1, 0.2]", ["data.mean", "2 numbers"]),
        ("data.std=[0]", ["data.std.0 = 0"]),
    ],
)
def test_wrong_values(setting: str, parts: list[str]) -> None:
    line = refused("run", "demo/fedavg", "--set", setting)
    assert all(part in line for part in parts), line


def test_wrong_schedules() -> None:
    base = ("run", "--set", "schedule.name=cosine", "--set")
    assert "schedule.r_min = 1" in refused(*base, "schedule.r_min=1")
    line = refused(*base, "schedule.t_min=9", "--set", "schedule.t_max=8")
    assert "schedule.t_min = 9 must not exceed schedule.t_max = 8" in line


@pytest.mark.parametrize("content", [b"[train\nlr = 1", b"lr = 1", b"\xff\xfe\x00", b"[trian]\n", b"[train]\nlr = -1"])
def test_wrong_files(content: bytes) -> None:
    Path("mine.toml").write_bytes(content)
    refused("run", "mine.toml")


def test_a_preset_is_not_mistaken_for_a_file_of_its_name() -> None:
    Path("demo").write_text("not TOML")
    assert "train.lr" in refused("run", "demo", "--set", "train.lr=-1")


def test_cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "run.device = 'cuda'" in refused("run", "--device", "cuda")


def changed(**changes: Any) -> dict[str, Any]:
    return {**tiny_arrays(), **changes}


ARRAYS = tiny_arrays()
BAD_ARRAYS = {
    "x_test": {k: v for k, v in ARRAYS.items() if k != "x_test"},
    "shape (80, 64)": changed(x_train=ARRAYS["x_train"].reshape(80, 64)),
    "float64": changed(x_train=ARRAYS["x_train"] / 255.0),
    "test images are": changed(x_test=ARRAYS["x_test"][:, :7]),
    "label 9": changed(y_test=np.where(ARRAYS["y_test"] == 3, 9, ARRAYS["y_test"])),
    "label -1": changed(y_train=ARRAYS["y_train"] - 1),
    "y_train": changed(y_train=np.array([str(y) for y in ARRAYS["y_train"]], dtype=object)),
    "class 2 has no training image": changed(y_train=np.where(ARRAYS["y_train"] == 2, 3, ARRAYS["y_train"])),
    "80 images and 79 labels": changed(y_train=ARRAYS["y_train"][:79]),
    "no images": changed(x_test=ARRAYS["x_test"][:0], y_test=ARRAYS["y_test"][:0]),
    "only one class": changed(y_train=0 * ARRAYS["y_train"], y_test=0 * ARRAYS["y_test"]),
}


@pytest.mark.parametrize("told", BAD_ARRAYS)
def test_wrong_arrays(told: str) -> None:
    np.savez("mine.npz", allow_pickle=True, **BAD_ARRAYS[told])
    line = refused("run", *sets(data__name="npz:mine.npz"))
    assert "mine.npz" in line
    assert told == "y_train" or told in line, line


def test_missing_truncated_and_corrupt_files(tiny_npz: Path) -> None:
    for name in ("npz:mine.npz", "folder:mine", "parquet:mine"):
        assert name in refused("run", *sets(data__name=name))
    whole = tiny_npz.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content in (b"", b"hello", whole[: len(whole) // 2], bytes(flipped)):
        Path("mine.npz").write_bytes(content)
        assert "mine.npz" in refused("run", *sets(data__name="npz:mine.npz"))
    assert "'cifar10' was not found" in refused("run", "--data-dir", ".", *sets(data__name="cifar10"))


class Hostile:
    """A pickle that leaves a trace when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trace",)


def test_hostile_pickles_are_refused_and_never_run() -> None:
    np.savez("mine.npz", allow_pickle=True, **changed(class_names=np.array([Hostile()] * 4, dtype=object)))
    assert "mine.npz" in refused("run", *sets(data__name="npz:mine.npz"))
    batches = Path("cifar-10-batches-py")
    batches.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (batches / name).write_bytes(pickle.dumps({"data": Hostile()}, protocol=2))
    assert "is refused" in refused("run", "--data-dir", ".", *sets(data__name="cifar10"))
    assert not Path("trace").exists()


def test_wrong_pictures() -> None:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            folder = Path("pets", split, name)
            folder.mkdir(parents=True)
            Image.new("L", (8, 8)).save(folder / "1.png")
    bad = Path("pets/train/dog/2.png")
    Image.new("L", (8, 9)).save(bad)
    assert "8×9" in refused("run", *sets(data__name="folder:pets"))
    bad.write_text("no picture")
    assert str(bad) in refused("run", *sets(data__name="folder:pets"))
    bad.unlink()
    assert "partition.clients = 4" in refused("run", *sets(data__name="folder:pets"))
    Path("pets/test/dog/1.png").unlink()
    Path("pets/train/dog/1.png").unlink()
    assert "dog" in refused("run", *sets(data__name="folder:pets"))


def test_too_few_samples(tiny_npz: Path) -> None:
    name = f"npz:{tiny_npz}"
    assert "81" in refused("run", *sets(data__name=name, partition__clients=81))
    assert "samples_per_client = 21" in refused("run", *sets(data__name=name, partition__samples_per_client=21))
    assert "min_size" in refused("run", *sets(data__name=name, partition__kind="dirichlet", partition__min_size=21))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def make(image_shape, num_classes): return None", "returned NoneType"),
        ("def make(image_shape, num_classes): return 1 / 0", "ZeroDivisionError"),
        ("def make(): pass", "TypeError"),
        ("make = 3", "not callable"),
        ("other = 3", "has no 'make'"),
        ("raise RuntimeError('on\\nimport')", "on\\nimport"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import torch\ndef make(image_shape, num_classes): return torch.nn.Flatten()", "no parameters"),
        ("import torch\ndef make(image_shape, num_classes): return torch.nn.Linear(8, 3)", "returns shape"),
        ("import torch\ndef make(image_shape, num_classes): return torch.nn.Linear(7, 4)", "fails on images"),
    ],
)
def test_wrong_model_code(code: str, told: str, tiny_npz: Path) -> None:
    Path("own_model.py").write_text(code)
    sys.modules.pop("own_model", None)
    args = ["demo/fedavg", "--set", f"data.name=npz:{tiny_npz}", "--set", "model.name=own_model:make"]
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        line = refused("run", *args)
    finally:
        sys.dont_write_bytecode = before
    assert "model.name = 'own_model:make'" in line
    assert told in line, line


def test_missing_model_code() -> None:
    for name in ("nowhere:make", ":make", "nowhere:"):
        assert f"model.name = '{name}'" in refused("run", "--set", f"model.name={name}")


def test_wrong_manifests(finished: Path, tiny_npz: Path) -> None:
    noise = {"noise__kind": "manifest", "noise__manifest": "mine.parquet"}
    assert "no such file" in refused("run", *sets(data__name=f"npz:{tiny_npz}", **noise))
    Path("mine.parquet").write_text("hello")
    assert "mine.parquet" in refused("run", *sets(data__name=f"npz:{tiny_npz}", **noise))
    noise["noise__manifest"] = str(finished / "noise.parquet")
    assert "hash" in refused("run", *sets(**noise))  # the mini data set is other data


def test_results_cannot_go_where_they_cannot_be(tiny_npz: Path) -> None:
    Path("file").touch()
    args = sets(data__name=f"npz:{tiny_npz}")
    assert "--out file is a file" in refused("run", *args, "--out", "file")
    assert "cannot write to file/below" in refused("run", *args, "--out", "file/below")
    refused("run", *args, "--out", "x" * 999)


def test_divergence_is_told_and_what_was_recorded_stays(tiny_npz: Path) -> None:
    args = sets(data__name=f"npz:{tiny_npz}", train__lr=1e30)
    status, out, err = fednoil("run", *args, "--quiet", "--out", "r")
    assert (status, out) == (2, "")
    assert err.startswith("fednoil: training diverged")
    assert "lower train.lr (now 1e+30)" in err
    assert err.count("\n") == 1
    assert set(tree(Path("r"))) >= {"config.toml", "environment.json", "noise.parquet"}
    assert not Path("r/.lock").exists()


def test_presets() -> None:
    names = preset_names()
    status, out, _ = fednoil("presets")
    assert status == 0
    assert len(out.splitlines()) < 12
    shown = set(out.replace(",", " ").split())
    assert shown >= {part for name in names for part in name.split("/") if not name.startswith("demo")} - {
        "paper",
        "small",
    }
    assert shown >= {name for name in names if name.startswith("demo")}
    assert f"{len([n for n in names if n.startswith('paper/')])} in all" in out
    assert fednoil("presets", "*") == (0, "\n".join(names) + "\n", "")
    status, out, _ = fednoil("presets", "--json")
    listed = json.loads(out)
    assert (status, list(listed)) == (0, names)
    for values in listed.values():
        load_config(values)
    cells = [f"paper/{d}/iid/pair-high-shared/fedprox" for d in ("fashion-mnist", "cifar10", "cifar100")]
    assert set(names) >= {"demo", *cells}
    assert fednoil("presets", "cifar100/iid/clean/fedp")[1] == "paper/cifar100/iid/clean/fedprox\n"
    _, out, _ = fednoil("presets", "cifar10/*/pair-low/krum")
    settings = ("iid", "non-iid", "100-clients", "imbalanced")
    methods = ("dividemix", "josrc")
    assert out.split() == [f"paper/cifar10/{s}/pair-low/krum+{m}" for s in settings for m in methods]
    assert "no preset's name contains 'krun'" in refused("presets", "krun")


def test_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.loads(fednoil("methods", "--json")[1])
    named = {(row["side"], row["name"]) for row in rows}
    assert named == {
        *(("server", name) for name in SERVERS),
        *(("learner", name) for name in LEARNERS),
        *(("schedule", name) for name in ("constant", "cosine", "logarithm")),
    }
    assert all(row["title"] for row in rows)
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = fednoil("methods")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert all(line == line.rstrip() for line in out.splitlines())
    words = " ".join(out.split())
    for row in rows:
        assert f" {row['name']} {row['title']}" in words
        assert "paper" not in row or f"{row['paper']}; keeps {row['keeps']}; sends {row['sends']}; cost" in words


def test_data(tmp_path: Path) -> None:
    status, out, err = fednoil("data", "--json", "--data-dir", tmp_path)
    rows = {row["name"]: row for row in json.loads(out)}
    assert (status, err) == (0, "")
    own = {"folder:PATH", "npz:FILE", "parquet:PATH"}
    assert set(rows) == {"fashion-mnist-mini", "fashion-mnist", "cifar10", "cifar100"} | own
    assert rows["fashion-mnist-mini"]["found"] is True
    assert rows["cifar10"]["found"] is False
    assert all(row["how"] for row in rows.values())
    status, out, err = fednoil("data", "--data-dir", tmp_path)
    assert (status, err) == (0, "")
    assert all(name in out for name in rows)


def test_compare(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    (row,) = json.loads(fednoil("compare", "--json", finished)[1])
    assert row["run"] == str(finished)
    assert (row["method"], row["rounds"], row["finished"]) == ("fedavg", 3, True)
    for key in ("final_accuracy", "best_accuracy", "last10_accuracy", "converged", "train_batches", "wall_s"):
        assert row[key] == summary[key]
    status, out, err = fednoil("compare", finished, finished)
    assert (status, err) == (0, "")
    assert out.count(f"{summary['final_accuracy']:.2f}") >= 2


def test_compare_of_an_unfinished_run_and_of_damaged_ones(finished: Path) -> None:
    copy = Path("[b]copy")
    copy.mkdir()
    for name in ("config.toml", "rounds.jsonl"):
        (copy / name).write_bytes((finished / name).read_bytes())
    (row,) = json.loads(fednoil("compare", "--json", copy)[1])
    assert (row["finished"], row["rounds"]) == (False, 3)
    assert "[b]copy" in fednoil("compare", copy)[1]
    (copy / "rounds.jsonl").write_text('{"round": 1}\n')
    assert "rounds.jsonl is damaged" in refused("compare", copy)
    (copy / "rounds.jsonl").write_text("")
    assert "no finished round" in refused("compare", copy)
    for content in ("{", "[]", "{}"):
        (copy / "summary.json").write_text(content)
        assert "summary.json" in refused("compare", finished, copy)


def test_version() -> None:
    assert fednoil("version") == (0, f"{__version__}\n", "")


def test_json_is_one_object_a_round_and_quiet_is_quiet(tiny_npz: Path) -> None:
    args = ["run", *sets(data__name=f"npz:{tiny_npz}")]
    status, out, err = fednoil(*args, "--json", "--out", "r")
    assert (status, err) == (0, "")
    assert out == Path("r/rounds.jsonl").read_text()
    assert [json.loads(line)["round"] for line in out.splitlines()] == [1, 2, 3]
    assert fednoil(*args, "--quiet", "--out", "q") == (0, "", "")
    assert fednoil(*args, "--json", "--resume", "--out", "r") == (0, "", "")


def test_plain_lines_elsewhere_than_on_a_terminal(tiny_npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")  # a log is not folded, however narrow it is shown
    args = sets(data__name=f"npz:{tiny_npz}", train__rounds=2)
    status, out, err = fednoil("run", *args)
    assert (status, err) == (0, "")
    head, *rounds, end = out.splitlines()
    assert head.startswith("fedavg × erm on")
    assert [line.split("  ")[0] for line in rounds] == ["round 1/2", "round 2/2"]
    assert all("accuracy" in line and "  1 epoch  " in line and line.endswith(" s") for line in rounds)
    assert end.endswith("results in runs/demo-fedavg")
    assert "\x1b" not in out


def test_bars_on_a_terminal(tiny_npz: Path) -> None:
    screen = io.StringIO()
    bars = Bars(Console(file=screen, force_terminal=True, width=150))
    values = {"data": {"name": f"npz:{tiny_npz}"}, "run": {"device": "cpu"}}
    values |= {"partition": {"clients": 4}, "model": {"width": 2}, "schedule": {"epochs": 1}, "train": {"rounds": 2}}
    summary = runner.run(load_config(values), Path("r"), bars)
    assert "rounds" in screen.getvalue()
    assert "clients' work" in screen.getvalue()
    assert f"final accuracy {summary['final_accuracy']:.2f} %" in screen.getvalue()


def process(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fednoil", *args]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **options)


def test_a_real_process_ends_the_same_way() -> None:
    done = process("run", "--set", "train.lr=-1", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fednoil: train.lr = -1: must be greater than 0\n"
    assert tree(Path()) == {}


def test_a_reader_that_leaves_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = process("presets", stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_terminal_without_unicode_is_no_error(tiny_npz: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    args = sets(data__name=f"npz:{tiny_npz}", train__rounds=1)
    done = process("run", *args, stdout=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fedavg \\xd7 erm on")
