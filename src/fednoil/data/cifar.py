"""CIFAR-10 and CIFAR-100 from the official Python archives, packed or unpacked, or from parquet shards.

Archive members are read in memory by their exact names and never extracted; their pickles go through
`fednoil.data.restricted`.
"""

from __future__ import annotations

import tarfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fednoil.data import parquet
from fednoil.data.base import Known
from fednoil.data.decoded import Decoded, Files, assemble
from fednoil.data.restricted import load_dict
from fednoil.errors import UserError

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_TEXT = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
    can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
    dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
    lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
    pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
    seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
    worm
"""
CIFAR100_CLASSES = tuple(_CIFAR100_TEXT.split())
# The largest official member is 155 MB; a larger claim is a damaged or hostile archive.
_MEMBER_LIMIT = 400_000_000


@dataclass(frozen=True)
class Layout:
    """How one of the two archives is laid out."""

    name: str
    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    label_key: str
    parquet_label: str
    class_names: tuple[str, ...]

    @property
    def members(self) -> tuple[str, ...]:
        return (*self.train, self.test)


CIFAR10 = Layout(
    name="cifar10",
    archive="cifar-10-python.tar.gz",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    label_key="labels",
    parquet_label="label",
    class_names=CIFAR10_CLASSES,
)
CIFAR100 = Layout(
    name="cifar100",
    archive="cifar-100-python.tar.gz",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    label_key="fine_labels",
    parquet_label="fine_label",
    class_names=CIFAR100_CLASSES,
)


class Cifar10(Known):
    normalisation = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
    description = "CIFAR-10, 50,000 + 10,000 colour images 32×32, 10 classes"
    how = "put the official cifar-10-python.tar.gz (or train-*, test-*.parquet) into the data folder"
    layout = CIFAR10

    def find(self, place: Path) -> Files | None:
        return find(self.layout, place)


class Cifar100(Cifar10):
    normalisation = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    description = "CIFAR-100, 50,000 + 10,000 colour images 32×32, 100 classes"
    how = "put the official cifar-100-python.tar.gz (or train-*, test-*.parquet) into the data folder"
    layout = CIFAR100


def find(layout: Layout, place: Path) -> Files | None:
    """The unpacked folder, else the archive, else parquet shards in `place`; None when none is there."""
    for folder in (place / layout.folder, place):
        if all((folder / name).is_file() for name in layout.members):
            paths = tuple(folder / name for name in layout.members)
            return Files(folder, paths, partial(_read_folder, layout, folder))
    archive = place / layout.archive
    if archive.is_file():
        return Files(archive, (archive,), lambda: _read_archive(layout, archive))
    if (place / layout.folder).is_dir():
        missing = [name for name in layout.members if not (place / layout.folder / name).is_file()]
        raise UserError(f"{layout.name}: {place / layout.folder} lacks {', '.join(missing)}")
    if parquet.shards(place, "train") and parquet.shards(place, "test"):
        return parquet.find_known(place, layout.parquet_label, layout.class_names, (3, 32, 32))
    return None


def _read_folder(layout: Layout, folder: Path) -> Decoded:
    try:
        contents = {name: (folder / name).read_bytes() for name in layout.members}
    except OSError as error:
        raise UserError(f"{layout.name}: {folder} can't be read ({error})") from error
    return _build(layout, str(folder), contents)


def _read_archive(layout: Layout, archive: Path) -> Decoded:
    wanted = {f"{layout.folder}/{name}": name for name in layout.members}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                if member.name not in wanted or not member.isfile():
                    continue
                if member.size > _MEMBER_LIMIT:
                    raise UserError(f"{archive}: {member.name} claims {member.size} bytes; get it again")
                stream = tar.extractfile(member)
                contents[wanted[member.name]] = stream.read() if stream is not None else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UserError(
            f"{archive} can't be read ({error}); it may be cut short: get {layout.archive} again"
        ) from error
    missing = [path for path, name in wanted.items() if name not in contents]
    if missing:
        raise UserError(f"{archive} lacks {', '.join(missing)}; get {layout.archive} again")
    return _build(layout, str(archive), contents)


def _build(layout: Layout, where: str, contents: dict[str, bytes]) -> Decoded:
    parts = [_batch(layout, f"{where}: {name}", contents[name]) for name in layout.train]
    train = np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])
    test = _batch(layout, f"{where}: {layout.test}", contents[layout.test])
    return assemble(where, train, test, layout.class_names)


def _batch(layout: Layout, what: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """One pickled batch: images uint8 [N, 3, 32, 32] and labels int64 [N]."""
    values = load_dict(data, what)
    images, labels = values.get("data"), values.get(layout.label_key)
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != 3 * 32 * 32:
        shape = getattr(images, "shape", "missing")
        raise UserError(f"{what}: 'data' is {shape}; expected an array [N, 3072] of 3×32×32 pixels")
    if images.dtype != np.uint8:
        raise UserError(f"{what}: 'data' holds {images.dtype}; expected uint8")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise UserError(f"{what}: '{layout.label_key}' is not a list of integers")
    if len(labels) != len(images):
        raise UserError(f"{what} has {len(images)} images and {len(labels)} labels; the numbers must agree")
    if any(not 0 <= label < len(layout.class_names) for label in labels):
        wrong = next(label for label in labels if not 0 <= label < len(layout.class_names))
        raise UserError(f"{what}: label {wrong} is out of range; use 0..{len(layout.class_names) - 1}")
    return np.ascontiguousarray(images).reshape(-1, 3, 32, 32), np.array(labels, np.int64)
