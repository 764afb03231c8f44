"""The user's own pictures in folders: `train/<class>/…` and `test/<class>/…`."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np

from fednoil.data.base import PathSource
from fednoil.data.decoded import Decoded, Files, assemble
from fednoil.data.images import Encoded, decode
from fednoil.data.raw import Raw, is_text, readable
from fednoil.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
_IGNORED = ("thumbs.db", "desktop.ini")

Classes = dict[str, list[Path]]


class Folder(PathSource):
    how = "pictures in train/<class>/ and test/<class>/"
    description = "your own pictures"

    def find(self, path: Path) -> Files:
        return find(path)

    def labelled(self) -> Raw:
        return read_labelled(self.path)

    def row_names(self, count: int) -> list[str]:
        files = self.files()
        return [readable(path.relative_to(files.where).as_posix()) for path in files.paths[:count]]


def find(root: Path) -> Files:
    """Every picture under `root`, grouped by class, in sorted order."""
    if not root.is_dir():
        raise UserError(f"folder:{root} is not a folder; expected train/<class>/<image files> and test/… in it")
    for split in ("train", "test"):
        if not (root / split).is_dir():
            above = root.name in ("train", "test") and (root.parent / "train").is_dir()
            hint = f"; did you mean folder:{root.parent}?" if above else ""
            raise UserError(f"folder:{root} has no folder '{split}'; expected {split}/<class>/<image files>{hint}")
    train, test = _classes(root / "train"), _classes(root / "test")
    unknown = [name for name in test if name not in train]
    if unknown:
        raise UserError(f"{root / 'test'}: class '{unknown[0]}' is missing from train; add it there")
    paths = tuple(path for classes in (train, test) for files in classes.values() for path in files)
    return Files(root, paths, lambda: _read(root, train, test))


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


def _classes(folder: Path) -> Classes:
    """The pictures in each class folder."""
    classes: Classes = {}
    for path in visible(folder):
        if not path.is_dir():
            raise UserError(f"{path} is not a class folder; put images into {folder.name}/<class>/")
        if name_of(path) in classes:
            raise UserError(f"{path}: two folders are called '{name_of(path)}'; merge them")
        classes[name_of(path)] = _files(path)
    if not classes:
        raise UserError(f"{folder} has no class folders; expected {folder.name}/<class>/<image files>")
    return classes


def _files(folder: Path) -> list[Path]:
    files = visible(folder)
    for path in files:
        # Told and not skipped: images of a kind we can't read would silently vanish from the experiment.
        if not is_picture(path):
            raise UserError(f"{path} is not an image file ({', '.join(SUFFIXES)}); convert or remove it")
    if not files:
        raise UserError(f"class folder {folder} is empty; put images in or remove it")
    return files


def _read(root: Path, train: Classes, test: Classes) -> Decoded:
    number = {name: i for i, name in enumerate(train)}
    pictures = [[Encoded(str(p), p) for files in c.values() for p in files] for c in (train, test)]
    labels = [np.array([number[name] for name in c for _ in c[name]], np.int64) for c in (train, test)]
    images = decode(*pictures)
    return assemble(f"folder:{root}", (images[0], labels[0]), (images[1], labels[1]), tuple(train))


def read_labelled(root: Path) -> Raw:
    """<class>/<image files> in `root`, or in its folder `train`."""
    if not root.is_dir():
        raise UserError(f"folder:{root} is not a folder; expected <class>/<image files> in it")
    top = classes_in(root)
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
            elif not is_text(path.relative_to(root).as_posix()):
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
