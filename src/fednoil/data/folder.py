"""The user's own pictures in folders: `<class>/…`, or `train/<class>/…` and `test/<class>/…`."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np

from fednoil.data.base import PathSource, PictureSource
from fednoil.data.decoded import Files
from fednoil.data.decoding import Wanted, decode_listing
from fednoil.data.images import Encoded
from fednoil.data.raw import Listing, Raw, is_text, readable
from fednoil.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
_IGNORED = ("thumbs.db", "desktop.ini")


class Folder(PictureSource, PathSource):
    how = "pictures in <class>/, or in train/<class>/ and test/<class>/"
    description = "your own pictures"

    def find(self, path: Path) -> Files:
        return find(path)

    def listing(self) -> Listing:
        return read_listing(self.path)

    def labelled(self) -> Raw:
        return read_labelled(self.path)


def find(root: Path) -> Files:
    """Everything that lies in class folders under `root`, in sorted order."""
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


def _class_folders(top: Path) -> dict[str, list[Path]]:
    return {name_of(path): visible(path) for path in visible(top) if path.is_dir()}


def labelled(top: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """What lies in the class folders of one site's `top`, in sorted order: pictures, class folders, everything else."""
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
    """Where a site's class folders lie: in `train` if that holds folders, else in `root`; a class may be called so."""
    top = root / "train"
    return top if top.is_dir() and any(path.is_dir() for path in visible(top)) else root


def is_picture(path: Path) -> bool:
    """Whether it is a file called like a picture."""
    return path.is_file() and path.suffix.lower() in SUFFIXES


def visible(folder: Path) -> list[Path]:
    """What lies in `folder`, sorted by name, without hidden files and the file managers' own."""
    try:
        found = sorted(folder.iterdir(), key=name_of)
    except OSError as error:
        raise UserError(f"{folder} can't be read ({error})") from error
    return [p for p in found if not p.name.startswith(".") and p.name.lower() not in _IGNORED]


def name_of(path: Path) -> str:
    """The name composed (NFC): file systems differ in how they store accents, and a class is one class."""
    return unicodedata.normalize("NFC", path.name)


def folder_name(class_name: str) -> str:
    """The folder of a class: a name with a slash, which no folder can have, has an underscore there."""
    return unicodedata.normalize("NFC", class_name).replace("/", "_")


def read_labelled(root: Path) -> Raw:
    """<class>/<image files> in `root`, or in its folder `train`."""
    if not root.is_dir():
        raise UserError(f"folder:{root} is not a folder; expected <class>/<image files> in it")
    return _read_classes(root, classes_in(root))


def _read_classes(root: Path, top: Path, *, any_name: bool = False) -> Raw:
    """What lies in the class folders of `top`; items are paths below `root`, which may have to be text."""
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
