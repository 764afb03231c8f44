"""The audit of a site that has only a model: its own labelled samples, judged by that model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fednoil import evidence
from fednoil.audit.cases import Case, Cases, duplicates
from fednoil.audit.pictures import galleries, original
from fednoil.data.folder import folder_name
from fednoil.data.items import Items, read_items, read_vectors
from fednoil.data.raw import readable
from fednoil.data.vectors import is_vector, scaled
from fednoil.errors import UserError, few_of
from fednoil.learners.base import chunks
from fednoil.records.model_file import LoadedModel, load_model


def of_data(
    name: str,
    model_file: Path,
    *,
    resize: bool = False,
    skip_unknown: bool = False,
    trusted: tuple[str, ...] = (),
    device: torch.device | None = None,
) -> Cases:
    """The labelled images of one site, judged by the final model only; it runs on `device`, or on the CPU."""
    model = load_model(model_file, trusted, device)
    vectors = is_vector(model.image_shape)
    if vectors:
        found = read_vectors(name, model.columns, model.image_shape[0])
    else:
        channels, height, width = model.image_shape
        found = read_items(name, (channels, height, width), resize=resize)
    numbers = _numbers(name, found, model.class_names, skip_unknown)
    kept = np.flatnonzero(numbers >= 0)
    lost = tuple((found.items[row], "is of a class that the model doesn't know") for row in np.flatnonzero(numbers < 0))
    items, images, given = tuple(found.items[row] for row in kept), found.images[kept], numbers[kept]
    labels = torch.from_numpy(given)
    bundle, look = evidence.start([labels], len(model.class_names)), _look(model, images)
    bundle = evidence.add_looks(bundle, [len(labels)], {0: look})
    # On images unlike its run's test set a model may be worse, and is then often less confident.
    accuracy = None if model.accuracy is None else min(model.accuracy, 100 * float(look.max(1).values.mean()))
    less = 1.0 if accuracy is None or not model.accuracy else accuracy / model.accuracy
    case = Case(
        None,
        items,
        found.index[kept],
        given,
        bundle,
        accuracy=accuracy,
        per_class=tuple(None if value is None else value * less for value in model.per_class),
        skipped=(*found.skipped, *lost),
        notices=(*found.notices, *_read_as(found, model.class_names)),
        duplicates=duplicates(items, images),
    )
    place = {int(row): n for n, row in enumerate(found.index)}
    if vectors:
        values = scaled(found.images, *model.normalisation)
        pictures = galleries(lambda row: values[place[row]], model.columns, *model.normalisation)
        return Cases(readable(name), model.class_names, [case], *pictures)
    return Cases(
        readable(name),
        model.class_names,
        [case],
        lambda row: found.shown(place[row]),
        lambda row: original(found.pictures[place[row]]),
    )


def _look(model: LoadedModel, images: np.ndarray) -> torch.Tensor:
    pixels = torch.from_numpy(images)
    return torch.cat([model.probabilities(pixels[rows]) for rows in chunks(len(pixels), pixels)])


def _range(names: tuple[str, ...]) -> str:
    """The labels that number these classes: their names, if these are numbers themselves."""
    return few_of(names) if all(n.isdecimal() for n in names) else f"0 to {len(names) - 1}"


def _read_as(found: Items, known: tuple[str, ...]) -> list[str]:
    """A notice if numbered labels are taken for classes with names."""
    if found.class_names is not None or all(n.isascii() and n.isdecimal() for n in known):
        return []
    return [f"labels are numbers; {few_of([f'{k} is read as {n}' for k, n in enumerate(known)], 3)}"]


def _numbers(name: str, found: Items, known: tuple[str, ...], skip_unknown: bool) -> np.ndarray:
    """The model's number for each label, −1 for a class it doesn't know."""
    names = known if found.class_names is None else found.class_names
    labels = found.labels
    if found.class_names is None and all(n.isascii() and n.isdecimal() for n in known):
        place = {int(n): i for i, n in enumerate(known)}  # classes may be numbered from 1
        labels = np.array([place.get(int(label), -1) for label in found.labels])
    if twice := [n for n in names if names.count(n) > 1]:
        raise UserError(f"{name}: class name '{twice[0]}' stands for two classes; names must differ")
    outside = (labels < 0) | (labels >= len(names))
    if outside.any() and not skip_unknown:
        first, whose = int(np.flatnonzero(outside)[0]), "the model" if found.class_names is None else "its class_names"
        raise UserError(
            f"{name}: label {found.labels[first]} (number {found.index[first]}) is not a class of {whose}, "
            f"which has {_range(names)}; --skip-unknown leaves such samples out"
        )
    number = {n: i for i, n in enumerate(known)}
    if name.startswith("folder:"):
        number = {folder_name(n): i for n, i in number.items()} | number
    unknown = [n for n in names if n not in number]
    if unknown and not skip_unknown:
        raise UserError(
            f"{name} has the class '{unknown[0]}', which the model doesn't know; it knows {', '.join(known[:20])}"
            f"{' …' if len(known) > 20 else ''}; rename it, or --skip-unknown leaves its samples out"
        )
    table = np.array([number.get(n, -1) for n in names], np.int64)
    numbers = np.where(outside, -1, table[np.where(outside, 0, labels)])
    if not (numbers >= 0).any():
        raise UserError(f"{name}: none of its labels is a class of the model, which knows {', '.join(known[:20])}")
    return numbers
