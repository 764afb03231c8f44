"""Every source of samples by name: one file and one line in the table below for each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fednoil.data.arrays import Mini, Npz
from fednoil.data.base import DataConfig, Source
from fednoil.data.cifar import Cifar10, Cifar100
from fednoil.data.clothing import Clothing1M
from fednoil.data.elsewhere import ARRAYS, Arrays
from fednoil.data.features import Features
from fednoil.data.folder import Folder
from fednoil.data.idx import FashionMnist
from fednoil.data.parquet import Parquet
from fednoil.data.saved import Saved
from fednoil.data.sites import SITES, SitesSource
from fednoil.data.table import Csv
from fednoil.data.vector_sources import TableSource
from fednoil.data.webdataset import WebDataset
from fednoil.errors import UserError, nearest
from fednoil.plugins import Axis

SOURCES: dict[str, type[Source]] = {
    "fashion-mnist-mini": Mini,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "clothing1m": Clothing1M,
    "folder": Folder,
    "csv": Csv,
    "npz": Npz,
    "parquet": Parquet,
    "hf": Saved,
    "webdataset": WebDataset,
    "table": TableSource,
    "features": Features,
    SITES: SitesSource,
    ARRAYS: Arrays,
}


class _Sources(Axis[Source]):
    """A name may have a path after its word, and the words of the table come before import paths."""

    def is_own(self, name: str) -> bool:
        return ":" in name and name.partition(":")[0] not in self.table

    def find(self, name: str) -> type[Source]:
        word, colon, _ = name.partition(":")
        if word in self.table and (not colon or self.table[word].takes):
            return self.table[word]
        if word in self.table or not colon:
            raise self._unknown(name)
        try:
            return super().find(name)
        except UserError as error:
            if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == word:
                raise self._unknown(name) from None
            raise

    def names(self) -> list[str]:
        return [f"{word}:{cls.takes}" if cls.takes else word for word, cls in self.table.items()]

    def _unknown(self, name: str) -> UserError:
        listed = [word for word, cls in self.table.items() if not cls.takes and not cls.elsewhere]
        with suppress(OSError, ValueError):  # of names that no file can have
            if Path(name).is_dir():
                return UserError(f"data.name = '{name}' is a folder; for the pictures in it write folder:{name}")
            if Path(name).is_file():
                return UserError(f"data.name = '{name}' is a file; say how to read it: {', '.join(forms())}")
        return UserError(
            f"data.name = '{name}' is unknown; choose {', '.join(listed)} or your own {', '.join(forms())} or "
            f"package.module:Class{nearest(name, [*listed, *forms()])}"
        )


AXIS = _Sources("data", Source, SOURCES, default="fashion-mnist-mini")


def forms() -> list[str]:
    """How data at a path are named: `folder:PATH`, …"""
    return [f"{word}:{cls.takes}" for word, cls in SOURCES.items() if cls.takes and not cls.elsewhere]


def is_own(name: str) -> bool:
    """Whether `data.name` is the user's own data, with labels that may be wrong."""
    return AXIS.find(name).own


def open_source(data: DataConfig | str, data_dir: Path | None = None) -> Source:
    """The source that a section or a name means; nothing is read."""
    name = data if isinstance(data, str) else data.name
    config = AXIS.config(name)(name=name) if isinstance(data, str) else data  # pyright: ignore[reportCallIssue]
    return AXIS.find(name)(config, data_dir)


def clients_of(data: DataConfig) -> tuple[str, ...]:
    """The names of the clients, if the data say which client each sample belongs to; errors in the data are reported
    later."""
    with suppress(UserError, OSError, ValueError, RuntimeError):
        return open_source(data).clients()
    return ()


def as_asked(name: str, asked: DataConfig) -> DataConfig:
    """The section for one site's data, with the run's keys for pictures if it has any."""
    config = AXIS.config(name)
    keys = {key: getattr(asked, key) for key in ("size", "bad") if key in config.model_fields and hasattr(asked, key)}
    return cast(DataConfig, config.model_validate({"name": name, **keys}))


def open_own(name: str) -> Source:
    """The user's own data, as `--data` gives them."""
    word, _, path = name.partition(":")
    if not path.strip() or (word in SOURCES and not SOURCES[word].takes):
        raise UserError(f"data '{name}' must be {', '.join(forms())} or your own package.module:Class")
    return open_source(name)


@dataclass(frozen=True)
class SourceStatus:
    """A source: whether it is on this machine (None: it is the user's own), where, how to get it, and what it is."""

    name: str
    found: bool | None
    where: str
    how: str
    description: str


def catalogue(data_dir: Path | None = None) -> list[SourceStatus]:
    """Every source that can be named, and whether and where it was found; nothing is decoded."""
    rows = []
    for word, cls in SOURCES.items():
        if cls.elsewhere:
            continue
        if cls.takes:
            rows.append(SourceStatus(f"{word}:{cls.takes}", None, "", cls.how, cls.description))
            continue
        try:
            where = open_source(word, data_dir).where()
            found = bool(where)
        except UserError as error:
            found, where = False, str(error)
        rows.append(SourceStatus(word, found, where, cls.how, cls.description))
    return rows
