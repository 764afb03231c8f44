"""Classifying images with a model file and nothing else, and that such a file never decides what code is run."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import done, fednoil, refused, tiny_arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fednoil import predict
from fednoil.errors import UserError
from fednoil.predict import predict_files
from fednoil.records.model_file import LoadedModel, load_model

CLASSES = ["black", "dark [/x]", "light", "white"]


def train(folder: Path, *changes: str) -> Path:
    """Train on clean labels until it knows them; returns the model file, the data and the run being gone."""
    data = folder / "tiny.npz"
    np.savez(data, allow_pickle=False, **tiny_arrays(), class_names=np.array(CLASSES))
    settings = (
        f"data.name=npz:{data}",
        "partition.clients=2",
        "sampling.fraction=1",
        "schedule.epochs=10",
        "train.rounds=6",
        "train.batch_size=8",
        "run.device=cpu",
        *changes,
    )
    out = folder / "run"
    arguments = [f"--set={setting}" for setting in settings]
    assert fednoil("run", "demo/fedavg", *arguments, "--quiet", "--out", out) == (0, "", "")
    shutil.move(out / "model.safetensors", folder / "model.safetensors")
    shutil.rmtree(out)
    data.unlink()
    return folder / "model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("model"), "model.width=4")


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """One picture of each class, in order."""
    arrays = tiny_arrays()
    paths = []
    for label in range(4):
        paths.append(tmp_path / f"{label} [b].png")
        Image.fromarray(arrays["x_test"][label]).save(paths[-1])
    return paths


@pytest.fixture
def grey(tmp_path: Path) -> Path:
    path = tmp_path / "grey.png"
    Image.new("L", (8, 8), 100).save(path)
    return path


def test_model_file_alone_gives_the_right_names(
    model: Path, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.copy(model, "m.safetensors")
    out = done("predict", "m.safetensors", *images, "--json")
    rows = json.loads(out)
    assert [row["image"] for row in rows] == [str(p) for p in images]
    assert [row["class"] for row in rows] == CLASSES
    for row in rows:
        assert list(row["probabilities"]) == CLASSES
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert row["probability"] == row["probabilities"][row["class"]] == max(row["probabilities"].values())
    assert [p.name for p in Path().iterdir()] == ["m.safetensors"]


def test_table_shows_names_as_they_are(model: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    out = done("predict", model, *images)
    for path, name in zip(images, CLASSES, strict=True):
        assert any(str(path) in line and name in line for line in out.splitlines())


def test_order_and_company_of_images_change_nothing(model: Path, images: list[Path]) -> None:
    together = predict_files(model, images)
    assert predict_files(model, images[::-1]) == together[::-1]
    for path, row in zip(images, together, strict=True):
        assert predict_files(model, [path])[0]["probability"] == pytest.approx(row["probability"], abs=1e-5)


def test_the_device_is_a_gpu_where_there_is_one(
    model: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of a pretended GPU, whose work the CPU does."""
    asked, said = [], set()

    def load(path: Path, trusted: tuple[str, ...], device: torch.device) -> LoadedModel:
        asked.append(device.type)
        return load_model(path, trusted)

    monkeypatch.setattr(predict, "load_model", load)
    for gpu, options in [(False, ()), (True, ()), (True, ("--device", "cuda")), (True, ("--device", "cpu"))]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        said.add(fednoil("predict", model, *images, "--json", *options))
    assert asked == ["cpu", "cuda", "cuda", "cpu"]
    ((status, _, err),) = said
    assert (status, err) == (0, "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    error = refused("predict", model, *images, "--device", "cuda")
    assert "--device = 'cuda', but PyTorch sees no CUDA GPU here" in error


def test_a_full_gpu_is_reported(model: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation.")

    monkeypatch.setattr(predict, "load_model", full)
    line = refused("predict", model, *images)
    assert "memory is full (CUDA out of memory. Tried to allocate 2.00 GiB.); wait" in line
    assert "--device cpu" in line


def test_another_size_is_refused_and_resized_on_request(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.new("L", (30, 20), 240).save(path)
    line = refused("predict", model, path)
    assert f"{path} is 30×20 pixels, the model takes 8×8" in line
    assert "--resize" in line
    out = done("predict", model, path, "--resize", "--json")
    assert json.loads(out)[0]["class"] == "white"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "1", "L", "CMYK"])
def test_any_8_bit_picture_is_taken(model: Path, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "picture.tiff"
    Image.new("L", (8, 8), 255).convert(mode).save(path)
    assert predict_files(model, [path])[0]["class"] == "white"


def cut_short(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:60])


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda path: None, id="missing"),
        pytest.param(lambda path: path.mkdir(), id="folder"),
        pytest.param(lambda path: path.touch(), id="empty"),
        pytest.param(lambda path: path.write_text("hello"), id="text"),
        pytest.param(cut_short, id="cut short"),
        pytest.param(lambda path: Image.new("F", (8, 8), 0.5).save(path, "TIFF"), id="32 bits"),
    ],
)
def test_what_is_no_picture_is_reported_by_name(model: Path, grey: Path, tmp_path: Path, write: Callable) -> None:
    path = tmp_path / "bad.png"
    write(path)
    line = refused("predict", model, grey, path)
    assert str(path) in line
    assert not path.is_dir() or f"{path} is a folder; give the image files" in line


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_damaged_picture_is_read_or_reported(
    tmp_path_factory: pytest.TempPathFactory, model: Path, data: Any
) -> None:
    form = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"]))
    buffer = io.BytesIO()
    Image.new("L", (8, 8), 90).save(buffer, form)
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "fuzz.img"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with contextlib.suppress(UserError):
        (row,) = predict_files(model, [path], resize=True)
        assert row["class"] in CLASSES


def test_what_is_no_model_file_is_reported(model: Path, grey: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.safetensors"
    assert "no such file" in refused("predict", bad, grey)
    (tmp_path / "config.toml").write_text("")
    assert "is a run that has not ended; continue it with --resume" in refused("predict", bad, grey)
    assert str(tmp_path) in refused("predict", tmp_path, grey)
    for content in (b"", b"hello", model.read_bytes()[:-5], model.read_bytes()[:50], b"\xff" * 64):
        bad.write_bytes(content)
        line = refused("predict", bad, grey)
        assert f"{bad} is damaged or not a safetensors file; give a model that fednoil has written" in line
        assert "header" not in line
    save_file({"w": torch.zeros(1)}, bad)
    assert "is not a model that fednoil has written" in refused("predict", bad, grey)


def read(model: Path) -> dict[str, Any]:
    with safe_open(model, "pt") as file:
        return json.loads(file.metadata()["fednoil"])


def tampered(model: Path, target: Path, **changes: object) -> Path:
    save_file(load_file(model), target, {"fednoil": json.dumps({**read(model), **changes})})
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 99},
        {"config": None},
        {"config": []},
        {"config": {"model": "cnn"}},
        {"config": {"model": {"name": ["cnn"]}}},
        {"config": {"model": {"name": "cnm"}}},
        {"config": {"colour": {}}},
        {"config": {"train": {"speed": 1}}},
        {"config": {"model": {"name": "cnn", "width": 5}}},
        {"class_names": []},
        {"class_names": 4},
        {"class_names": ["a", "b", "c"]},
        {"class_names": ["a", "a", "b", "c"]},
        {"image_shape": [1, 8]},
        {"image_shape": [1, 16, 16]},
        {"image_shape": [3, 8, 8]},
        {"image_shape": [1, -8, 8]},
        {"image_shape": [1, 10**6, 10**6]},
        {"image_shape": [1, float("inf"), 8]},
        {"image_shape": "18"},
        {"mean": []},
        {"mean": [float("nan")]},
        {"std": [0.0]},
        {"std": [0.1, 0.1]},
        {"std": ["wide"]},
        {"networks": []},
        {"networks": ["teacher"]},
        {"networks": None},
        {"test_accuracy": 101},
        {"per_class_accuracy": 50.0},
        {"per_class_accuracy": [50.0]},
        {"per_class_accuracy": [50.0, None, float("nan"), 50.0]},
        {"per_class_accuracy": [50.0, None, -1.0, 50.0]},
    ],
    ids=str,
)
def test_tampered_metadata_is_reported_in_one_line(
    changes: dict[str, object], model: Path, grey: Path, tmp_path: Path
) -> None:
    bad = tampered(model, tmp_path / "bad.safetensors", **changes)
    assert str(bad) in refused("predict", bad, grey)


@pytest.mark.parametrize("raw", ["{", "[]", "null", '"x"', "[" * 99_999])
def test_metadata_that_is_no_object_is_reported(raw: str, model: Path, grey: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.safetensors"
    save_file(load_file(model), bad, {"fednoil": raw})
    assert str(bad) in refused("predict", bad, grey)


def test_tensors_that_do_not_fit_are_reported(model: Path, grey: Path, tmp_path: Path) -> None:
    tensors, bad = load_file(model), tmp_path / "bad.safetensors"
    weight = tensors["head.weight"]
    for other in (None, weight[:2], weight.T.contiguous(), weight * float("nan")):
        changed = {k: v for k, v in tensors.items() if k != "head.weight"}
        if other is not None:
            changed["head.weight"] = other
        save_file(changed, bad, {"fednoil": json.dumps(read(model))})
        assert "head.weight" in refused("predict", bad, grey)


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's module that leaves a trace when it is imported; returns where the trace would be."""
    trace = tmp_path / "trace"
    (tmp_path / "own_network.py").write_text(
        f"""
import pathlib
import torch
pathlib.Path({str(trace)!r}).touch()

def make(image_shape, num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_network", raising=False)
    return trace


def test_own_code_runs_only_when_it_is_trusted(own_code: Path, images: list[Path], tmp_path: Path) -> None:
    made = train(tmp_path, "model.name=own_network:make", "train.lr=0.01")
    assert own_code.exists()
    own_code.unlink()
    del sys.modules["own_network"]
    for trust in ((), ("--trust", "own_network"), ("--trust", "own_network:other")):
        assert "--trust own_network:make" in refused("predict", made, *images, *trust)
    assert not own_code.exists()
    assert "own_network" not in sys.modules
    out = done("predict", made, *images, "--json", "--trust", "own_network:make")
    assert [row["class"] for row in json.loads(out)] == CLASSES
    assert own_code.exists()
    del sys.modules["own_network"]


@pytest.mark.parametrize("section", ["model", "server", "learner"])
def test_a_tampered_file_imports_nothing(section: str, own_code: Path, model: Path, grey: Path, tmp_path: Path) -> None:
    config = {**read(model)["config"], section: {"name": "own_network:make"}}
    bad = tampered(model, tmp_path / "bad.safetensors", config=config)
    assert f"({section}.name)" in refused("predict", bad, grey)
    assert not own_code.exists()
    assert "own_network" not in sys.modules
