"""The user's own pictures in folders: `<class>/…`, or `train/<class>/…` and `test/<class>/…`."""

from __future__ import annotations

import shlex
import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np

from fednoil.data.base import PathSource, PictureSource
from fednoil.data.copy import Copy, Sample
from fednoil.data.decoded import Files
from fednoil.data.decoding import Wanted, decode_listing
from fednoil.data.images import Encoded
from fednoil.data.raw import Listing, Raw, is_text, readable
from fednoil.errors import UserError
from fednoil.files import naming

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
_IGNORED = ("thumbs.db", "desktop.ini")


class FolderCopy(Copy):
    """`train/<class>/…` and `test/<class>/…`, or a site's pictures for an audit, `<class>/…` or `train/<class>/…`.

    A picture with a new label moves to that class's folder; other files stay where they are.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        inside = root.is_dir() and classes_in(root) != root
        tops = [root / name for name in ("train", "test") if (root / name).is_dir()] if inside else [root]
        self.alone = len(tops) == 2
        if not self.alone:
            self.hint = "; to make it one, add an empty folder '{}' beside the others"
        found = [labelled(top) for top in tops]
        self.paths, folders, self._others = (
            [path.relative_to(root) for part in parts for path in part] for parts in zip(*found, strict=True)
        )
        if tops != [root]:
            self._others += [path.relative_to(root) for path in visible(root) if path not in tops]
        self.places = (root, *tops, *(root / path for path in folders))  # each may be a link to elsewhere
        self._train = np.array([path.parts[0] != "test" or tops == [root] for path in self.paths])
        self._folders = {name_of(path): path.name for path in reversed(folders)}
        self.classes = tuple(dict.fromkeys(name_of(path) for path in folders))
        number = {name: i for i, name in enumerate(self.classes)}
        self.labels = np.array([number[name_of(path.parent)] for path in self.paths], np.int64)
        self._rows = {_composed(readable(path.as_posix())): row for row, path in enumerate(self.paths)}

    @property
    def train(self) -> np.ndarray:
        return self._train

    def row(self, sample: Sample) -> int:
        row = self._rows.get(_composed(sample.item))
        if row is None:
            raise UserError(f"{sample.where}: there is no picture '{sample.item}' in folder:{self._root}")
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
        return name if name in self.classes else folder_name(name)

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


class Folder(PictureSource, PathSource):
    how = "pictures in <class>/, or in train/<class>/ and test/<class>/"
    description = "your own pictures"
    rewrites = FolderCopy

    def find(self, path: Path) -> Files:
        return find(path)

    def listing(self) -> Listing:
        return read_listing(self.path)

    def labelled(self) -> Raw:
        return read_labelled(self.path)


def find(root: Path) -> Files:
    """Everything in the class folders under `root`, sorted."""
    listing = read_listing(root)
    parts = [listing.train] + ([] if listing.test is None else [listing.test])
    pictures = [p.source for part in parts for p in part.pictures if isinstance(p, Encoded)]
    paths = [path for path in pictures if isinstance(path, Path)]
    paths += [path for part in parts for item, _ in part.skipped if (path := root / item).exists()]
    return Files(root, tuple(paths), lambda: decode_listing(listing, Wanted(f"folder:{root}")))


def read_listing(root: Path) -> Listing:
    """The pictures in `train/<class>/` and, if there is such a folder, `test/<class>/`; or in `<class>/`."""
    where = f"folder:{root}"
    _check_root(root)
    top = classes_in(root)
    train = _read_classes(root, top, any_name=True)
    if empty := next((name for name, files in _class_folders(top).items() if not files), None):
        raise UserError(f"class folder {top / empty} is empty; put images in or remove it")
    if not train.items and top == root and _nested(top):
        folders = [path for path in visible(top) if path.is_dir()]
        sites = shlex.join(word for path in folders[:3] for word in ("--site", f"{path.name}=folder:{path}"))
        raise UserError(
            f"{where} has folders in its class folders and no pictures; if each of them is a site, give "
            f"{readable(sites)}{' …' if len(folders) > 3 else ''} instead"
        )
    if top == root:
        return Listing(where, train)
    others = [path.name for path in visible(root) if path.is_dir() and path.name not in ("train", "test")]
    if others:
        train.notices.append(f"the folder '{readable(others[0])}' beside 'train' is not used")
    if not (root / "test").is_dir():
        return Listing(where, train)
    test = _read_classes(root, root / "test", any_name=True)
    unknown = [name for name in test.class_names or () if name not in (train.class_names or ())]
    if unknown:
        raise UserError(f"{root / 'test'}: class '{unknown[0]}' is missing from train; add it there")
    number = {name: k for k, name in enumerate(train.class_names or ())}
    numbers = np.array([number[name] for name in test.class_names or ()], np.int64)
    if not test.items:
        raise UserError(f"{root / 'test'} has no class folders; expected test/<class>/<image files>, or no such folder")
    return Listing(where, train, replace(test, labels=numbers[test.labels], class_names=train.class_names))


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise UserError(f"folder:{root} is not a folder; expected <class>/<image files> in it")
    if root.name in ("train", "test") and (root.parent / "train").is_dir():
        raise UserError(f"folder:{root} is a part of the data; did you mean folder:{root.parent}?")
    top = root / "train" if (root / "train").is_dir() and not visible(root / "train") else classes_in(root)
    if not any(path.is_dir() for path in visible(top)):
        raise UserError(f"{top} has no class folders; expected <class>/<image files> in it")


def _nested(top: Path) -> bool:
    """Whether the class folders contain folders, as when each of them is a site with its own classes."""
    return all(path.is_dir() for files in _class_folders(top).values() for path in files)


def _class_folders(top: Path) -> dict[str, list[Path]]:
    return {name_of(path): visible(path) for path in visible(top) if path.is_dir()}


def labelled(top: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The contents of the class folders of one site's `top`, sorted: pictures, class folders, everything else."""
    if not top.is_dir():
        raise UserError(f"folder:{top} is not a folder; expected <class>/<image files> in it")
    folders = [path for path in visible(top) if path.is_dir()]
    names = [name_of(path) for path in folders]
    if twice := [path for path, name in zip(folders, names, strict=True) if names.count(name) > 1]:
        raise UserError(f"{twice[-1]}: two folders are called '{name_of(twice[-1])}'; merge them")
    files = [path for folder in folders for path in visible(folder)]
    pictures = [path for path in files if is_picture(path)]
    if not pictures:
        raise UserError(f"{top} has no picture in class folders; expected <class>/<image files> in it")
    known = {*folders, *pictures}
    return pictures, folders, [path for path in (*visible(top), *files) if path not in known]


def classes_in(root: Path) -> Path:
    """Where a site's class folders are: in `train` if that contains folders, otherwise in `root`, because a class may
    be called 'train'."""
    top = root / "train"
    return top if top.is_dir() and any(path.is_dir() for path in visible(top)) else root


def is_picture(path: Path) -> bool:
    """Whether it is a file called like a picture."""
    return path.is_file() and path.suffix.lower() in SUFFIXES


def visible(folder: Path) -> list[Path]:
    """The contents of `folder`, sorted by name, without hidden files and those that file managers leave."""
    try:
        found = sorted(folder.iterdir(), key=name_of)
    except OSError as error:
        raise UserError(f"{folder} can't be read ({error})") from error
    return [p for p in found if not p.name.startswith(".") and p.name.lower() not in _IGNORED]


def name_of(path: Path) -> str:
    """The name composed (NFC): file systems differ in how they store accents, and a class is one class."""
    return _composed(path.name)


def folder_name(class_name: str) -> str:
    """The folder of a class: a name with a slash, which no folder can have, has an underscore there."""
    return _composed(class_name).replace("/", "_")


def read_labelled(root: Path) -> Raw:
    """<class>/<image files> in `root`, or in its folder `train`."""
    if not root.is_dir():
        raise UserError(f"folder:{root} is not a folder; expected <class>/<image files> in it")
    return _read_classes(root, classes_in(root))


def _read_classes(root: Path, top: Path, *, any_name: bool = False) -> Raw:
    """The contents of the class folders of `top`; items are paths below `root`, which may have to be text."""
    items, labels, pictures, skipped, notices = [], [], [], [], []
    names: list[str] = []
    for folder in visible(top):
        if not folder.is_dir():
            skipped.append((_item(folder, root), "is not in a class folder"))
            continue
        if name_of(folder) in names:
            raise UserError(f"{folder}: two folders are called '{name_of(folder)}'; merge them")
        files = visible(folder)
        if not files:
            notices.append(f"the class folder '{readable(name_of(folder))}' is empty")
            continue
        names.append(name_of(folder))
        for path in files:
            item = _item(path, root)
            if not is_picture(path):
                skipped.append((item, _no_picture(path)))
            elif not any_name and not is_text(path.relative_to(root).as_posix()):
                skipped.append((item, "has a name that is not UTF-8; rename it"))
            else:
                items.append(item)
                labels.append(len(names) - 1)
                pictures.append(Encoded(item, path))
    return Raw(items, np.array(labels, np.int64), pictures, tuple(names), skipped, notices)


def _no_picture(path: Path) -> str:
    """Why something in a class folder is not a picture."""
    if path.is_dir():
        return "is a folder in a class folder"
    if path.suffix.lower() in SUFFIXES:
        return "is a link to nothing, or no file"
    return f"is not an image file ({', '.join(SUFFIXES)})"


def _item(path: Path, root: Path) -> str:
    """The path below the data's root."""
    return readable(path.relative_to(root).as_posix())


def _copy_as_is(source: Path, target: Path) -> None:
    """Copy a file, a folder or a link; pipes and devices hold no data."""
    if source.is_symlink() or source.is_file():
        shutil.copy2(source, target, follow_symlinks=False)
    elif source.is_dir():
        target.mkdir(exist_ok=True)
        for path in source.iterdir():
            _copy_as_is(path, target / path.name)
        shutil.copystat(source, target)


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
