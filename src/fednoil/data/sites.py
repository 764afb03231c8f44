"""Several sites' data in one run, each a client with its own name; classes are matched by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from fednoil.data.base import PictureConfig, PictureSource, Source
from fednoil.data.decoded import Files
from fednoil.data.raw import Listing, Raw
from fednoil.errors import UserError

SITES = "sites"
T = TypeVar("T")


def _named(sites: dict[str, str]) -> dict[str, str]:
    for name in sites:
        if not name.strip() or not name.isprintable():
            raise ValueError(f"{name!r} is not a name for a site; each needs a readable one")
    return sites


class SitesConfig(PictureConfig):
    """Which sites there are; in a federation, the nodes themselves know what they have."""

    sites: Annotated[dict[str, str], AfterValidator(_named)] = Field(
        default_factory=dict, description="each site's name and data in a simulation, as { nord = 'folder:PATH' }"
    )


class Sites(PictureSource):
    Config = SitesConfig
    elsewhere = "the data of a federation's sites: `fednoil federation run`, or --site NAME=DATA to simulate them"

    def clients(self) -> tuple[str, ...]:
        return tuple(self.config.sites)

    def listing(self) -> Listing:
        return merged({name: _told(name, source.listing) for name, source in self._open().items()})

    def files(self) -> Files | None:
        found = {name: _told(name, source.files) for name, source in self._open().items()}
        paths: list[Path] = []
        for files in found.values():
            if files is None:
                return None
            paths += files.paths
        return Files(Path(), tuple(paths), self.decode)

    def _open(self) -> dict[str, Source]:
        from fednoil.data.sources import as_asked, open_own, open_source  # the table has this class in it

        if not self.config.sites:
            self._nowhere()
        for name, data in self.config.sites.items():
            _told(name, lambda data=data: open_own(data))
        return {name: open_source(as_asked(data, self.config)) for name, data in self.config.sites.items()}

    def _nowhere(self) -> NoReturn:
        raise UserError(f"data.name = '{SITES}' means {self.elsewhere}")


def _told(site: str, read: Callable[[], T]) -> T:
    """What a site's source gives; an error names the site."""
    try:
        return read()
    except UserError as error:
        raise UserError(f"site '{site}': {error}") from None


def merged(sites: Mapping[str, Listing]) -> Listing:
    """All sites' images as one listing, their classes numbered alike; what doesn't fit together is one clear line."""
    for name, listing in sites.items():
        if not listing.train.items and not listing.train.skipped:
            raise UserError(f"site '{name}' ({listing.where}) has no labelled image; every site needs one")
        if listing.train.sites is not None:
            raise UserError(f"site '{name}': {listing.where} has sites of its own; use it alone, or drop its column")
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
    train = _joined({name: own.train for name, own in sites.items()}, classes)
    where = f"{SITES} {', '.join(sites)}"
    return Listing(where, train, _joined(tested, classes) if tested else None)


def _joined(parts: Mapping[str, Raw], classes: tuple[str, ...] | None) -> Raw:
    """One site's images after another's. Items are called as at their site; files that are refused have its name."""
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
    )


def _union(sites: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """All names: in the order of a site that has all of them, by number, or by alphabet."""
    first: dict[str, tuple[str, str]] = {}
    for site, names in sites.items():
        for name in names:
            before = first.setdefault(" ".join(name.casefold().split()), (site, name))
            if before[1] != name:
                raise UserError(
                    f"site '{site}' has a class '{name}' and site '{before[0]}' '{before[1]}'; if they are one class, "
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
