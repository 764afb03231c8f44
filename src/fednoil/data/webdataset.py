"""WebDataset shards: tar files whose members `KEY.jpg` and `KEY.cls`, or `KEY.json`, belong together.

Only pictures and labels are read, each from its place in the file; nothing is extracted. Members that are pickles are
refused.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fednoil.data.base import PathSource, PictureSource
from fednoil.data.copy import Copy, Sample
from fednoil.data.decoded import Files, name_classes
from fednoil.data.folder import SUFFIXES
from fednoil.data.images import Encoded, Piece
from fednoil.data.raw import Listing, Raw, is_text, readable
from fednoil.data.table import COLUMN_NAMES, labels_of
from fednoil.errors import UserError
from fednoil.files import naming

_PICKLES = ("pyd", "pkl", "pickle", "pth", "pt", "joblib")
_LABEL, _MORE = "cls", "json"
_LARGEST = 1 << 20  # bytes of a label
_TEST = re.compile(r"(?<![a-z])(test|val|validation)(?![a-z])")


@dataclass
class ShardSample:
    """The members of one key: its picture, label and site as far as it has them, and why it can't be used."""

    key: str
    picture: Piece | None = None
    label: str | None = None
    site: str | None = None
    wrong: str = ""
    suffixes: set[str] = field(default_factory=set)


class WebDatasetCopy(Copy):
    """Shards in a folder, or one of them: labels of the training shards change, and members that are dropped go."""

    def __init__(self, root: Path) -> None:
        self._root, self.places = root, (root,) if root.is_dir() else ()
        self._train, self._test = _shards(root)
        listing = read_listing(root)
        raw = listing.train
        self.alone, self.labels, self.named = listing.test is not None, raw.labels, raw.class_names is not None
        self.classes = name_classes(listing.where, raw.labels, raw.class_names)
        self._rows = {item: row for row, item in enumerate(raw.items)}

    def row(self, sample: Sample) -> int:
        if sample.item not in self._rows:
            raise UserError(f"{sample.where}: webdataset:{self._root} has no sample '{sample.item}'")
        return self._rows[sample.item]

    def write(self, out: Path, labels: np.ndarray) -> None:
        for path in (*self._train, *self._test):
            target = out if path == self._root else out / path.relative_to(self._root)
            target.parent.mkdir(parents=True, exist_ok=True)
            with naming(target):
                if path in self._test:
                    shutil.copy2(path, target)
                else:
                    self._write_shard(path, target, labels)

    def _write_shard(self, path: Path, target: Path, labels: np.ndarray) -> None:
        with tarfile.open(path, "r:") as old, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as new:
            for member in old:
                key, suffix = _parts(member.name)
                row = self._rows.get(_item(self._root, path, key))
                if row is not None and labels[row] < 0:
                    continue
                file = old.extractfile(member) if member.isfile() else None
                if file is not None and row is not None and labels[row] != self.labels[row]:
                    label = self.classes[labels[row]] if self.named else str(labels[row])
                    text = _relabelled(file.read(), suffix, label)
                    member.size, file = len(text), io.BytesIO(text)
                new.addfile(member, file)


class WebDataset(PictureSource, PathSource):
    how = "a .tar, or a folder of them, whose members are KEY.jpg and KEY.cls (or KEY.json with a label)"
    description = "your own WebDataset shards"
    rewrites = WebDatasetCopy

    def find(self, path: Path) -> Files:
        train, test = _shards(path)
        return Files(path, (*train, *test), self.decode)

    def listing(self) -> Listing:
        return read_listing(self.path)

    def clients(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(read_listing(self.path).train.sites or ()))


def read_listing(root: Path) -> Listing:
    """The samples of all shards; each is called by its shard's path and its key."""
    where, (train, test) = f"webdataset:{root}", _shards(root)
    members = {path: _read(path, (about := path.stat()).st_mtime_ns, about.st_size) for path in (*train, *test)}
    usable = {path: [own for own in found if not own.wrong] for path, found in members.items()}
    every = [own for found in usable.values() for own in found]
    labels, names = np.array([], np.int64), None
    if every:
        labels, names = labels_of(where, [str(own.label) for own in every], lambda row: f"sample '{every[row].key}'")
    sites = {own.site is None for own in every}
    if len(sites) > 1:
        lost = next(own.key for own in every if own.site is None)
        raise UserError(f"{where}: sample '{lost}' has no site and others have one; all must have it, or none")
    first = sum(len(usable[path]) for path in train)

    def part(paths: tuple[Path, ...], labels: np.ndarray) -> Raw:
        found = [(_item(root, path, own.key), own) for path in paths for own in usable[path]]
        pictures = [Encoded(item, own.picture) for item, own in found if own.picture is not None]
        lost = [(_item(root, path, own.key), own.wrong) for path in paths for own in members[path] if own.wrong]
        whose = [str(own.site) for _, own in found] if sites == {False} else None
        return Raw([item for item, _ in found], labels, pictures, names, lost, sites=whose)

    return Listing(where, part(train, labels[:first]), part(test, labels[first:]) if test else None)


def _shards(root: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The shards for training and those for testing, which have `test` or `val` in their names."""
    if root.is_file():
        return (root,), ()
    found = sorted(path for path in root.rglob("*.tar") if path.is_file()) if root.is_dir() else []
    test = tuple(path for path in found if _TEST.search(path.relative_to(root).as_posix().lower()))
    train = tuple(path for path in found if path not in test)
    if not train:
        packed = next(root.rglob("*.tar.*"), None) if root.is_dir() else None
        hint = f"; unpack {packed.name} to a .tar first" if packed is not None else ""
        raise UserError(f"webdataset:{root} is neither a .tar file nor a folder with some for training{hint}")
    return train, test


@lru_cache(maxsize=4096)
def _read(path: Path, changed: int, size: int) -> tuple[ShardSample, ...]:
    """The samples of a shard as it is now: every check of a configuration asks for their sites."""
    found: dict[str, ShardSample] = {}
    try:
        with tarfile.open(path, "r:") as file:
            for member in file:
                if member.isfile() and not Path(member.name).name.startswith((".", "__")):
                    _add(found, path, file, member)
            if file.offset + tarfile.BLOCKSIZE > size:  # two empty blocks end a whole file
                raise tarfile.ReadError("unexpected end of data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{path} can't be read as an uncompressed tar file ({error}); get or make it again") from None
    for own in found.values():
        if not own.wrong and (own.picture is None or own.label is None):
            what = f"picture ({', '.join(SUFFIXES)})" if own.picture is None else f"label (.{_LABEL}, or .{_MORE})"
            own.wrong = f"has no {what}"
    return tuple(found.values())


def _add(found: dict[str, ShardSample], path: Path, file: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    key, suffix = _parts(member.name)
    if suffix.rpartition(".")[2] in _PICKLES:
        raise UserError(
            f"{path} holds {readable(member.name)}, a pickle, which may run code when it is read; make the shard "
            "without it"
        )
    own = found.setdefault(key, ShardSample(key))
    if suffix in own.suffixes:
        raise UserError(f"{path} has {readable(member.name)} twice; a key stands for one sample")
    own.suffixes.add(suffix)
    if not is_text(member.name):
        own.wrong = "has a name that is not UTF-8; rename it"
    elif f".{suffix}" in SUFFIXES:
        own.wrong = own.wrong or ("has two pictures; keep one" if own.picture is not None else "")
        own.wrong = own.wrong or ("is stored with holes; make the shard again" if member.issparse() else "")
        own.picture = Piece(path, member.offset_data, member.size)
    elif suffix in (_LABEL, _MORE):
        _add_label(own, suffix, _text(file, member))


def _add_label(own: ShardSample, suffix: str, text: str | None) -> None:
    if text is None:
        own.wrong = own.wrong or f"has a .{suffix} that is not UTF-8 text of at most 1 MiB"
    elif suffix == _LABEL:
        own.label = text.strip()
    else:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            own.wrong = own.wrong or "has a .json that can't be read"
            return
        own.label = _value(values, "label") if own.label is None else own.label
        own.site = _value(values, "site")


def _value(values: Any, name: str) -> str | None:
    """What a JSON object says under one of a column's spellings, as text."""
    key = _spelt(values, name)
    return None if key is None else str(values[key]).strip()


def _spelt(values: Any, name: str) -> str | None:
    usual = (*COLUMN_NAMES[name], _LABEL) if name == "label" else COLUMN_NAMES[name]
    known = values if isinstance(values, dict) else {}
    found = (key for key in usual if isinstance(known.get(key), str | int) and not isinstance(known[key], bool))
    return next(found, None)


def _relabelled(data: bytes, suffix: str, label: str) -> bytes:
    """A member of a sample with its new label."""
    if suffix == _LABEL:
        return label.encode()
    if suffix != _MORE or (key := _spelt(values := json.loads(data), "label")) is None:
        return data
    number = isinstance(values[key], int) and label.isdecimal()
    return json.dumps({**values, key: int(label) if number else label}, ensure_ascii=False).encode()


def _text(file: tarfile.TarFile, member: tarfile.TarInfo) -> str | None:
    content = file.extractfile(member) if member.size <= _LARGEST else None
    try:
        return None if content is None else content.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _parts(name: str) -> tuple[str, str]:
    """A member's key, which may have folders, and what follows its name's first dot."""
    folder, slash, leaf = name.rpartition("/")
    key, _, suffix = leaf.partition(".")
    return f"{folder}{slash}{key}", suffix.lower()


def _item(root: Path, path: Path, key: str) -> str:
    """What a sample is called: by its key, and in a folder by its shard as well."""
    return readable(key if path == root else f"{path.relative_to(root).as_posix()}/{key}")
