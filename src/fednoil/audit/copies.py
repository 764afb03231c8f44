"""Data that can be relabelled: which sample a decision is about, its current label, and how a copy is written."""

from __future__ import annotations

import csv
import shutil
import unicodedata
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from fednoil import data as datasets
from fednoil.audit.decisions import Decision
from fednoil.config.axes import validated
from fednoil.config.loading import read_toml
from fednoil.data import arrays, folder, parquet, table
from fednoil.data.dataset import Dataset
from fednoil.data.decoded import name_classes
from fednoil.data.raw import readable
from fednoil.errors import UserError
from fednoil.files import naming
from fednoil.labels import Labels
from fednoil.manifest import read_manifest, write_manifest


class Copy(ABC):
    """Data to be copied: class names, labels int64 [N] and, if known, each sample's client int64 [N]."""

    classes: tuple[str, ...]
    labels: np.ndarray
    clients: np.ndarray | None = None
    places: tuple[Path, ...] = ()  # folders that the copy must not lie in
    named: bool = True  # False: classes are numbers
    hint: str = ""  # how to add the class {} to the data
    alone: bool = True  # it has test images, so it is trained on alone; one site of several may lack classes

    @property
    def train(self) -> np.ndarray:
        """Which samples are trained on, bool [N]."""
        return np.ones(len(self.labels), bool)

    def row(self, decision: Decision) -> int:
        """The place in `labels` of the sample that a decision is about."""
        index = decision.index
        if not self.alone and decision.item.isdecimal():  # a run may have held out some, so rows follow the item
            index = int(decision.item)
        if index is None or decision.item not in ("", str(index)):
            raise UserError(
                f"{decision.where}: item '{decision.item}' and index '{'' if index is None else index}' must be the "
                "same row number; these may be decisions about other data"
            )
        if index >= len(self.labels):
            raise UserError(f"{decision.where}: there is no row {index}; the training set has {len(self.labels)}")
        return index

    def class_of(self, name: str) -> str:
        """The data's name for a class of the decisions."""
        return name

    @abstractmethod
    def write(self, out: Path, labels: np.ndarray) -> None:
        """Write the copy with these labels int64 [N]; a sample with -1 is left out."""


class FolderCopy(Copy):
    """`train/<class>/…` and `test/<class>/…`, or a site's pictures for an audit, `<class>/…` or `train/<class>/…`.

    A picture with a new label moves to that class's folder; other files stay where they are.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        inside = root.is_dir() and folder.classes_in(root) != root
        tops = [root / name for name in ("train", "test") if (root / name).is_dir()] if inside else [root]
        self.alone = len(tops) == 2
        if not self.alone:
            self.hint = "; to make it one, add an empty folder '{}' beside the others"
        found = [folder.labelled(top) for top in tops]
        self.paths, folders, self._others = (
            [path.relative_to(root) for part in parts for path in part] for parts in zip(*found, strict=True)
        )
        if tops != [root]:
            self._others += [path.relative_to(root) for path in folder.visible(root) if path not in tops]
        self.places = (root, *tops, *(root / path for path in folders))  # each may be a link to elsewhere
        self._train = np.array([path.parts[0] != "test" or tops == [root] for path in self.paths])
        self._folders = {_composed(path.name): path.name for path in reversed(folders)}
        self.classes = tuple(dict.fromkeys(_composed(path.name) for path in folders))
        number = {name: i for i, name in enumerate(self.classes)}
        self.labels = np.array([number[_composed(path.parent.name)] for path in self.paths], np.int64)
        self._rows = {_composed(readable(path.as_posix())): row for row, path in enumerate(self.paths)}

    @property
    def train(self) -> np.ndarray:
        return self._train

    def row(self, decision: Decision) -> int:
        row = self._rows.get(_composed(decision.item))
        if row is None:
            raise UserError(f"{decision.where}: there is no picture '{decision.item}' in folder:{self._root}")
        return row

    def write(self, out: Path, labels: np.ndarray) -> None:
        for source, target in zip(self.paths, self.targets(labels), strict=True):
            if target is not None:
                (out / target).parent.mkdir(parents=True, exist_ok=True)
                with naming(out / target):
                    shutil.copy2(self._root / source, out / target)
        for path in self._others:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            with naming(out / path):
                _copy_as_is(self._root / path, out / path)

    def class_of(self, name: str) -> str:
        return name if name in self.classes else folder.folder_name(name)

    def targets(self, labels: np.ndarray) -> list[Path | None]:
        """Where each picture goes, relative to the copy; one that moves may get a number."""
        moved = labels != self.labels
        taken = {_key(path) for path, moves in zip(self.paths, moved, strict=True) if not moves}
        taken |= {_key(path) for path in self._others}
        targets: list[Path | None] = list(self.paths)
        for row in np.flatnonzero(moved):
            path = self.paths[row]
            targets[row] = None
            if labels[row] >= 0:
                new = path.parent.parent / self._folders[self.classes[labels[row]]] / path.name
                targets[row] = new = _free(new, taken)
                taken.add(_key(new))
        return targets


class NpzCopy(Copy):
    """Arrays: `y_train` changes, everything else stays; a dropped sample leaves every array named `…_train`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise UserError(f"npz:{path} is not a file; give an .npz with x_train and y_train")
        values = arrays.load_arrays(path, f"npz:{path}")
        self.alone = bool({"x_test", "y_test"} & values.keys())
        if self.alone:
            arrays.find(path).read()  # checks the test images, too
        raw = arrays.read_labelled(path)
        self.labels, self.classes = raw.labels, name_classes(f"npz:{path}", raw.labels, raw.class_names)
        self.named = raw.class_names is not None

    def write(self, out: Path, labels: np.ndarray) -> None:
        changed = self._changed(labels)
        with naming(out), zipfile.ZipFile(self.path) as old, zipfile.ZipFile(out, "w") as new:
            for name in dict.fromkeys(old.namelist()):
                entry = zipfile.ZipInfo(name, old.getinfo(name).date_time)
                entry.compress_type = old.getinfo(name).compress_type
                value = changed.get(name.removesuffix(".npy"))
                with old.open(name) as source, new.open(entry, "w", force_zip64=True) as target:
                    if value is None:
                        shutil.copyfileobj(source, target)
                    else:
                        np.lib.format.write_array(target, value, allow_pickle=False)

    def _changed(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays that change."""
        values, kept = arrays.load_arrays(self.path, f"npz:{self.path}"), labels >= 0
        kind = values["y_train"].dtype
        if kind.kind in "US":
            texts = np.array(self.classes)[np.where(kept, labels, 0)]
            values["y_train"] = texts if kind.kind == "U" else np.char.encode(texts, "utf-8")
        elif labels.max() > np.iinfo(kind).max:
            raise UserError(
                f"npz:{self.path}: y_train is {kind}, which can't hold the label {labels.max()}; save it as int64"
            )
        else:
            values["y_train"] = np.where(kept, labels, 0).astype(kind)
        rows = [name for name, value in values.items() if name.endswith("_train") and value.shape[:1] == labels.shape]
        return {name: values[name][kept] for name in rows if name == "y_train" or not kept.all()}


class ParquetCopy(Copy):
    """Image shards, in a folder or a single file: the label column of the training shards changes, rows and other
    columns stay as they are."""

    def __init__(self, root: Path) -> None:
        self._root, self.places = root, (root,) if root.is_dir() else ()
        self.alone = bool(parquet.shards(root, "test"))
        self.shards, names = parquet.read_labels(parquet.training_files(root))
        self.labels = np.concatenate([shard.labels for shard in self.shards]).astype(np.int64)
        self.classes = name_classes(f"parquet:{root}", self.labels, names)
        self.named = names is not None

    def write(self, out: Path, labels: np.ndarray) -> None:
        if not self._root.is_dir():
            return self._write_shard(self.shards[0], out, labels)
        out.mkdir()
        start = 0
        for shard in self.shards:
            self._write_shard(shard, out / shard.path.name, labels[start : start + len(shard.labels)])
            start += len(shard.labels)
        for path in parquet.shards(self._root, "test"):
            with naming(out / path.name):
                shutil.copy2(path, out / path.name)

    @staticmethod
    def _write_shard(shard: parquet.Shard, target: Path, labels: np.ndarray) -> None:
        try:
            with pq.ParquetFile(shard.path) as file:
                table, groups = file.read(), file.metadata
                rows = max(1, groups.row_group(0).num_rows) if groups.num_row_groups else None
            place = table.schema.get_field_index(shard.column)
            field = table.schema.field(place)
            kept = np.where(labels < 0, 0, labels)
            column = kept if shard.names is None else np.array(shard.names)[kept].tolist()
            table = table.set_column(place, field, pa.array(column, _plain(field.type)).cast(field.type))
            with naming(target):
                pq.write_table(table.filter(pa.array(labels >= 0)), target, row_group_size=rows)
        except pa.ArrowException as error:
            raise UserError(f"{shard.path} can't be copied ({error})") from error


class CsvCopy(Copy):
    """A file that lists pictures: labels change, dropped rows go, and paths become absolute: the pictures stay."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, table.read_rows(path)
        listing = table.read_listing(path)
        raws = [listing.train] + ([] if listing.test is None else [listing.test])
        known = {item: int(label) for raw in raws for item, label in zip(raw.items, raw.labels, strict=True)}
        self.items = [item for item in self.rows.column("path") if item in known]
        self.labels = np.array([known[item] for item in self.items], np.int64)
        self.named, self.alone = listing.train.class_names is not None, listing.test is not None
        self.classes = name_classes(f"csv:{path}", self.labels, listing.train.class_names)
        tested = set() if listing.test is None else set(listing.test.items)
        self._train = np.array([item not in tested for item in self.items])

    @property
    def train(self) -> np.ndarray:
        return self._train

    def row(self, decision: Decision) -> int:
        if decision.item not in self.items:
            raise UserError(f"{decision.where}: csv:{self.path} lists no picture '{decision.item}'")
        return self.items.index(decision.item)

    def write(self, out: Path, labels: np.ndarray) -> None:
        new = dict(zip(self.items, labels.tolist(), strict=True))
        lines = [self.rows.header]
        for line in self.rows.lines:
            item = line[self.rows.place["path"]].strip()
            if new.get(item, 0) < 0:
                continue
            line = list(line)
            line[self.rows.place["path"]] = str((self.path.parent / item).resolve())
            if item in new:
                line[self.rows.place["label"]] = self.classes[new[item]]
            lines.append(line)
        with naming(out), out.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(lines)


class ManifestCopy(Copy):
    """A run's split and labels: given labels change, true labels and clients stay."""

    def __init__(self, path: Path, dataset: Dataset) -> None:
        self.path, self.dataset = path, dataset
        self.parts, given, self.truth = read_manifest(path, dataset.train.labels, dataset.num_classes, dataset.hash)
        self.classes, self.labels = dataset.class_names, np.concatenate(given.given)
        self.clients = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        self._rows = {int(index): row for row, index in enumerate(np.concatenate(self.parts))}

    def row(self, decision: Decision) -> int:
        row = None if decision.index is None else self._rows.get(decision.index)
        if row is None:
            what = "it has no index" if decision.index is None else f"no client holds the sample {decision.index}"
            raise UserError(f"{decision.where}: {what} in manifest:{self.path}")
        owners, whose = self.dataset.about.owners, str(self.clients[row]) if self.clients is not None else ""
        if owners is not None and owners.names and len(owners.names) == len(self.parts):
            whose = owners.names[int(whose)]
        if decision.client not in ("", whose):
            raise UserError(
                f"{decision.where}: sample {decision.index} is client {whose}'s in manifest:{self.path}, "
                f"not client {decision.client}'s; these may be another run's decisions"
            )
        return row

    def write(self, out: Path, labels: np.ndarray) -> None:
        ends = np.cumsum([len(part) for part in self.parts])[:-1]
        kept = [part >= 0 for part in np.split(labels, ends)]
        given = tuple(part[keep] for part, keep in zip(np.split(labels, ends), kept, strict=True))
        parts = tuple(part[keep] for part, keep in zip(self.parts, kept, strict=True))
        write_manifest(out, parts, Labels(given), self.truth.kept(kept), self.dataset.hash, self.dataset.num_classes)


# How each source of images is written again with other labels.
COPIES: dict[type[datasets.Source], Callable[[Path], Copy]] = {
    folder.Folder: FolderCopy,
    table.Csv: CsvCopy,
    arrays.Npz: NpzCopy,
    parquet.Parquet: ParquetCopy,
}


def open_copy(data: str, dataset: str | None, data_dir: Path | None) -> Copy:
    """The data named by `--data`, as far as a copy needs them."""
    form, colon, name = data.partition(":")
    make = COPIES.get(datasets.SOURCES.get(form, datasets.Source))
    if not colon or not name.strip() or (make is None and form != "manifest"):
        hint = "; for a named dataset, use the labels in a run: manifest:RUN/noise.parquet" if not colon else ""
        known = ", ".join(f"{word}:{cls.takes}" for word, cls in datasets.SOURCES.items() if cls in COPIES)
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


def _copy_as_is(source: Path, target: Path) -> None:
    """Copy a file, a folder or a link; pipes and devices hold no data."""
    if source.is_symlink() or source.is_file():
        shutil.copy2(source, target, follow_symlinks=False)
    elif source.is_dir():
        target.mkdir(exist_ok=True)
        for path in source.iterdir():
            _copy_as_is(path, target / path.name)
        shutil.copystat(source, target)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values, where they are stored as places in a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _composed(text: str) -> str:
    """In NFC: file systems differ in how they store accents."""
    return unicodedata.normalize("NFC", text)


def _key(path: Path) -> str:
    """What must differ between two files on any file system."""
    return _composed(path.as_posix()).casefold()


def _free(path: Path, taken: set[str]) -> Path:
    """The path, or the first of `name-2`, `name-3`, … that is not taken."""
    found, number = path, 1
    while _key(found) in taken:
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found
