"""Classify images with a model file and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fednoil.data.images import as_mode, fitted
from fednoil.errors import UserError
from fednoil.records.model_file import LoadedModel, load_model


def predict_files(
    model_file: Path,
    images: Sequence[Path],
    *,
    resize: bool = False,
    trusted: tuple[str, ...] = (),
    device: torch.device | None = None,
) -> list[dict[str, Any]]:
    """One row per image: path, predicted class, its probability, and all probabilities, found on `device`, else on the
    CPU."""
    model = load_model(model_file, trusted, device)
    pixels = torch.from_numpy(np.stack([read_image(path, model, resize) for path in images]))
    rows = []
    for path, probs in zip(images, model.probabilities(pixels), strict=True):
        best = int(probs.argmax())
        named = dict(zip(model.class_names, probs.tolist(), strict=True))
        rows.append(
            {
                "image": str(path),
                "class": model.class_names[best],
                "probability": float(probs[best]),
                "probabilities": named,
            }
        )
    return rows


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
