"""Several sites' data in one run, each a client with its own name; classes are matched by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from fednoil.data.base import PictureConfig, PictureSource, Source, wanted
from fednoil.data.decoded import Decoded, Files
from fednoil.data.decoding import Room, decode_listing, in_memory
from fednoil.data.images import Progress
from fednoil.data.raw import Listing, Raw
from fednoil.data.table import COLUMN_NAMES, MISSING
from fednoil.data.vector_sources import VectorSource
from fednoil.data.vectors import aligned, decode_rows, united
from fednoil.errors import UserError, counted, few_of

SITES = "sites"
TEST = "test"
_LONG, _RARE = 5, 5  # letters of a name; how many times as many samples another has
_NUMBERED = re.compile(r"\d|\b[IVX]+$")  # grade III
T = TypeVar("T")


def _named(sites: dict[str, str]) -> dict[str, str]:
    for name in sites:
        if not name.strip() or not name.isprintable():
            raise ValueError(f"{name!r} is not a name for a site; each needs a readable one")
        if simplified(name) == TEST != name:
            raise ValueError(f"call {name!r} '{TEST}' if its data are to test the model, or otherwise if not")
    return sites


class SitesConfig(PictureConfig):
    """Which sites there are; in a federation, the nodes themselves know what they have."""

    sites: Annotated[dict[str, str], AfterValidator(_named)] = Field(
        default_factory=dict,
        description="each site's name and data in a simulation, as { nord = 'folder:PATH' }; the data of a site called "
        f"{TEST} are not trained on: they test the model of all",
    )


class SitesSource(PictureSource):
    Config = SitesConfig
    elsewhere = "the data of a federation's sites: `fednoil federation run`, or --site NAME=DATA to simulate them"

    def clients(self) -> tuple[str, ...]:
        return tuple(name for name in self.config.sites if name != TEST)

    def listing(self) -> Listing:
        listings = {name: _read(name, source.listing) for name, source in self._open().items()}
        common = listings.pop(TEST, None)
        return merged(listings, common)

    def decode(self, room: Room = in_memory, progress: Progress | None = None) -> Decoded:
        listing = self.listing()
        return (
            decode_rows(listing)
            if listing.train.columns
            else decode_listing(listing, wanted(self.config), room, progress)
        )

    def files(self) -> Files | None:
        if any(isinstance(source, VectorSource) for source in self._open().values()):
            return None  # what is read of a table is not kept
        found = {name: _read(name, source.files) for name, source in self._open().items()}
        paths: list[Path] = []
        for files in found.values():
            if files is None:
                return None
            paths += files.paths
        return Files(Path(), tuple(paths), self.decode)

    def _open(self) -> dict[str, Source]:
        from fednoil.data.sources import as_asked, open_own, open_source  # the table has this class in it

        if not self.clients():
            self._nowhere()
        for name, data in self.config.sites.items():
            _read(name, lambda data=data: open_own(data))
        return {name: open_source(as_asked(data, self.config)) for name, data in self.config.sites.items()}

    def _nowhere(self) -> NoReturn:
        if self.config.sites:
            raise UserError(f"site '{TEST}' only tests a model; name a site to train it on, too")
        raise UserError(f"data.name = '{SITES}' means {self.elsewhere}")


def _read(site: str, read: Callable[[], T]) -> T:
    """What a site's source gives; an error names the site."""
    try:
        return read()
    except UserError as error:
        raise UserError(f"site '{site}': {error}") from None


def merged(sites: Mapping[str, Listing], common: Listing | None = None) -> Listing:
    """All sites' images as one listing, their classes numbered alike, with `common` ones for testing if there are some;
    what doesn't fit together is one clear line."""
    for name, listing in sites.items():
        if not listing.train.items and not listing.train.skipped:
            raise UserError(f"site '{name}' ({listing.where}) has no labelled image; every site needs one")
        if listing.train.sites is not None:
            raise UserError(
                f"site '{name}': {listing.where} has sites of its own; use it alone, or rename its "
                f"column {' or '.join(COLUMN_NAMES['site'])} or leave it out (:drop=COLUMN)"
            )
    sites = _same_columns(sites)
    numbered = [name for name, listing in sites.items() if listing.train.class_names is None]
    if numbered and len(numbered) < len(sites):
        other = next(name for name in sites if name not in numbered)
        names = ", ".join((sites[other].train.class_names or ())[:4])
        raise UserError(
            f"site '{numbered[0]}' numbers its classes and site '{other}' names them ({names}); use names or "
            "numbers at all sites"
        )
    classes = None if numbered else _union({name: own.train.class_names or () for name, own in sites.items()})
    if classes is None:
        _check_numbers({name: np.unique(own.train.labels) for name, own in sites.items()})
    tested = {name: own.test for name, own in sites.items() if own.test is not None}
    sites = _with_strangers(sites)
    train = _joined({name: own.train for name, own in sites.items()}, classes)
    where = f"{SITES} {', '.join(sites)}"
    if common is None:
        return Listing(where, train, _joined(tested, classes) if tested else None)
    if tested:
        raise UserError(f"site '{next(iter(tested))}' has test samples of its own, beside site '{TEST}'; leave one out")
    return Listing(where, train, _tested(common, train))


def _tested(common: Listing, train: Raw) -> Raw:
    """Data that test all sites' model, with the columns and the classes of what it is trained on."""
    raw, where, pictures = common.test or common.train, f"site '{TEST}' ({common.where})", None
    if bool(raw.columns) != bool(train.columns):
        raise UserError(f"{where} has {'rows' if raw.columns else 'pictures'}, and the other sites have not")
    if raw.columns:
        pictures = list(aligned(np.asarray(raw.pictures, np.float32), raw.columns, train.columns, where))
    if (raw.class_names is None) != (train.class_names is None):
        how = ("numbers", "names") if raw.class_names is None else ("names", "numbers")
        raise UserError(f"{where} has classes with {how[0]}, and the other sites with {how[1]}; use the same")
    number = {name: k for k, name in enumerate(train.class_names or ())}
    names = raw.class_names
    if unknown := [name for name in names or () if name not in number]:
        raise UserError(f"{where} has the class '{unknown[0]}', which no other site has; they have {few_of([*number])}")
    labels = raw.labels if names is None else np.array([number[name] for name in names], np.int64)[raw.labels]
    skipped = [(f"{TEST}: {item}", why) for item, why in raw.skipped]
    return replace(
        raw,
        labels=labels,
        class_names=train.class_names,
        pictures=raw.pictures if pictures is None else pictures,
        columns=train.columns,
        skipped=skipped,
        notices=[],
        sites=None,
    )


def _with_strangers(sites: Mapping[str, Listing]) -> Mapping[str, Listing]:
    """The same, with a notice at each site that has no class in common with any other."""
    names = {site: set(own.train.class_names or ()) for site, own in sites.items()}
    found = dict(sites)
    for site, own in sites.items() if len(sites) > 1 else ():
        others = set[str]().union(*(classes for other, classes in names.items() if other != site))
        if names[site] and not names[site] & others:
            line = f"its classes ({few_of(sorted(names[site]), 3)}) are at no other site ({few_of(sorted(others), 3)})"
            train = replace(own.train, notices=[*own.train.notices, f"{line}; if they are the same, name them alike"])
            found[site] = replace(own, train=train)
    return found


def _joined(parts: Mapping[str, Raw], classes: tuple[str, ...] | None) -> Raw:
    """One site's images after another's. Items keep the names they have at their site; refused files are named with the
    site."""
    number = {name: k for k, name in enumerate(classes or ())}
    labels = []
    for raw in parts.values():
        own = None if classes is None else np.array([number[name] for name in raw.class_names or ()], np.int64)
        labels.append(raw.labels if own is None else own[raw.labels])
    return Raw(
        [item for raw in parts.values() for item in raw.items],
        np.concatenate(labels),
        [picture for raw in parts.values() for picture in raw.pictures],
        classes,
        [(f"{name}: {item}", why) for name, raw in parts.items() for item, why in raw.skipped],
        [f"{name}: {notice}" for name, raw in parts.items() for notice in raw.notices],
        [name for name, raw in parts.items() for _ in raw.items],
        next(iter(parts.values())).columns,
    )


def _same_columns(sites: Mapping[str, Listing]) -> Mapping[str, Listing]:
    """Sites that have vectors with the same columns in the same order."""
    vectors = [name for name, listing in sites.items() if listing.train.columns]
    if not vectors:
        return sites
    if pictures := [name for name in sites if name not in vectors]:
        raise UserError(f"site '{pictures[0]}' has pictures and site '{vectors[0]}' vectors; all need the same kind")
    columns = united({name: listing.train.columns for name, listing in sites.items()})

    def fitted(raw: Raw | None, where: str) -> Raw | None:
        if raw is None:
            return None
        values = aligned(np.asarray(raw.pictures, np.float32), raw.columns, columns, where)
        return replace(raw, pictures=list(values), columns=columns)

    found = {}
    for name, own in sites.items():
        train, test = (fitted(raw, f"site '{name}'") for raw in (own.train, own.test))
        assert train is not None
        found[name] = replace(own, train=train, test=test)
    return found


def simplified(name: str) -> str:
    """A class's name without what may be a slip: its case, and more spaces than one."""
    return " ".join(name.casefold().split())


def doubtful(class_names: Sequence[str], sites: Sequence[str], counts: Sequence[int] = ()) -> list[str]:
    """Lines about classes that may be one, written in two ways, or stand for no label, and about sites that may be
    one; `counts` are the classes' samples."""
    missing = [name for name in class_names if simplified(name) in MISSING]
    numbers = [name for name in class_names if name.strip().lstrip("+-").replace(".", "", 1).isdecimal()]
    words = [name for name in class_names if name not in numbers]
    mixed = f"labels are numbers ({few_of(numbers, 3)}) and text ({few_of(words, 3)}); correct those that are mistakes"
    return [
        *([mixed] if numbers and words else []),
        *_twice("classes", class_names),
        *_misspelled(dict(zip(class_names, counts, strict=False))),
        *(f"class '{name}' reads like a missing label; if it is one, leave its samples out" for name in missing),
        *_twice("sites", sites),
    ]


def _misspelled(counts: Mapping[str, int]) -> list[str]:
    """Lines about classes with few samples whose names are almost those of others."""
    words = {name: simplified(name) for name in counts if len(name) >= _LONG and not _NUMBERED.search(name)}
    found = []
    for name, word in words.items():
        larger = {words[other]: other for other in words if counts[other] > _RARE * counts[name] > 0}
        if alike := next((other for other in larger if _slip(word, other)), None):
            pair = f"class '{name}' has {counted(counts[name], 'sample')} and is spelled almost like"
            found.append(f"{pair} '{larger[alike]}'; if they are one, give it one name")
    return found


def _slip(word: str, other: str) -> bool:
    """Whether one letter was left out, added, changed or exchanged with the next; not before the word (atypical)."""
    short, long = sorted((word, other), key=len)
    start = next((k for k, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return start > 0 and short[start:] == long[start + 1 :]
    swapped = short[start + 1 : start + 2] + short[start : start + 1] + short[start + 2 :]
    return word != other and long[start:] in (swapped, long[start : start + 1] + short[start + 1 :])


def _twice(what: str, names: Sequence[str]) -> list[str]:
    """A line about names that may be one; single letters are meant."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(simplified(name), name), name) for name in names if len(name.strip()) > 1]
    found = few_of([f"'{before}' and '{name}'" for before, name in pairs if before != name], 3)
    return [f"{what} {found} differ only in case or spaces; if they are one, give it one name"] if found else []


def _union(sites: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """All names: in the order of a site that has all of them, by number, or by alphabet."""
    first: dict[str, tuple[str, str]] = {}
    for site, names in sites.items():
        for name in names:
            before = first.setdefault(simplified(name), (site, name))
            if before[1] != name:
                other = "" if before[0] == site else f" site '{before[0]}'"
                raise UserError(
                    f"site '{site}' has a class '{name}' and{other} '{before[1]}'; if they are one class, "
                    "call it the same, otherwise give them names that differ in more than case and spaces"
                )
    every = {name for names in sites.values() for name in names}
    for names in sites.values():
        if set(names) == every:
            return names
    return tuple(sorted(every, key=int) if all(n.isdecimal() for n in every) else sorted(every))


def _check_numbers(present: Mapping[str, np.ndarray]) -> None:
    """Refuse sites of which some count classes from 0 and others from 1."""
    zero = {site: labels for site, labels in present.items() if 0 in labels}
    most = max((int(labels.max()) for labels in zero.values()), default=0)
    for site, labels in present.items():
        if zero and site not in zero and np.array_equal(labels, np.arange(1, most + 2)):
            other = next(iter(zero))
            raise UserError(
                f"site '{site}' numbers its classes 1 to {most + 1}, and site '{other}' from 0; number them alike at "
                "all sites, or use names"
            )
