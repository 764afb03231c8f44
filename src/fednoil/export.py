"""A model file in a form that other programs run: ONNX, or PyTorch's exported programs; checked by running it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednoil.api.model import Classifier
from fednoil.errors import UserError
from fednoil.files import write_bytes
from fednoil.records.model_file import LoadedModel, load_model

SUFFIXES = {".onnx": "ONNX", ".pt2": "a program for torch.export.load"}
_NEAR = 1e-3  # by how much logits may differ: sums in another order


def export(model_file: Path, out: Path, *, trusted: tuple[str, ...] = ()) -> str:
    """Write the model to `out`, whose suffix says how; returns what it takes and gives, in words.

    It takes images float32 [N, C, H, W] in 0..1, or vectors [N, D] as the data have them, and returns logits.
    """
    if out.suffix not in SUFFIXES:
        raise UserError(f"--out {out} must end in {' or '.join(f'{s} ({what})' for s, what in SUFFIXES.items())}")
    if out.exists():
        raise UserError(f"--out {out} already exists; choose another, nothing is overwritten")
    loaded = load_model(model_file, trusted)
    model = Classifier(loaded.bench, loaded.tensors, *loaded.normalisation)
    like = _samples(loaded)
    content, run = _onnx(model, like) if out.suffix == ".onnx" else _program(model, like)
    with torch.no_grad():
        _check(run, model, like)
        _check(run, model, like[:1])  # another number of samples
    write_bytes(out, content)
    shape = ", ".join(map(str, ["N", *loaded.image_shape]))
    what = "values as in the data" if len(loaded.image_shape) == 1 else "fractions in 0..1"
    return (
        f"float32 [{shape}] ({what}) to logits [N, {len(loaded.class_names)}]: {', '.join(loaded.class_names[:8])}"
        + (" …" if len(loaded.class_names) > 8 else "")
    )


def _samples(loaded: LoadedModel) -> Tensor:
    """A few samples to compare results on: random, because the model file has no data."""
    found = torch.rand(3, *loaded.image_shape, generator=torch.Generator().manual_seed(0))
    if len(loaded.image_shape) == 1:
        mean, std = (torch.tensor(values) for values in loaded.normalisation)
        return (mean + std * (4 * found - 2)).float()
    return found


def _program(model: Classifier, like: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    program, buffer = _traced(model, like), io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    again = torch.export.load(buffer).module()
    return buffer.getvalue(), again


def _traced(model: Classifier, like: Tensor) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(model, (like,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=1 << 20)},))
    except Exception as error:  # whatever a user's own model does that can't be traced
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"the model can't be exported by torch.export: {line[:200]}") from error


def _onnx(model: Classifier, like: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
        import onnxscript  # noqa: F401 # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"ONNX needs {error.name}; install it: pip install 'fednoil[onnx]', or export to a .pt2 file"
        ) from None
    program = _traced(model, like)
    with contextlib.redirect_stdout(io.StringIO()), _quiet():
        made = torch.onnx.export(program, input_names=["samples"], output_names=["logits"], verbose=False)
    assert made is not None
    content = made.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (name,) = (entry.name for entry in session.get_inputs())
    return content, lambda x: torch.from_numpy(np.asarray(session.run(None, {name: x.numpy()})[0]))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's remarks about its own parts are for its authors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _check(run: Callable[[Tensor], Tensor], model: Classifier, like: Tensor) -> None:
    ours, theirs = model(like), run(like)
    if theirs.shape != ours.shape or not torch.allclose(theirs, ours, _NEAR, _NEAR):
        raise UserError("the exported model gives other results than the model file; nothing was written")
