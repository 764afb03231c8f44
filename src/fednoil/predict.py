"""Classify images with a model file and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fednoil.data.images import as_mode, fitted
from fednoil.data.tabular import TableFile, encoded, names_of, read_grid
from fednoil.data.vectors import aligned, is_vector, unfamiliar
from fednoil.errors import UserError
from fednoil.records.model_file import LoadedModel, load_model

Doubt = Callable[[str], None]  # what to do with a line about samples unlike those that the model has seen


def predict_files(
    model_file: Path,
    images: Sequence[Path],
    *,
    resize: bool = False,
    trusted: tuple[str, ...] = (),
    device: torch.device | None = None,
    doubt: Doubt = warnings.warn,
) -> list[dict[str, Any]]:
    """One row per image, or per row of a table: path, predicted class, its probability, and all probabilities, computed
    on `device`, by default the CPU."""
    model = load_model(model_file, trusted, device)
    names = [str(path) for path in images]
    if is_vector(model.image_shape):
        known = Known(model.columns, model.image_shape[0], *model.normalisation)
        tables = [read_vectors(path, known, doubt) for path in images]
        found = np.concatenate([rows for rows, _ in tables])
        names = [name for _, names in tables for name in names]
    else:
        found = np.stack([read_image(path, model, resize) for path in images])
    rows = []
    for name, probs in zip(names, model.probabilities(torch.from_numpy(found)), strict=True):
        best = int(probs.argmax())
        named = dict(zip(model.class_names, probs.tolist(), strict=True))
        rows.append(
            {
                "image": name,
                "class": model.class_names[best],
                "probability": float(probs[best]),
                "probabilities": named,
            }
        )
    return rows


@dataclass(frozen=True)
class Known:
    """The columns that a model takes, by their names if there are some, and their scale."""

    columns: Sequence[str]
    count: int
    mean: Sequence[float]
    std: Sequence[float]

    def rows(self, grid: TableFile, doubt: Doubt) -> np.ndarray:
        """The rows of a table, whose columns are found by their names: float32 [N, D]."""
        values, columns = encoded(grid, self.columns)
        found = aligned(values, columns, self.columns or columns, grid.where)
        for line in unfamiliar(values, columns, self.columns, self.mean, self.std):
            doubt(f"{grid.where}: {line}")
        return found


def read_vectors(path: Path, known: Known, doubt: Doubt) -> tuple[np.ndarray, list[str]]:
    """The rows of a table, or an array in an .npy file, float32 [N, D], and what they are called."""
    names = None
    if path.suffix.lower() == ".npy":
        try:
            with path.open("rb") as file:
                values = np.lib.format.read_array(file, allow_pickle=False)
        except FileNotFoundError:
            raise UserError(f"{path} is not a file; give an .npy, CSV or parquet file") from None
        except ValueError:
            raise UserError(f"{path} is no array of numbers; save one with numpy.save") from None
    elif path.suffix.lower() == ".npz":
        raise UserError(f"{path} holds several arrays; save the one to classify as .npy")
    else:
        grid = read_grid(path, str(path), ())
        if said := {*grid.choice.role, *("drop" for _ in grid.choice.drop)} - {"id"}:
            raise UserError(f"{path}: {min(said)}= means nothing to a model, whose columns have names; leave it out")
        if not grid.count:
            raise UserError(f"{path} has no row; give at least one")
        values = known.rows(grid, doubt)
        names = names_of(grid) if "id" in grid.role else None
    if values.ndim != 2 or values.dtype.kind not in "fiu" or values.shape[1] != known.count:
        kind = f"{values.dtype} of shape {list(values.shape)}"
        raise UserError(f"{path} is {kind}; the model takes numbers of shape [N, {known.count}]")
    if not len(values):
        raise UserError(f"{path} has no row; give at least one")
    return values.astype(np.float32), names or [f"{path}, row {row}" for row in range(len(values))]


def read_image(path: Path, model: LoadedModel, resize: bool) -> np.ndarray:
    """An image as uint8 [channels, height, width] in the model's size."""
    channels, height, width = model.image_shape
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; give the image files in it")
        with Image.open(path) as file:
            image = as_mode(file, "L" if channels == 1 else "RGB")
    except UserError as error:
        raise UserError(f"{path} {str(error).removeprefix(f'{path} ')}") from None
    except FileNotFoundError:
        raise UserError(f"cannot read {path}: no such file") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error and more
        raise UserError(f"{path} is not a readable image: {error}") from None
    if image.size != (width, height):
        if not resize:
            raise UserError(
                f"{path} is {image.size[0]}×{image.size[1]} pixels, the model takes {width}×{height}; "
                "add --resize to scale it"
            )
        image = fitted(image, (width, height))
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)
