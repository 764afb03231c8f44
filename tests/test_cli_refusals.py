"""The command line with hostile input: one line for each error, and nothing created or changed."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import fednoil, tiny_arrays
from test_cli import _own_folder, refused, sets, tree  # noqa: F401

from fednoil import rounds
from fednoil.errors import Diverged
from fednoil.servers.base import Server, Update


def test_data_or_a_run_in_a_presets_place_are_answered_with_the_command_to_use() -> None:
    Path("photos/cat").mkdir(parents=True)
    Path("list.csv").write_text("path,label\n")
    Path("done").mkdir()
    Path("done/config.toml").write_text("")
    assert "'photos' is not a preset; to use it as data: fednoil run demo --set data.name=folder:photos" in refused(
        "run", "photos"
    )
    assert "use it as data: fednoil run demo --set data.name=csv:list.csv, or table:list.csv if its" in refused(
        "run", "list.csv"
    )
    assert "done is the folder of a run, not a preset; to continue it: fednoil run --resume --out done" in refused(
        "run", "done"
    )


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("--bogus", ["--bogus"]),
        ("bogus", ["bogus"]),
        ("run --bogus", ["--bogus"]),
        ("run --seed abc", ["run.seed = 'abc': must be a whole number"]),
        ("run --seed -1", ["run.seed = '-1'", "greater than or equal to 0"]),
        ("run --seed", ["--seed"]),
        ("run --out", ["--out"]),
        ("run --resume --force --out x", ["--resume and --force"]),
        ("run --quiet --json", ["--quiet and --json"]),
        ("run --device tpu", ["run.device = 'tpu'", "'auto', 'cpu', 'cuda' or 'mps'"]),
        ("run demo extra", ["extra"]),
        ("run dmeo", ["unknown preset 'dmeo'", "did you mean 'demo'"]),
        ("run paper/cifar10/iid/symmetric-high/fedagv", ["unknown method 'fedagv'", "did you mean 'fedavg'"]),
        ("run paper/cifar10/iid/pair-high/Krum+DMix", ["unknown method 'Krum+DMix'", "did you mean 'krum+dividemix'"]),
        ("run paper/cifar11/iid/symmetric-high/fedavg", ["unknown dataset 'cifar11'", "did you mean 'cifar10'"]),
        ("run paper/cifar10/iid", ["unknown preset 'paper/cifar10/iid'"]),
        ("run folder:photos", ["'folder:photos' is not a preset", "--set data.name=folder:photos"]),
        ("run --epochs 5", ["No such option '--epochs'", "--set schedule.name=constant --set schedule.epochs=VALUE"]),
        ("run --batch-size 8", ["No such option '--batch-size'", "--set train.batch_size=VALUE"]),
        ("run --learner erm", ["No such option '--learner'", "--set learner.name=VALUE"]),
        ("rn", ["No such command 'rn'. Did you mean 'run'?\n"]),
        ("run missing.toml", ["cannot read missing.toml"]),
        ("run --set train.rounds", ["--set train.rounds", "section.key=value"]),
        ("run --data-dir nowhere --set data.name=cifar10", ["nowhere", "does not exist"]),
        ("compare", ["RUN"]),
        ("compare nowhere", ["nowhere is not a run folder"]),
        ("predict", ["MODEL"]),
        ("predict m.safetensors", ["FILE"]),
        ("predict m.safetensors a.png", ["m.safetensors", "no such file"]),
        ("federation audit nosuch", ["nosuch is not a run folder; give one"]),
        ("predict m.safetensors a.png --device gpu", ["--device 'gpu' is unknown", "auto, cpu or cuda"]),
        ("predict m.safetensors a.png --device=", ["--device '' is unknown", "auto, cpu or cuda"]),
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
        ("train.epochs=5", ["unknown key 'train.epochs'", "; it is a key of schedule\n"]),
        ("server.mu=1", ["unknown key 'server.mu'", "; it is a key of fedprox"]),
        ("train.lr=-1", ["train.lr = -1", "greater than 0"]),
        ("train.lr=0", ["train.lr = 0"]),
        ("train.lr=nan", ["train.lr = nan", "finite"]),
        ("train.lr=fast\nand\nloose", ["train.lr = 'fast", "must be a number"]),
        ("train.lr=", ["train.lr = ''"]),
        ("noise.ratios=0.5", ["noise.ratios = 0.5", "must be a list: [0.5]"]),
        ("noise.ratios=0.5,0.7", ["noise.ratios = '0.5,0.7'", "must be a list: [0.5,0.7]"]),
        ("noise.ratios=[0.3,", ["noise.ratios = '[0.3,'", "must be a whole list, such as [0.3,0.6]"]),
        ("train.rounds=0", ["train.rounds = 0", "greater than or equal to 1"]),
        ("train.rounds=1.5", ["train.rounds = 1.5: must be a whole number"]),
        ("train.rounds=abc", ["train.rounds = 'abc': must be a whole number"]),
        ("train.momentum=1", ["train.momentum = 1", "less than 1"]),
        ("train.weight_decay=-0.1", ["train.weight_decay = -0.1"]),
        ("train.pad=28", ["train.pad = 28 moves images of 28 pixels out of view; give less, such as 3"]),
        ("train.batch_size=1", ["train.batch_size = 1", "greater than or equal to 2"]),
        ("train.batch_size=1000000000", ["train.batch_size = 1000000000", "less than or equal to 65536"]),
        ("run.checkpoint_every=0", ["run.checkpoint_every = 0"]),
        ("sampling.fraction=1.5", ["sampling.fraction = 1.5", "less than or equal to 1"]),
        ("server.name=fedagv", ["server.name = 'fedagv'", "did you mean 'fedavg'"]),
        ("server.name=3", ["server.name = 3"]),
        ("learner.name=fednoli", ["learner.name = 'fednoli'", "did you mean 'fednoil'"]),
        ("schedule.epochs=0", ["schedule.epochs = 0"]),
        ("noise.mode=high", ["'noise.mode' is now called noise.ratios"]),
        ("noise.levels=group", ["noise.levels = 'group'", "did you mean 'groups'"]),
        ("noise.ratios=[0.5, 1.0]", ["value 2 of noise.ratios = 1.0: must be less than 1"]),
        ("noise.ratios=[]", ["noise.ratios = []: must have 1 or more values"]),
        ("noise.manifest=a.parquet", ["'noise.manifest' is now called noise.file"]),
        ("model.width=0", ["model.width = 0"]),
        ("model.width=100000000", ["model.width = 100000000", "less than or equal to 4096"]),
        ("model.name=cnm", ["model.name = 'cnm'", "did you mean 'cnn'"]),
        ("data.name=3", ["data.name = 3", "must be a name"]),
        ("data.normalisation=5", ["data.normalisation = 5", "two lists"]),
        ("data.normalisation=[[0.5], [0]]", ["value 1 of value 2 of data.normalisation = 0"]),
    ],
)
def test_wrong_values(setting: str, parts: list[str]) -> None:
    line = refused("run", "demo/fedavg", "--set", setting)
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ("server.name=krum server.bad=-1", ["server.bad = -1", "greater than or equal to 0"]),
        ("server.name=krum server.f=2", ["'server.f' is now called server.bad, a share of the updates"]),
        (
            "server.name=cfl server.eps1=0.4",
            ["unknown key 'server.eps1'", "; it is a constant of cfl, which a class of"],
        ),
        (
            "learner.name=sce learner.alpha=1",
            ["unknown key 'learner.alpha'", "; it is a constant of josrc, fedelc, sce,"],
        ),
        ("server.about=1", ["unknown key 'server.about'; known in server: name, average, limits\n"]),
        ("learner.augment=none", ["'learner.augment' is now called train.pad and train.flip"]),
        ("partition.kind=dirichlet partition.cap=true", ["'partition.cap' is now called partition.kind: capped"]),
        ("partition.file=a.csv", ["'partition.file' is now called partition.kind: annotator:FILE"]),
        ("server.name=fedprox server.mu=nan", ["server.mu = nan", "finite"]),
        ("server.name=fedprox server.mu=-1", ["server.mu = -1"]),
        ("server.name=trimmed_mean server.bad=0.5", ["server.bad = 0.5", "less than 0.5"]),
        ("server.name=trimmed_mean server.trim=0.1", ["'server.trim' is now called server.bad"]),
        ("server.name=centralized sampling.name=score", ["sampling.name = 'score'", "'uniform'"]),
        ("learner.name=dividemix learner.ramp=0", ["learner.ramp = 0", "greater than or equal to 1"]),
        ("learner.name=dividemix learner.frac=0.5", ["unknown key 'learner.frac'"]),
        ("learner.name=dividemix learner.fracs=0.5", ["unknown key 'learner.fracs'; known in learner: name"]),
        ("learner.name=fednoil learner.mix=1", ["unknown key 'learner.mix'", "; it is a key of fednoil-plus"]),
        ("learner.name=fednoil learner.ssl=false", ["'learner.ssl' is now called learner.weight, and 0 is without"]),
        (
            "learner.lambda_u=1",
            ["is now called learner.weight; erm doesn't have it: it is a key of fednoil, "],
        ),
        ("partition.presence=0.5", ["is now called partition.classes; iid doesn't have it: it is a key of bernoulli"]),
        ("learner.name=feddiv learner.xi=2", ["learner.xi = 2", "less than or equal to 1"]),
        (
            "learner.name=fednoil learner.local_sampling=uniform",
            ["is now called learner.name, and uniform is fednoil.study"],
        ),
        ("learner.name=coteaching learner.frac=0", ["learner.frac = 0", "greater than 0"]),
        ("run.executor=sequential", ["'run.executor' is now called run.parallel, and 0 is the sequential one"]),
        ("run.parallel=-1", ["run.parallel = -1", "greater than or equal to 0"]),
        ("run.precision=float16", ["run.precision = 'float16'", "'auto', 'float32', 'tf32' or 'bfloat16'"]),
        ("run.deterministic=perhaps", ["run.deterministic = 'perhaps': must be true or false"]),
    ],
)
def test_wrong_values_of_methods_and_executors(settings: str, parts: list[str]) -> None:
    line = refused("run", "demo/fedavg", *(part for setting in settings.split() for part in ("--set", setting)))
    assert all(part in line for part in parts), line


def test_wrong_schedules() -> None:
    base = ("run", "--set", "schedule.name=cosine", "--set")
    assert "schedule.r_min = 1" in refused(*base, "schedule.r_min=1")
    line = refused(*base, "schedule.t_min=9", "--set", "schedule.epochs=8")
    assert "schedule.t_min = 9 must not exceed schedule.epochs = 8" in line


@pytest.mark.parametrize("content", [b"[train\nlr = 1", b"lr = 1", b"\xff\xfe\x00", b"[trian]\n", b"[train]\nlr = -1"])
def test_wrong_files(content: bytes) -> None:
    Path("mine.toml").write_bytes(content)
    refused("run", "mine.toml")


def test_a_preset_is_not_mistaken_for_a_file_of_its_name() -> None:
    Path("demo").write_text("not TOML")
    assert "train.lr" in refused("run", "demo", "--set", "train.lr=-1")


def changed(**changes: Any) -> dict[str, Any]:
    return {**tiny_arrays(), **changes}


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


@pytest.mark.parametrize(
    ("code", "expected"),
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
def test_wrong_model_code(code: str, expected: str, tiny_npz: Path) -> None:
    Path("own_model.py").write_text(code)
    sys.modules.pop("own_model", None)
    args = ["demo/fedavg", "--set", f"data.name=npz:{tiny_npz}", "--set", "model.name=own_model:make"]
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        line = refused("run", *args)
    finally:
        sys.dont_write_bytecode = before
    assert "model.name = 'own_model:make'" in line
    assert expected in line, line


def test_missing_model_code() -> None:
    for name in ("nowhere:make", ":make", "nowhere:"):
        assert f"model.name = '{name}'" in refused("run", "--set", f"model.name={name}")


def test_wrong_manifests(reference: Path, tiny_npz: Path) -> None:
    noise = {"noise__kind": "manifest", "noise__file": "mine.parquet"}
    assert "no such file" in refused("run", *sets(data__name=f"npz:{tiny_npz}", **noise))
    Path("mine.parquet").write_text("hello")
    assert "mine.parquet" in refused("run", *sets(data__name=f"npz:{tiny_npz}", **noise))
    noise["noise__file"] = str(reference / "noise.parquet")
    assert "hash" in refused("run", *sets(**noise))  # the mini data set is other data


def test_results_cannot_go_where_they_cannot_be(tiny_npz: Path) -> None:
    Path("file").touch()
    args = sets(data__name=f"npz:{tiny_npz}")
    assert "--out file is a file" in refused("run", *args, "--out", "file")
    assert "cannot write to file/below" in refused("run", *args, "--out", "file/below")
    refused("run", *args, "--out", "x" * 999)


@pytest.mark.parametrize("command", ["audit", "compare"])
def test_a_folder_of_runs_is_reported_with_the_runs_in_it(command: str) -> None:
    for seed in range(7):
        Path(f"runs/try-{seed}").mkdir(parents=True)
        Path(f"runs/try-{seed}/config.toml").touch()
    expected = "runs is not a run folder but holds try-0, try-1, try-2, try-3, try-4 and 2 more; give the runs"
    assert f"{expected} themselves, as runs/try-0" in refused(command, "runs")


def test_divergence_is_reported_and_what_was_recorded_stays(tiny_npz: Path) -> None:
    args = sets(data__name=f"npz:{tiny_npz}", train__lr=1e30)
    status, out, err = fednoil("run", *args, "--quiet", "--out", "r")
    assert (status, out) == (2, "")
    assert err.startswith("fednoil: training diverged")
    assert err.endswith("; lower train.lr (now 1e+30) and start a new run: another --out, or --force\n")
    assert err.count("\n") == 1
    assert set(tree(Path("r"))) >= {"config.toml", "environment.json", "noise.parquet"}
    assert not Path("r/.lock").exists()
    noted = json.loads(Path("r/environment.json").read_text())["diverged"]
    assert (noted["after_round"], f"fednoil: {noted['reason']}\n") == (0, err)


def _no_numbers(_: Server, updates: Sequence[Update]) -> dict[str, torch.Tensor]:
    return {name: tensor * float("nan") for name, tensor in updates[0].tensors.items()}


def test_a_model_that_is_no_number_has_diverged(tiny_npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients' losses were still finite."""
    monkeypatch.setattr(Server, "combine", _no_numbers)
    status, _, err = fednoil("run", *sets(data__name=f"npz:{tiny_npz}"), "--quiet", "--out", "r")
    assert (status, err.startswith("fednoil: training diverged: the test loss is nan in round 1")) == (2, True), err
    assert refused("compare", "r") == "fednoil: r diverged in its first round; leave it out\n"


def test_divergence_after_a_round_says_that_its_checkpoint_is_kept(
    tiny_npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = rounds.play

    def played(experiment: Any, executor: Any, state: rounds.RunState, *others: Any) -> Any:
        if state.round_idx == 1:
            raise Diverged("training diverged: lower train.lr (now 0.1)")
        return play(experiment, executor, state, *others)

    monkeypatch.setattr(rounds, "play", played)
    status, _, err = fednoil("run", *sets(data__name=f"npz:{tiny_npz}"), "--quiet", "--out", "r")
    assert status == 2
    assert err.endswith("and start a new run: another --out, or --force; the last checkpoint is kept\n")
    assert Path("r/checkpoint/checkpoint.json").is_file()
