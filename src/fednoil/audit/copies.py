"""Data that can be relabelled: a source that knows how it is written again, or the labels of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import ValidationError

from fednoil import data as datasets
from fednoil.config.axes import validated
from fednoil.config.loading import read_toml
from fednoil.data.copy import Copy, Sample
from fednoil.data.dataset import Dataset
from fednoil.errors import UserError
from fednoil.labels import Labels
from fednoil.manifest import read_manifest, write_manifest


class ManifestCopy(Copy):
    """A run's split and labels: given labels change, true labels and clients stay."""

    def __init__(self, path: Path, dataset: Dataset) -> None:
        self.path, self.dataset = path, dataset
        self.parts, given, self.truth = read_manifest(path, dataset.train.labels, dataset.num_classes, dataset.hash)
        self.classes, self.labels = dataset.class_names, np.concatenate(given.given)
        self.clients = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        self._rows = {int(index): row for row, index in enumerate(np.concatenate(self.parts))}

    def row(self, sample: Sample) -> int:
        row = None if sample.index is None else self._rows.get(sample.index)
        if row is None:
            what = "it has no index" if sample.index is None else f"no client holds the sample {sample.index}"
            raise UserError(f"{sample.where}: {what} in manifest:{self.path}")
        owners, whose = self.dataset.about.owners, str(self.clients[row]) if self.clients is not None else ""
        if owners is not None and owners.names and len(owners.names) == len(self.parts):
            whose = owners.names[int(whose)]
        if sample.client not in ("", whose):
            raise UserError(
                f"{sample.where}: sample {sample.index} is client {whose}'s in manifest:{self.path}, "
                f"not client {sample.client}'s; these may be another run's decisions"
            )
        return row

    def write(self, out: Path, labels: np.ndarray) -> None:
        ends = np.cumsum([len(part) for part in self.parts])[:-1]
        kept = [part >= 0 for part in np.split(labels, ends)]
        given = tuple(part[keep] for part, keep in zip(np.split(labels, ends), kept, strict=True))
        parts = tuple(part[keep] for part, keep in zip(self.parts, kept, strict=True))
        write_manifest(out, parts, Labels(given), self.truth.kept(kept), self.dataset.hash, self.dataset.num_classes)


def can_copy(data: str) -> bool:
    """Whether a copy of what is named so can be written with other labels."""
    form, _, path = data.partition(":")
    return bool(path) and (form == "manifest" or datasets.SOURCES.get(form, datasets.Source).rewrites is not None)


def open_copy(data: str, dataset: str | None, data_dir: Path | None) -> Copy:
    """The data named by `--data`, as far as a copy needs them."""
    form, colon, name = data.partition(":")
    make = datasets.SOURCES.get(form, datasets.Source).rewrites
    if not colon or not name.strip() or (make is None and form != "manifest"):
        hint = "; for a named dataset, use the labels in a run: manifest:RUN/noise.parquet" if not colon else ""
        known = ", ".join(f"{word}:{cls.takes}" for word, cls in datasets.SOURCES.items() if cls.rewrites)
        raise UserError(f"--data '{data}' must be {known} or manifest:FILE{hint}")
    if dataset is not None and form != "manifest":
        raise UserError(f"--dataset {dataset} is only for manifest:FILE, but --data is {data}; leave it out")
    try:
        path = Path(name).expanduser()
        return _open_manifest(path, dataset, data_dir) if make is None else make(path)
    except (OSError, RuntimeError) as error:  # no permission, too long a name, no such ~user
        raise UserError(f"--data {data} can't be read ({error})") from error


def _open_manifest(path: Path, dataset: str | None, data_dir: Path | None) -> ManifestCopy:
    """A run's manifest with its data: by name, or from the configuration beside it."""
    path = path / "noise.parquet" if path.is_dir() else path
    if dataset is not None:
        data: datasets.DataConfig | str = dataset
    elif (path.parent / "config.toml").is_file():
        try:
            data = validated("data", read_toml(path.parent / "config.toml").get("data", {}))
        except ValidationError as error:
            raise UserError(
                f"{path.parent / 'config.toml'} is not a run's configuration: {error.errors()[0]['msg']}"
            ) from None
    else:
        raise UserError(f"manifest:{path} is not in a run's folder; name its data with --dataset NAME (data.name)")
    return ManifestCopy(path, datasets.load(data, data_dir, site=True))
