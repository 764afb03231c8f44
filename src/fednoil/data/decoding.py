"""From a listing to a dataset's images: their size, files that can't be read, and what is held out for testing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fednoil.data.dataset import DatasetInfo, Owners, Split
from fednoil.data.decoded import Decoded, assemble
from fednoil.data.images import Encoded, Measure, Picture, Progress, Shape, decode, measure
from fednoil.data.raw import Listing, Raw, with_names
from fednoil.errors import UserError, counted

TEST_SHARE = 0.2
"""The share of each class that is held out for testing where the data have no test images."""

USUAL_SIDE = 64
LARGEST_SIDE = 256
_NAMED = 5  # files in one line
_CHUNK = 1 << 24  # bytes moved at a time

Room = Callable[[str, tuple[int, ...]], np.ndarray]
"""Makes an array uint8 of a shape for the split of that name."""


def in_memory(_split: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.empty(shape, np.uint8)


@dataclass(frozen=True)
class Wanted:
    """What a run wants from pictures: the side of the square they are resized to, if given, and whether unreadable
    files are left out. `data` is the data's name."""

    data: str
    size: int | None = None
    skip: bool = False


def decode_listing(
    listing: Listing, wanted: Wanted, room: Room = in_memory, progress: Progress | None = None
) -> Decoded:
    """Decode pictures into one shape; without test images a share of the training images becomes the test set."""
    listing = with_names(listing)
    names = listing.train.class_names
    parts = [listing.train] + ([] if listing.test is None else [listing.test])
    if not listing.train.items:
        raise _bad_files(wanted, parts, [{} for _ in parts]) if listing.train.skipped else _nothing(listing.where)
    measures = [measure(part.pictures) for part in parts]
    shape = _shape(wanted, [m for found in measures for m in found if isinstance(m, Measure)])
    lost: list[dict[int, str]] = []
    splits = []
    total, before = sum(len(part.items) for part in parts), 0
    for name, part, found in zip(("train", "test"), parts, measures, strict=False):
        images, failed = _decoded(name, part.pictures, found, shape, room, _shifted(progress, before, total))
        splits.append((images, part.labels))
        lost.append(failed)
        before += len(part.items)
    if not wanted.skip and (any(lost) or any(part.skipped for part in parts)):
        raise _bad_files(wanted, parts, lost)
    kept = _readable(listing.where, parts, lost)
    notices = [*_scaled(measures, shape, wanted), *(notice for part in parts for notice in part.notices)]
    splits = [(_compact(images, rows), labels[rows]) for (images, labels), rows in zip(splits, kept, strict=True)]
    skipped = _skipped(parts, lost)
    if skipped:
        left = f"{counted(len(skipped), 'picture')} {'is' if len(skipped) == 1 else 'are'} left out"
        notices.append(f"{left}, {skipped[0][0]} for example")
    owners = owners_of(listing.train, kept[0])
    about = DatasetInfo(
        tuple(listing.train.items[row] for row in kept[0]),
        owners,
        tuple(notices),
        tuple(skipped),
        tested=None if listing.test is None else tested_by(listing.test, kept[1], owners),
    )
    tested = None if len(splits) == 1 else splits[1]
    sites = None if listing.test is None else listing.test.sites
    train, test, about = hold_out(splits[0], tested, about, room, frozenset(sites or ()))
    if not len(test[1]):
        return replace(assemble(listing.where, train, train, names, about), test=Split(test[0], test[1]))
    return assemble(listing.where, train, test, names, about)


def hold_out(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray] | None,
    about: DatasetInfo,
    room: Room = in_memory,
    tested: frozenset[str] = frozenset(),
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray], DatasetInfo]:
    """Move a share of each class to the test set, at each site that has none (not one of those `tested`).

    Which images is decided by their pixels: the same ones in every run and under every seed, and nearly the same after
    labels were corrected.
    """
    images, labels = train
    owners = about.owners
    whose = np.zeros(len(labels), np.int64) if owners is None else owners.numbers
    without = [k for k in np.unique(whose) if owners is None or not owners.names or owners.names[k] not in tested]
    if test is not None and not (tested and without):
        return train, test, about
    rows = _held(images, labels, whose, without)
    what = "images" if images.dtype == np.uint8 else "rows"
    where = f" at {len(without)} of {len(np.unique(whose))} sites" if tested else ""
    own = test or (images[:0], labels[:0])
    if not len(rows):
        at = " there" if tested else "" if owners is None else " at any site"
        few = f"no test {what}{where}, and too few to hold some out: no class has three{at}"
        return train, own, replace(about, notices=(*about.notices, few))
    notice = (
        f"no test {what}{where}: {counted(len(rows), what[:-1])}, {100 * TEST_SHARE:.0f} % of each class, "
        f"{'is' if len(rows) == 1 else 'are'} held out; results on them are agreement with given labels, not accuracy"
    )
    before = about.tested
    tested_by = None
    if owners is not None and (before is not None or test is None):
        first = np.array([], np.int64) if before is None else before.numbers
        tested_by = Owners(np.concatenate([first, owners.numbers[rows]]), owners.names)
    held = room("held", (len(own[1]) + len(rows), *images.shape[1:]))
    for start, chunk in _chunks(np.arange(len(own[1])), images):
        held[start : start + len(chunk)] = own[0][chunk]
    for start, chunk in _chunks(rows, images):
        held[len(own[1]) + start : len(own[1]) + start + len(chunk)] = images[chunk]
    kept = np.setdiff1d(np.arange(len(labels)), rows)
    return (
        (_compact(images, kept), labels[kept]),
        (held, np.concatenate([own[1], labels[rows]])),
        replace(
            about,
            items=tuple(about.items[row] for row in kept) if about.items else (),
            owners=None if owners is None else Owners(owners.numbers[kept], owners.names),
            notices=(*about.notices, notice),
            held_out=len(rows),
            tested=tested_by,
        ),
    )


def _held(images: np.ndarray, labels: np.ndarray, whose: np.ndarray, sites: Sequence[int]) -> np.ndarray:
    """The rows that are held out, sorted: of each site and class those whose pixels' digests come first."""
    digests = np.array([hashlib.sha256(np.ascontiguousarray(image).data).digest()[:8] for image in images])
    rows: list[np.ndarray] = []
    for site in sites:
        for label in np.unique(labels):
            members = np.flatnonzero((whose == site) & (labels == label))
            rows.append(members[np.argsort(digests[members], kind="stable")][: int(TEST_SHARE * len(members) + 0.5)])
    return np.sort(np.concatenate(rows)).astype(np.int64)


def _shape(wanted: Wanted, measures: Sequence[Measure]) -> Shape:
    """Channels, height and width: the given square, or the size that all pictures have, or one that suits most."""
    channels = 3 if any(m.colour for m in measures) else 1
    if wanted.size is not None:
        return channels, wanted.size, wanted.size
    sizes = {m.size for m in measures} or {(1, 1)}
    if len(sizes) == 1 and max(size := next(iter(sizes))) <= LARGEST_SIDE:
        return channels, size[1], size[0]
    usual = int(np.median([min(m.size) for m in measures]))
    side = min(USUAL_SIDE, max(1, usual if usual < 8 else usual // 8 * 8))
    return channels, side, side


def _scaled(measures: Sequence[Sequence[Measure | str]], shape: Shape, wanted: Wanted) -> list[str]:
    """What was done to the images' sizes, in a sentence if anything was."""
    sizes = {m.size for found in measures for m in found if isinstance(m, Measure)}
    if sizes <= {(shape[2], shape[1])}:
        return []
    least, most = min(sizes, key=lambda s: s[0] * s[1]), max(sizes, key=lambda s: s[0] * s[1])
    which = f"{least[0]}×{least[1]}" if len(sizes) == 1 else f"{least[0]}×{least[1]} to {most[0]}×{most[1]}"
    how = "data.size" if wanted.size is not None else "set data.size for another"
    return [f"images of {which} pixels are scaled and cropped to {shape[2]}×{shape[1]} ({how})"]


def _decoded(
    split: str,
    pictures: Sequence[Picture],
    measures: Sequence[Measure | str],
    shape: Shape,
    room: Room,
    progress: Progress | None,
) -> tuple[np.ndarray, dict[int, str]]:
    """All pictures' rows, and why some have no image, by row."""
    failed = {row: why for row, why in enumerate(measures) if isinstance(why, str)}
    images = room(split, (len(pictures), *shape))
    return images, decode(pictures, images, progress) | failed


def _readable(where: str, parts: Sequence[Raw], lost: Sequence[dict[int, str]]) -> list[np.ndarray]:
    """The rows of each part that could be read; refuses to lose a class, a site or all test images."""
    kept = [
        np.array([row for row in range(len(part.items)) if row not in failed], np.int64)
        for part, failed in zip(parts, lost, strict=True)
    ]
    _check_left(where, parts[0], kept[0], lost[0])
    if len(parts) > 1 and lost[1] and not len(kept[1]):
        row, why = min(lost[1].items())
        first = f"the first, {_called(parts[1], row)}, {why}"
        raise UserError(f"{where}: no test image can be read; {first}; replace them, or remove them all")
    return kept


def _check_left(where: str, train: Raw, kept: np.ndarray, lost: dict[int, str]) -> None:
    """Refuse to lose a whole class or a whole site with the files that can't be read."""
    if not lost:
        return
    left = set(train.labels[kept].tolist())
    sites = {train.sites[row] for row in kept} if train.sites else set()
    for row, why in sorted(lost.items()):
        label = int(train.labels[row])
        if label not in left:
            name = str(label) if train.class_names is None else train.class_names[label]
            raise UserError(
                f"{where}: class '{name}' has no readable image; the first of it, {_called(train, row)}, {why}; "
                "replace the files, or remove the class"
            )
        if train.sites is not None and train.sites[row] not in sites:
            raise UserError(f"{where}: site '{train.sites[row]}' has no readable image; {_called(train, row)} {why}")


def _compact(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Only these rows, sorted, moved to the front in place: the array may be larger than memory."""
    if len(rows) == len(images):
        return images
    for start, chunk in _chunks(rows, images):
        images[start : start + len(chunk)] = images[chunk]
    return images[: len(rows)]


def _chunks(rows: np.ndarray, images: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """A few rows of `images` at a time, with the place of the first."""
    step = max(1, _CHUNK // max(1, images[:1].nbytes))
    return ((start, rows[start : start + step]) for start in range(0, len(rows), step))


def owners_of(train: Raw, kept: np.ndarray) -> Owners | None:
    if train.sites is None:
        return None
    names = tuple(dict.fromkeys(train.sites))
    number = {name: k for k, name in enumerate(names)}
    return Owners(np.array([number[train.sites[row]] for row in kept], np.int64), names)


def tested_by(test: Raw, kept: np.ndarray, owners: Owners | None) -> Owners | None:
    """The client that each test sample belongs to, among those that train."""
    if test.sites is None or owners is None or not set(test.sites) <= set(owners.names):
        return None
    return Owners(np.array([owners.names.index(test.sites[row]) for row in kept], np.int64), owners.names)


def _skipped(parts: Sequence[Raw], lost: Sequence[dict[int, str]]) -> list[tuple[str, str]]:
    """Everything that can't be used, and why, in order."""
    found: list[tuple[str, str]] = []
    for part, failed in zip(parts, lost, strict=True):
        found += [*part.skipped, *((_called(part, row), why) for row, why in sorted(failed.items()))]
    return found


def _called(part: Raw, row: int) -> str:
    picture = part.pictures[row]
    name = picture.where if isinstance(picture, Encoded) else part.items[row]
    return name if part.sites is None else f"{part.sites[row]}: {name}"


def _bad_files(wanted: Wanted, parts: Sequence[Raw], lost: Sequence[dict[int, str]]) -> UserError:
    """All files that can't be used, in one line."""
    found = _skipped(parts, lost)
    listed = ", ".join(f"{item} {why}" for item, why in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more (`fednoil data {wanted.data}` lists all)" if len(found) > _NAMED else ""
    them = "it" if len(found) == 1 else "them"
    return UserError(
        f"{wanted.data}: {counted(len(found), 'picture')} can't be used: {listed}{more}; replace or "
        f"remove {them}, or leave {them} out with data.bad = 'skip'"
    )


def _nothing(where: str) -> UserError:
    return UserError(
        f"{where} has no labelled image; expected <class>/<image files>, or rows with an image and a label"
    )


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, total)
