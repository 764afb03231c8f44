"""From a program's arrays or torch Datasets to the data of a run; bad input is reported in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fednoil.data import of_arrays
from fednoil.data.dataset import Owners
from fednoil.data.given import Given
from fednoil.data.sites import TEST
from fednoil.data.vectors import check_finite
from fednoil.errors import UserError

_CHANNELS = (1, 3)


@dataclass(frozen=True, eq=False)
class _Labels:
    """Labels [N], int64 or str, and their name in messages."""

    what: str
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class _Samples:
    """Images uint8 [N, C, H, W] or vectors float32 [N, D] of one client or for testing, and their labels."""

    what: str
    images: np.ndarray
    labels: _Labels

    @classmethod
    def of(cls, item: Any, what: str) -> _Samples:
        images, labels = _pair(item, what)
        found = cls(what, samples(images, f"{what}: images"), _labels(labels, f"{what}: labels"))
        if len(found.images) != len(found.labels.values):
            counts = f"{len(found.images)} images and {len(found.labels.values)} labels"
            raise UserError(f"{what} has {counts}; the numbers must agree")
        return found


def given_data(
    data: Any,
    test: Any = None,
    class_names: Sequence[str] | None = None,
    true_labels: Any = None,
) -> Given:
    """The data of a run: `data` is a list or dict of clients, each a pair (images, labels) or a torch Dataset, or a
    single one for `partition` to deal; so is `test`. `true_labels` has the form of `data`, with labels only."""
    items, pooled = _clients(data)
    names = _names(items) if isinstance(data, Mapping) else ()
    if TEST in names:
        raise UserError(f"data has a client '{TEST}'; give samples that test the model as test=, or call it otherwise")
    clients = {name: _Samples.of(item, "data" if pooled else f"data[{name!r}]") for name, item in items.items()}
    tested = [] if test is None else [_Samples.of(test, "test")]
    samples = [*clients.values(), *tested]
    for part in samples:
        _alike(part, samples[0])
    true = _true_labels(true_labels, clients, pooled)
    strings, classes = _classes([part.labels.values for part in clients.values()], class_names)
    numbers = _numbered([*(part.labels for part in samples), *true], classes if strings else None)
    count, end = len(clients), len(samples)
    train = np.concatenate([part.images for part in clients.values()]), np.concatenate(numbers[:count])
    owners = None if pooled else Owners.in_turn(tuple(len(found) for found in numbers[:count]), names)
    dataset = of_arrays(train, (tested[0].images, numbers[count]) if tested else None, classes, owners)
    return Given(dataset, np.concatenate(numbers[end:]) if true else None, strings)


def samples(values: Any, what: str) -> np.ndarray:
    """Images as uint8 [N, C, H, W], or vectors [N, D] as float32, in which NaN is a missing value."""
    array = _array(values, what)
    if array.ndim == 2 and array.dtype == np.uint8:
        raise UserError(
            f"{what} are uint8 of shape {list(array.shape)}, like a single picture; give pictures as [N, H, W], and "
            "vectors as other numbers, such as float32"
        )
    if array.ndim != 2:
        return pixels(array, what)
    if not array.size:
        lacking = "columns" if len(array) else "rows"
        raise UserError(f"{what} have the shape {list(array.shape)}, no {lacking}; at least one is needed")
    rows = np.ascontiguousarray(array, np.float32)  # a DataFrame's columns lie side by side
    check_finite(rows, what, missing=True)
    return rows


def pixels(images: Any, what: str) -> np.ndarray:
    """Images as uint8 [N, C, H, W].

    They may be [N, H, W], [N, H, W, C] or [N, C, H, W] with one or three channels. Whole numbers are pixels in 0..255;
    fractions must be in 0..1, where 1 is 255.
    """
    array = _array(images, what)
    if array.ndim == 3:
        array = array[:, np.newaxis]
    first, last = (array.ndim == 4 and array.shape[axis] in _CHANNELS for axis in (1, -1))
    if last and not first:
        array = array.transpose(0, 3, 1, 2)
    elif not first:
        raise UserError(
            f"{what} have the shape {list(array.shape)}; they must be [N, H, W], [N, H, W, C] or [N, C, H, W] with "
            "C = 1 or 3 channels, or vectors [N, D]"
        )
    if not array.size:
        raise UserError(f"{what}: there are none (shape {list(array.shape)}); at least one is needed")
    return np.ascontiguousarray(_bytes(array, what))


def _bytes(array: np.ndarray, what: str) -> np.ndarray:
    """Pixels as uint8."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind in "iu":
        if array.min() < 0 or array.max() > 255:
            raise UserError(f"{what} are whole numbers from {array.min()} to {array.max()}; pixels are in 0..255")
        return array.astype(np.uint8)
    if array.dtype.kind != "f":
        raise UserError(f"{what} have the type {array.dtype}; give uint8 pixels, or fractions in 0..1")
    low, high = float(array.min()), float(array.max())
    if np.isnan(low):
        raise UserError(f"{what} have NaN for {int(np.isnan(array).sum())} of their numbers; pixels can't be missing")
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"{what} are fractions from {low:g} to {high:g}; they must be in 0..1: undo a normalisation, or divide by "
            "the largest value"
        )
    return np.rint(array * 255).astype(np.uint8)


def _clients(data: Any) -> tuple[dict[Any, Any], bool]:
    """Each client's item by its name or number; or all data as one item, to be dealt."""
    if isinstance(data, Mapping):
        found = dict(data)
    elif _is_pair(data) or _is_dataset(data):
        return {0: data}, True
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        found = dict(enumerate(data))
    else:
        raise UserError(
            f"data is {_kind(data)}; give a list of (images, labels), one pair per client, a dict with the clients' "
            "names, or torch Datasets instead of pairs"
        )
    if not found:
        raise UserError("data has no clients; give one pair (images, labels) for each")
    return found, False


def _names(clients: Mapping[Any, Any]) -> tuple[str, ...]:
    names = tuple(str(name) for name in clients)
    for name in names:
        if not name.strip() or not name.isprintable() or names.count(name) > 1:
            raise UserError(f"data: {name!r} is not a name for a client; each needs a different, readable name")
    return names


def _is_pair(item: Any) -> bool:
    """Whether it is (images, labels), not a list of two clients."""
    return isinstance(item, tuple | list) and len(item) == 2 and hasattr(item[0], "ndim")


def _is_dataset(item: Any) -> bool:
    return (
        not isinstance(item, tuple | list | Mapping | str | bytes)
        and not hasattr(item, "ndim")
        and hasattr(item, "__getitem__")
        and hasattr(item, "__len__")
    )


def _pair(item: Any, what: str) -> tuple[Any, Any]:
    """Images and labels of a pair or a Dataset; a Dataset's samples are read one by one."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if not _is_dataset(item):
        raise UserError(
            f"{what} is {_kind(item)}; give a pair (images, labels) or a torch Dataset with a length and indices, or "
            "all clients as such places on disk as 'folder:PATH'"
        )
    images, labels = [], []
    for place in range(len(item)):
        sample = item[place]
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise UserError(f"{what}: sample {place} is {_kind(sample)}; a Dataset must give (image, label)")
        images.append(_array(sample[0], f"{what}: image {place}"))
        labels.append(sample[1].item() if hasattr(sample[1], "item") else sample[1])
    if len({image.shape for image in images}) > 1:
        other = next(place for place, image in enumerate(images) if image.shape != images[0].shape)
        raise UserError(
            f"{what}: image {other} has the shape {list(images[other].shape)}, image 0 {list(images[0].shape)}; all "
            "must have the same: resize them in the Dataset"
        )
    return np.stack(images) if images else np.zeros((0, 1, 1)), labels


def _array(values: Any, what: str) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{what} differ in shape; all must have the same") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"{what} have the type {array.dtype}; give arrays of numbers")
    return array


def _labels(values: Any, what: str) -> _Labels:
    """Labels as int64 or str."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{what} differ in shape; give one whole number or string per sample") from None
    if array.dtype.kind in "OTU" and all(isinstance(value, str) for value in array.ravel()):
        array = array.astype(str)
    if array.ndim == 1 and array.dtype.kind in "Of":
        missing = [place for place, value in enumerate(array) if value is None or value != value]
        if missing:
            raise UserError(f"{what}: label {missing[0]} (counted from 0) is missing; leave such samples out")
        if array.dtype.kind == "f" and bool((np.isfinite(array) & (array == np.round(array))).all()):
            array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iubU":
        kind = f"{array.dtype} of the shape {list(array.shape)}"
        raise UserError(f"{what} are {kind}; give one whole number or string per sample")
    return _Labels(what, array if array.dtype.kind == "U" else array.astype(np.int64))


def _true_labels(true: Any, clients: Mapping[Any, _Samples], pooled: bool) -> list[_Labels]:
    """The true labels of each client, as many as it has samples."""
    if true is None:
        return []
    parts = list(true) if isinstance(true, Iterable) and not pooled else [true]
    found = true if isinstance(true, Mapping) and not pooled else dict(zip(clients, parts, strict=False))
    if found.keys() != clients.keys() or len(parts) != len(clients):
        raise UserError(f"true_labels must have the form of data: labels for each of its {len(clients)} clients")
    read = [_labels(found[name], "true_labels" if pooled else f"true_labels[{name!r}]") for name in clients]
    for labels, part in zip(read, clients.values(), strict=True):
        if len(labels.values) != len(part.images):
            raise UserError(f"{labels.what}: {len(labels.values)} labels for {len(part.images)} samples; give one each")
    return read


def _classes(train: Sequence[np.ndarray], class_names: Sequence[str] | None) -> tuple[bool, list[str] | None]:
    """Whether labels are strings, and the names of the classes, if they have any."""
    strings = all(labels.dtype.kind == "U" for labels in train)
    if isinstance(class_names, str):
        raise UserError(f"class_names = '{class_names}' is one string; give a list with a name for each class")
    if class_names is not None:
        most = max((int(labels.max()) for labels in train if labels.dtype.kind in "iu"), default=-1)
        if most >= len(class_names):
            raise UserError(f"class_names has {len(class_names)} names, and data have the label {most}; give all names")
        return strings, [str(name) for name in class_names]
    if strings:
        return True, sorted({str(label) for labels in train for label in labels})
    present = np.unique(np.concatenate([labels for labels in train if labels.dtype.kind != "U"]))
    if not np.array_equal(present, np.arange(len(present))):
        shown = f"{', '.join(map(str, present[:10]))}{' …' if len(present) > 10 else ''}"
        raise UserError(
            f"data: the labels are {shown}; number classes 0, 1, 2 … without a gap, or give labels as strings, or "
            "class_names for all"
        )
    return False, None


def _numbered(every: Sequence[_Labels], names: Sequence[str] | None) -> list[np.ndarray]:
    """All labels as class numbers; `names` are the classes if labels are strings."""
    place = None if names is None else {name: number for number, name in enumerate(names)}
    numbers = []
    for labels in every:
        if (labels.values.dtype.kind == "U") != (place is not None):
            kinds = ("text", "numbers") if place is None else ("numbers", "text")
            raise UserError(f"{labels.what} are {kinds[0]}, others {kinds[1]}; all labels must be of one kind")
        if place is None:
            numbers.append(labels.values)
            continue
        unknown = [str(label) for label in labels.values if str(label) not in place]
        if unknown:
            shown = f"{', '.join(list(place)[:10])}{' …' if len(place) > 10 else ''}"
            raise UserError(f"{labels.what}: '{unknown[0]}' is not one of the classes {shown}")
        numbers.append(np.array([place[str(label)] for label in labels.values], np.int64))
    return numbers


def _alike(part: _Samples, first: _Samples) -> None:
    if part.images.shape[1:] != first.images.shape[1:]:
        if 2 in (part.images.ndim, first.images.ndim):
            own, other = list(part.images.shape[1:]), list(first.images.shape[1:])
            raise UserError(f"{part.what}: samples have the shape {own}, those of {first.what} {other}")
        shapes = ["×".join(map(str, (a.shape[3], a.shape[2], a.shape[1]))) for a in (part.images, first.images)]
        raise UserError(
            f"{part.what}: images are {shapes[0]} (width×height×channels), those of {first.what} {shapes[1]}"
        )


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"a{'n' * (name[:1] in 'AEIO')} {name}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")
