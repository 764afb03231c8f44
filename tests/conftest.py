"""A tiny experiment that every test can afford: 8×8 images of four classes, four clients."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsing import CHROMIUM, FLAGS
from PIL import Image
from stopped_runs import ROUNDS, Stop

from fednoil.cli import main
from fednoil.config import Config, load_config, read_toml
from fednoil.executors.optimiser import Optimiser, Shares
from fednoil.experiment import Experiment, make_experiment
from fednoil.models.network import Network
from fednoil.runner import Silent, run

CLASSES = 4

torch.set_num_threads(1)  # tiny tensors: two threads only wait for each other, and far more on a busy machine


def tiny_arrays(train: int = 80, test: int = 40) -> dict[str, np.ndarray]:
    """Noise images with a brightness that shows the class, however they are flipped or shifted."""
    rng = np.random.default_rng(0)

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % CLASSES
        images = rng.integers(0, 60, size=(count, 8, 8)) + 60 * labels[:, None, None]
        return images.astype(np.uint8), labels.astype(np.int64)

    (x_train, y_train), (x_test, y_test) = split(train), split(test)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def write_folder(root: Path, arrays: dict[str, np.ndarray], names: tuple[str, ...]) -> Path:
    """The arrays as pictures, train/<class>/ and test/<class>/."""
    for split in ("train", "test"):
        for number, (image, label) in enumerate(zip(arrays[f"x_{split}"], arrays[f"y_{split}"], strict=True)):
            folder = root / split / names[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"bild-{number:03d}-ä.png")
    return root


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, **tiny_arrays())
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the user's cache and data folders."""
    monkeypatch.setenv("FEDNOIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("FEDNOIL_DATA", raising=False)


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is flushed to disk: no test cuts the power, and flushing is a tenth of the time of all tests. A test of
    what is flushed and when has its own `os.fsync`."""
    monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        flags = [f"--{flag}" for flag in FLAGS]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def values(tiny_npz: Path) -> dict[str, Any]:
    """Sections of the tiny experiment; a test changes its own copy."""
    return copy.deepcopy(
        {
            "data": {"name": f"npz:{tiny_npz}"},
            "partition": {"clients": 4},
            "noise": {"kind": "symmetric", "ratios": [0.5, 0.6, 0.7, 0.8]},
            "model": {"name": "cnn", "width": 2},
            "server": {"name": "fedavg"},
            "sampling": {"fraction": 0.5},
            "schedule": {"name": "constant", "epochs": 2},
            "train": {"rounds": 4, "batch_size": 8},
            "run": {"device": "cpu", "checkpoint_every": 2},
        }
    )


@pytest.fixture
def fednoil_values(values: dict[str, Any]) -> dict[str, Any]:
    """The tiny experiment with FedNoiL."""
    values["sampling"] |= {"name": "score"}
    values["learner"] = {"name": "fednoil", "frac": 0.35}
    return values


@pytest.fixture
def federated(values: dict[str, Any]) -> dict[str, Any]:
    """The tiny experiment with scored clients, ready for a federation that neither waits nor audits at the end."""
    values["sampling"]["name"] = "score"
    values["federation"] = {"wait": 0.5, "timeout": 0.3, "audit": False}
    return values


@pytest.fixture
def config(values: dict[str, Any]) -> Config:
    return load_config(values)


@pytest.fixture
def experiment(config: Config) -> Experiment:
    return make_experiment(config)


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Bit for bit the same tensors."""
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def fednoil(*args: object) -> tuple[int, str, str]:
    """The command in this process: exit status, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["fednoil", *map(str, args)])
        return main._run_app(), out.getvalue(), err.getvalue()


def done(*args: object) -> str:
    """What a command prints that must succeed."""
    status, out, err = fednoil(*args)
    assert (status, err) == (0, "")
    return out


def refused(*args: object) -> str:
    """The one line of a command that must fail with status 2."""
    status, out, err = fednoil(*args)
    assert (status, out) == (2, ""), err
    assert err.startswith("fednoil: ")
    assert err.count("\n") == 1
    return err


def resume(out: Path, *more: object) -> None:
    """Go on with a run to its end, without a word."""
    assert fednoil("run", *more, "--resume", "--out", out, "--quiet") == (0, "", "")


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
        [sampling]
        fraction = 0.5
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


@pytest.fixture
def stopped(toml: Path, tmp_path: Path) -> Path:
    """A run stopped after round 3 of 4, which has a checkpoint."""
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        run(load_config(read_toml(toml)), out, Stop(3))
    return out


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures with a class called Röntgen, and a run on it with FedNoiL."""
    root = tmp_path_factory.mktemp("audit")
    names = ("bone", "lung", "Röntgen", "skin")
    write_folder(root / "photos", tiny_arrays(), names)
    values: dict[str, Any] = {
        "data": {"name": f"folder:{root / 'photos'}"},
        "partition": {"clients": 4},
        "noise": {"kind": "symmetric", "ratios": [0.2, 0.4]},
        "model": {"name": "cnn", "width": 2},
        "sampling": {"name": "score", "fraction": 0.5},
        "learner": {"name": "fednoil"},
        "schedule": {"name": "constant", "epochs": 4},
        "train": {"rounds": 6, "batch_size": 8},
        "run": {"device": "cpu"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDNOIL_CACHE", str(root / "cache"))
        run(load_config(values), root / "run", Silent())
    return root


@pytest.fixture
def site(trained: Path, tmp_path: Path) -> Path:
    """A copy of the pictures that a test may spoil."""
    shutil.copytree(trained / "photos", tmp_path / "site")
    return tmp_path / "site"


def sgd_step(net: Network, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
    """One step of SGD on a network by its gradient."""
    optimiser = Optimiser(lr=lr, momentum=momentum, weight_decay=weight_decay)
    net.memory = net.memory or optimiser.memory(net.params)
    optimiser.step(net.params, net.grads, net.memory, Shares())
