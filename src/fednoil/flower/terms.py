"""What the nodes must agree on before round 1: the names of the classes, the size of images, the normalisation.

A site describes what it has, without sending images or labels. For a table it reports the names of columns and
categories and, for each column of numbers, their count, mean and spread. Classes are matched by name, so a site that
lacks one doesn't shift the numbers of the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fednoil.data import Dataset, Split, with_scale
from fednoil.data.base import Normalisation
from fednoil.data.cache import remember_hash
from fednoil.data.dataset import DatasetInfo
from fednoil.data.vectors import MARK, Scale, aligned, is_vector, pooled, stem_of, united
from fednoil.errors import UserError
from fednoil.flower.messages import BadMessage, Body
from fednoil.flower.names import is_name

Shape = tuple[int, ...]
_MOST = 10**9  # samples
_COLUMNS = 10**5
_FEWEST = 5  # values from which a mean reveals no single one


@dataclass(frozen=True)
class Site:
    """What a node reports about itself: its name, its sizes, its classes by name, its images' shape, mean and std; of
    vectors also the names of the columns and how many values each has."""

    name: str
    partition: int | None
    samples: int
    held_out: int
    class_names: tuple[str, ...]
    image_shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, name: str, partition: int | None, samples: int, held_out: int, dataset: Dataset) -> Site:
        """A node with these data, or a part of them."""
        about = dataset.class_names, dataset.image_shape, dataset.mean, dataset.std
        if not is_vector(dataset.image_shape):
            return cls(name, partition, samples, held_out, *about)
        columns = dataset.about.columns or tuple(str(k) for k in range(dataset.image_shape[0]))
        there = np.full(len(columns), samples) if partition is not None else (~np.isnan(dataset.train.images)).sum(0)
        few = there < _FEWEST
        mean, std = (
            tuple(np.where(few, dull, own).tolist()) for dull, own in ((0.0, dataset.mean), (1.0, dataset.std))
        )
        counts = tuple(np.where(few, 0, there).tolist())
        return cls(name, partition, samples, held_out, *about[:2], mean, std, columns, counts)


@dataclass(frozen=True)
class CommonTerms:
    """What applies to every node of a federation."""

    class_names: tuple[str, ...]
    image_shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: list(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, values: dict[str, Any]) -> CommonTerms:
        shape = tuple(int(n) for n in values["image_shape"])
        names, columns = (tuple(str(n) for n in values.get(key, ())) for key in ("class_names", "columns"))
        return cls(names, shape, tuple(values["mean"]), tuple(values["std"]), columns)

    def dataset(self, name: str) -> Dataset:
        """A dataset of this kind without images."""
        kind = np.float32 if is_vector(self.image_shape) else np.uint8
        empty = Split(np.empty((0, *self.image_shape), kind), np.empty(0, np.int64))
        return Dataset(name, empty, empty, self.class_names, self.mean, self.std, DatasetInfo(columns=self.columns))

    def fitted(self, dataset: Dataset) -> Dataset:
        """A site's data in the federation's terms: its class numbers, its columns and its scale; grey images become RGB
        where others are. The hash is still that of its own data, whoever else takes part."""
        numbers = np.array([self.class_names.index(name) for name in dataset.class_names], np.int64)
        grey = not self.columns and self.image_shape[0] > dataset.image_shape[0]
        train, test = (
            Split(split.images.repeat(3, axis=1) if grey else split.images, numbers[split.labels])
            for split in (dataset.train, dataset.test)
        )
        known = self.class_names, self.mean, self.std
        if not self.columns:
            return remember_hash(Dataset(dataset.name, train, test, *known, dataset.about), dataset.hash)
        own = dataset.about.columns
        train, test = (
            Split(aligned(split.images, own, self.columns, dataset.name), split.labels) for split in (train, test)
        )
        about = replace(dataset.about, columns=self.columns)
        fitted = with_scale(Dataset(dataset.name, train, test, *known, about), self.mean, self.std)
        return remember_hash(fitted, dataset.hash)


@dataclass(frozen=True)
class Founders:
    """The clients that began a run: how many, and with how many samples in all."""

    clients: int
    samples: int

    @property
    def sizes(self) -> list[int]:
        """The samples of each, as if all had equally many."""
        each, more = divmod(self.samples, self.clients)
        return [each + (k < more) for k in range(self.clients)]


def introduced(body: Body) -> Site:
    """A node's introduction as a value, checked for plausibility."""
    numbers: dict[str, Any] = body.numbers
    values: dict[str, Any] = body.values
    shape, names, mean, std, columns, counts = (
        *(tuple(part) for part in (values["shape"], values["classes"], numbers["mean"], numbers["std"])),
        *(tuple(part) for part in (values["columns"], numbers["counts"])),
    )
    vectors = len(shape) == 1
    partition = values["partition"] if values["partition"] >= 0 else None
    rows = 2 * numbers["samples"] + 1  # at most: a run may leave out a fold, of which the values count
    checks = {
        "client id": is_name(values["client"]),
        "image shape": (len(shape) == 3 and shape[0] in (1, 3) and all(1 <= side <= 4096 for side in shape[1:]))
        or (vectors and 1 <= shape[0] <= _COLUMNS),
        "mean": len(mean) == shape[0] and (vectors or all(0 <= m <= 1 for m in mean)),
        "std": len(std) == shape[0] and all(s > 0 and (vectors or s <= 1) for s in std),
        "list of columns": len(columns) == (shape[0] if vectors else 0) and len(set(columns)) == len(columns),
        "number of values": len(counts) == len(columns) and all(0 <= n <= rows for n in counts),
        "number of samples": 1 <= numbers["samples"] <= _MOST and 0 <= numbers["held_out"] <= _MOST,
        "class names": 1 <= len(names) <= 10_000 and len(set(names)) == len(names),
    }
    for what, right in checks.items():
        if not right:
            raise BadMessage(f"its {what} is not possible")
    for what, most, texts in (("column", 300, columns), ("class", 200, names)):
        if wrong := [text for text in texts if not 1 <= len(text) <= most or not text.isprintable()]:
            raise BadMessage(
                f"its {what} '{wrong[0][:80]}' is not one line of readable text (at most {most} characters); rename it"
            )
    return Site(
        values["client"], partition, numbers["samples"], numbers["held_out"], names, shape, mean, std, columns, counts
    )


def agree(sites: Sequence[Site], normalisation: Normalisation | None) -> CommonTerms:
    """What the sites agree on; `normalisation` is given if the configuration sets it.

    The size of images is that of most sites; in a tie, that of the first one. They are RGB if one site's are. The
    normalisation is that of the pooled pixels of the sites with that size, to four digits, as for a dataset in one
    place.
    """
    names = [name for site in sites for name in site.columns]
    kinds = [_columns(site.columns, names) if site.columns else site.image_shape[1:] for site in sites]
    most = Counter(kinds).most_common(1)[0][0]
    fitting = [site for site, kind in zip(sites, kinds, strict=True) if kind == most]
    columns = united({site.name: site.columns for site in fitting}) if fitting[0].columns else ()
    shape = (len(columns),) if columns else max(site.image_shape for site in fitting)
    own = _pool_columns(fitting, columns) if columns else _pool(fitting, shape[0])
    if normalisation and {len(part) for part in normalisation} != {shape[0]}:
        what = f"column{'s' * (shape[0] > 1)}" if columns else f"channel{'s' * (shape[0] > 1)}"
        given = " and ".join(str(len(part)) for part in normalisation)
        raise UserError(f"data.normalisation has lists of {given} numbers; the sites' data have {shape[0]} {what}")
    return CommonTerms(_classes(fitting), shape, *(normalisation or own), columns)


def misfit(site: Site, agreement: CommonTerms) -> str | None:
    """Why a site can't take part; None if it can."""
    if (site.columns or agreement.columns) and (reason := _other_columns(site.columns, agreement.columns)):
        return reason
    same = site.image_shape[1:] == agreement.image_shape[1:]
    if not site.columns and not (same and site.image_shape[0] <= agreement.image_shape[0]):
        advice = "the run began with grey ones" if same else "data.size brings the pictures of all sites to one size"
        return f"its images are {_shape(site.image_shape)}, the federation's {_shape(agreement.image_shape)}; {advice}"
    unknown = [name for name in site.class_names if name not in agreement.class_names]
    if unknown:
        return f"its class '{unknown[0]}' is not one of the federation's ({', '.join(agreement.class_names[:8])}…)"
    if len(agreement.class_names) < 2:
        return "the federation has only one class; a classifier needs at least two"
    return None


def _columns(columns: Sequence[str], others: Sequence[str]) -> frozenset[tuple[str, str]]:
    """The columns of a table and their kinds; one without a value is of the kind that it has among `others`."""
    known = [name for name in (*others, *columns) if not name.endswith(MARK)]
    kinds = {stem_of(name): "categories" if MARK in name else "numbers" for name in known}
    return frozenset((stem_of(name), kinds.get(stem_of(name), "any kind")) for name in columns)


def _other_columns(own: Sequence[str], wanted: Sequence[str]) -> str:
    """Why a site with its own columns can't take part where others are wanted; "" if it can."""
    if not own or not wanted:
        kinds = ("pictures", "vectors") if not own else ("vectors", "pictures")
        return f"it has {kinds[0]}, the federation {kinds[1]}; all sites need the same kind of data"
    here, there = dict(_columns(own, wanted)), dict(_columns(wanted, own))
    if differ := sorted(name for name in here.keys() & there if here[name] != there[name]):
        kinds = f"has {here[differ[0]]}, the federation's {there[differ[0]]}"
        return f"its column '{differ[0]}' {kinds}; it must be the same at all sites"
    if here.keys() != there.keys() and all(name.isdecimal() for name in (*own, *wanted)):
        return f"it has {len(own)} features a sample, the federation {len(wanted)}; all sites need the same features"
    missing, more = sorted(there.keys() - here), sorted(here.keys() - there)
    parts = [f"it has no column '{missing[0]}'"] if missing else []
    parts += [f"it has a column '{more[0]}' that the federation lacks"] if more else []
    return f"{' and '.join(parts)}; all sites need the same columns" if parts else ""


def _pool_columns(sites: Sequence[Site], columns: Sequence[str]) -> Normalisation:
    """Mean and std per column over the rows of all sites, from each site's own; a category that it lacks has none."""
    scales = []
    for site in sites:
        place = {name: k for k, name in enumerate(site.columns)}
        found = [
            (site.counts[k], site.mean[k], site.std[k]) if (k := place.get(name, -1)) >= 0 else (0, 0.0, 1.0)
            for name in columns
        ]
        scales.append(Scale(*(tuple(part) for part in zip(*found, strict=True))))
    scale = pooled(scales, columns)
    return scale.mean, scale.std


def _classes(sites: Sequence[Site]) -> tuple[str, ...]:
    """All names: in the order of a site that has all of them, or numerically, or alphabetically."""
    names = {name for site in sites for name in site.class_names}
    for site in sites:
        if set(site.class_names) == names:
            return site.class_names
    return tuple(sorted(names, key=int) if all(n.isdecimal() for n in names) else sorted(names))


def _pool(sites: Sequence[Site], channels: int) -> Normalisation:
    """Mean and std per channel over the pixels of all sites, from each site's own; grey ones have the same in all."""
    total = sum(site.samples for site in sites)
    means, stds = [], []
    for channel in range(channels):
        own = [(s.samples, s.mean[channel % len(s.mean)], s.std[channel % len(s.std)]) for s in sites]
        mean = sum(n * average for n, average, _ in own) / total
        square = sum(n * (spread**2 + average**2) for n, average, spread in own) / total
        means.append(round(mean, 4))
        stds.append(max(round(math.sqrt(max(square - mean**2, 0.0)), 4), 0.01))
    return tuple(means), tuple(stds)


def _shape(shape: Shape) -> str:
    return f"{shape[2]}×{shape[1]} pixels with {shape[0]} channel{'s' if shape[0] > 1 else ''}"
