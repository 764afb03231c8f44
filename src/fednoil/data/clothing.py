"""Clothing1M (Xiao et al., CVPR 2015) as its authors hand it out: lists of pictures, and labels of shops and of people.

Training has the shops' labels, of which more than a third are wrong, and the test pictures have people's. The lists are
next to the pictures or in `annotations`; their paths start at the data's folder, with or without `images/`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fednoil.data.base import Known, PictureSource
from fednoil.data.decoded import Files
from fednoil.data.images import Encoded
from fednoil.data.raw import Listing, Raw, readable
from fednoil.errors import UserError

_TRAIN, _TEST = ("noisy_train_key_list.txt", "noisy_label_kv.txt"), ("clean_test_key_list.txt", "clean_label_kv.txt")
_NAMES = "category_names_eng.txt"
_CLASSES = (
    "T-Shirt",
    "Shirt",
    "Knitwear",
    "Chiffon",
    "Sweater",
    "Hoodie",
    "Windbreaker",
    "Jacket",
    "Downcoat",
    "Suit",
    "Shawl",
    "Dress",
    "Vest",
    "Underwear",
)


class Clothing1M(PictureSource, Known):
    own = True  # nobody knows which of the shops' labels are right
    how = "ask its authors, and put the lists and the unpacked pictures into a data folder"
    description = "colour pictures of clothes, 14 classes; shops' labels to train on, people's to test"

    def find(self, place: Path) -> Files | None:
        lists = _lists(place)
        if lists is None:
            return None
        listing = read_listing(place, lists)
        pictures = [p for part in (listing.train, listing.test) if part for p in part.pictures]
        paths = [p.source for p in pictures if isinstance(p, Encoded) and isinstance(p.source, Path)]
        return Files(place, (*(lists / name for name in (*_TRAIN, *_TEST)), *paths), self.decode)

    def listing(self) -> Listing:
        root = self.files().where
        return read_listing(root, _lists(root) or root)


def read_listing(root: Path, lists: Path) -> Listing:
    """The pictures of both lists with their labels; each is named as in the list."""
    names = _lines(lists / _NAMES) if (lists / _NAMES).is_file() else list(_CLASSES)
    train, test = (_part(root, lists / keys, lists / labels, tuple(names)) for keys, labels in (_TRAIN, _TEST))
    return Listing(f"clothing1m in {root}", train, test)


def _lists(root: Path) -> Path | None:
    """The folder with the lists; one with some of them is refused."""
    for folder in (root, root / "annotations"):
        missing = [name for name in (*_TRAIN, *_TEST) if not (folder / name).is_file()]
        if not missing:
            return folder
        if len(missing) < len(_TRAIN) + len(_TEST):
            raise UserError(f"data.name = 'clothing1m': {folder} has no {missing[0]} beside the other lists")
    return None


def _part(root: Path, keys: Path, labels: Path, names: tuple[str, ...]) -> Raw:
    wanted, known = _lines(keys), _labels(labels, len(names))
    if not wanted:
        raise UserError(f"{keys} is empty; it must name pictures, one a line")
    if lost := next((key for key in wanted if key not in known), None):
        raise UserError(f"{keys}: '{readable(lost)}' has no label in {labels.name}")
    top = _top(root, wanted[0])
    pictures = [Encoded(readable(key), top / key) for key in wanted]
    return Raw([readable(key) for key in wanted], np.array([known[key] for key in wanted], np.int64), pictures, names)


def _top(root: Path, key: str) -> Path:
    """Where a list's pictures are: in the folder, in `images` or in the folder above, depending on the list's paths."""
    places = (root, root / "images", root.parent)
    if found := next((place for place in places if (place / key).is_file()), None):
        return found
    packed = next(iter(sorted((root / "images").glob("*.tar"))), None)
    hint = f"; unpack {packed.name} and the others first" if packed else ""
    raise UserError(f"data.name = 'clothing1m': {root} has no picture '{readable(key)}', the first of its list{hint}")


def _labels(path: Path, classes: int) -> dict[str, int]:
    """The label of each picture: lines `PATH NUMBER`."""
    found = {}
    for number, line in enumerate(_lines(path), start=1):
        key, _, label = line.rpartition(" ")
        if not key or not label.isdecimal() or int(label) >= classes:
            raise UserError(f"{path}, line {number}: '{readable(line)}' must be a picture and a number below {classes}")
        found[key] = int(label)
    return found


def _lines(path: Path) -> list[str]:
    try:
        return [line for text in path.read_text(encoding="utf-8").splitlines() if (line := text.strip())]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read ({error})") from None
