"""A run's pictures as stored, for people to look at: the network may have seen them small and cropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageOps

from fednoil.audit.enlarged import LONGEST_SIDE
from fednoil.audit.rows import pictures_of
from fednoil.data.base import PictureSource
from fednoil.data.images import Picture, as_mode, open_picture
from fednoil.data.sources import open_source
from fednoil.data.vectors import is_vector
from fednoil.errors import UserError
from fednoil.experiment import Experiment

_BOX = 96  # pixels of a picture in a gallery
_BESIDE = 190


def original(picture: Picture) -> np.ndarray:
    """A picture in its own colours and proportions, uint8 [H, W, 3], as large as it is kept."""
    with open_picture(picture) as image:
        image.draft(None, (LONGEST_SIDE, LONGEST_SIDE))  # of a large JPEG, no more than is needed
        shown = as_mode(image, "RGB")
        shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        return np.asarray(shown)


def boxed(pixels: np.ndarray) -> np.ndarray:
    """A picture [H, W, C] in the square that a gallery has for it, in its own proportions; the margin is grey, so that
    it can't be taken for part of a white or a black picture."""
    return np.asarray(ImageOps.pad(Image.fromarray(pixels), (_BOX, _BOX), color=(_BESIDE,) * 3))


def shown(sample: np.ndarray) -> np.ndarray:
    """What a gallery shows of a sample [C, H, W]: its pixels [H, W, C]; of a vector [D] its values as grey squares, row
    by row, with the mean in the middle."""
    if sample.ndim == 3:
        return sample.transpose(1, 2, 0)
    side = math.ceil(math.sqrt(len(sample)))
    grey = np.full(side * side, 127, np.uint8)
    grey[: len(sample)] = np.clip(127.5 + 42.5 * sample, 0, 255)
    return np.kron(grey.reshape(side, side), np.ones((max(1, _BOX // side),) * 2, np.uint8))[..., np.newaxis]


def galleries(
    values: Callable[[int], np.ndarray], columns: Sequence[str], mean: Sequence[float], std: Sequence[float]
) -> tuple[Callable[[int], np.ndarray], Callable[[int], np.ndarray] | None]:
    """What an audit shows of samples that `values` returns: in its gallery, and large. Rows whose columns have names
    are written out."""
    return pictures_of(values, columns, mean, std) if columns else (lambda row: shown(values(row)), None)


def original_pictures(experiment: Experiment) -> Callable[[int], np.ndarray] | None:
    """A function that returns a row of the training set as stored; None if the run's data aren't pictures, or have
    moved."""
    dataset = experiment.setting.dataset
    items = dataset.about.items
    if experiment.given is not None or not items or is_vector(dataset.image_shape):
        return None
    try:
        source = open_source(experiment.config.data)
        if not isinstance(source, PictureSource):
            return None
        listed = source.listing().train
    except (UserError, OSError):
        return None
    owners, sites = dataset.about.owners, listed.sites
    names = list(items)
    if sites and owners is not None and owners.names:  # two sites may have a file of the same name
        names = [f"{owners.names[number]}:{item}" for number, item in zip(owners.numbers, items, strict=True)]
    keys = [f"{site}:{item}" for site, item in zip(sites, listed.items, strict=True)] if sites else listed.items
    pictures = dict(zip(keys, listed.pictures, strict=True))
    if len(pictures) != len(keys) or not pictures.keys() >= set(names):
        return None
    return lambda row: original(pictures[names[row]])
