"""Models for other programs, and the card beside a model file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import fednoil, refused
from test_measures import made  # noqa: F401  (a run on a table, made once)
from torch import nn

from fednoil import export as exports
from fednoil import run
from fednoil.audit.cases import load_experiment
from fednoil.errors import UserError
from fednoil.export import export
from fednoil.records.card import card
from fednoil.records.model_file import load_model

MODEL = "model.safetensors"


def logits(run: Path, values: np.ndarray) -> np.ndarray:
    model = load_model(run / MODEL)
    return np.log(model.probabilities(torch.from_numpy(values)).numpy())


@pytest.fixture
def rows() -> np.ndarray:
    """As the table has them: ages, levels, and two colours; one value is missing."""
    values = np.array([[50_000, 0.001, 1, 0], [47_000, -0.002, 0, 1], [np.nan, 0.0, 0, 0]], np.float32)
    return np.concatenate([values, values[:2] * 0.99])


def test_a_program_for_torch(made: Path, rows: np.ndarray, tmp_path: Path) -> None:  # noqa: F811
    status, said, err = fednoil("export", made / MODEL, "--out", tmp_path / "m.pt2")
    assert (status, err) == (0, "")
    assert "float32 [N, 4] (values as in the data) to logits [N, 2]: ill, well" in said
    program = torch.export.load(tmp_path / "m.pt2").module()
    found = torch.log_softmax(program(torch.from_numpy(rows)), 1).detach().numpy()
    assert np.allclose(found, logits(made, rows), atol=1e-4)


def test_onnx_as_its_runtime_runs_it(made: Path, rows: np.ndarray, tmp_path: Path) -> None:  # noqa: F811
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    assert fednoil("export", made / MODEL, "--out", tmp_path / "m.onnx")[0] == 0
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    found = torch.log_softmax(torch.from_numpy(session.run(None, {"samples": rows})[0]), 1).numpy()
    assert np.allclose(found, logits(made, rows), atol=1e-4)


def test_pictures_are_fractions(trained: Path, tmp_path: Path) -> None:
    export(trained / "run" / MODEL, tmp_path / "m.pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    model = load_model(trained / "run" / MODEL)
    pixels = torch.randint(0, 256, (5, *model.image_shape), dtype=torch.uint8)
    assert torch.allclose(torch.softmax(program(pixels / 255), 1), model.probabilities(pixels), atol=1e-4)


def test_coloured_pictures_as_onnx(tmp_path: Path) -> None:
    """Their channels lie side by side in memory when the network runs here, which ONNX knows nothing of."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    images = np.random.default_rng(0).integers(0, 256, (20, 12, 12, 3), dtype=np.uint8)
    keys = {"train.rounds": 1, "schedule.epochs": 1, "model.width": 4}
    run("demo", data=[(images, [0, 1] * 10)], set=keys, out=tmp_path / "run", progress=False)
    export(tmp_path / "run" / MODEL, tmp_path / "m.onnx")  # which compares the results
    assert (tmp_path / "m.onnx").is_file()


def test_what_does_not_work_is_one_line(
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = refused("export", made / MODEL, "--out", tmp_path / "m.bin")
    assert "must end in .onnx (ONNX) or .pt2 (a program for torch.export.load)" in line
    (tmp_path / "m.pt2").touch()
    assert "already exists" in refused("export", made / MODEL, "--out", tmp_path / "m.pt2")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"ONNX needs onnxruntime; install it: pip install 'fednoil\[onnx\]'"):
        export(made / MODEL, tmp_path / "m.onnx")


def test_a_model_that_gives_other_results_is_not_written(
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exports, "_program", lambda model, like: (b"", lambda x: model(x) + 1))
    with pytest.raises(UserError, match="gives other results than the model file; nothing was written"):
        export(made / MODEL, tmp_path / "m.pt2")
    monkeypatch.undo()
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: (x if x.sum() > 0 else -x) @ self.weight.T)
    with pytest.raises(UserError, match=r"the model can't be exported by torch.export"):
        export(made / MODEL, tmp_path / "m.pt2")
    assert not (tmp_path / "m.pt2").exists()


def test_the_card_says_what_the_run_knows(made: Path) -> None:  # noqa: F811
    written = (made / "model_card.md").read_text()
    for words in (
        "- network: linear, 10 trained parameters",
        "- takes rows of 4 columns; classes: ill, well",
        "- sgd: learning rate 0.05, weight decay 0.0001, batches of 32",
        "120 training samples of 4 clients (s0, s1, s2, s3), 30 each",
        "| macro F1 |",
        "| class | recall, % | precision, % | F1, % | AUROC |",
        "By client, on its test samples:",
    ):
        assert words in written
    summary = json.loads((made / "summary.json").read_text()) | {"noise_ratios": {"s0": 0.1, "s1": 0.25, "s2": None}}
    known = card(load_experiment(made), summary, {})
    assert "| s1 | 25.0 % |" in known
    assert "median 18 %" in known
    assert "estimates by the model itself" in known


def test_the_card_does_not_take_agreement_for_accuracy(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n" + "".join(f"{k},{'xy'[k % 2]}\n" for k in range(40)))
    keys = ("--set=model.name=linear", "--set=train.rounds=1", "--set=partition.clients=2", "--quiet")
    status, _, _ = fednoil(
        "run", "demo/fedavg", f"--set=data.name=table:{tmp_path / 't.csv'}", *keys, "--out", tmp_path / "r"
    )
    assert status == 0
    written = (tmp_path / "r" / "model_card.md").read_text()
    assert "| agreement with held-out labels |" in written
    assert "the numbers are agreement with them" in written
    assert "held out of the training samples" in written
    assert "made wrong on purpose" in (trained / "run" / "model_card.md").read_text()
