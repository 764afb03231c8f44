"""The contract of a data source: how it is named, found and read.

A source is one class with its own keys. `data.name` names it by one word, or by a word and a path (`folder:PATH`), or
as the user's own `package.module:Class`.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from fednoil.data.copy import Copy
from fednoil.data.decoded import Decoded, Files
from fednoil.data.decoding import Room, Wanted, decode_listing, in_memory
from fednoil.data.images import Progress
from fednoil.data.raw import Listing, Raw, numbered
from fednoil.errors import UserError
from fednoil.section import Section

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
Values = Annotated[tuple[float, ...], Field(min_length=1)]
Positive = Annotated[float, Field(gt=0)]


class DataConfig(Section):
    """The keys every source has."""

    name: str = Field(default="fashion-mnist-mini", description="which images")
    normalisation: tuple[Values, Annotated[tuple[Positive, ...], Field(min_length=1)]] | None = Field(
        default=None,
        description="means and standard deviations of the channels, for pixels in 0..1: [[0.5], [0.25]]; none: the "
        "dataset's",
    )
    validation: float | str = Field(
        default=0.0,
        description="what is kept out of training: a share of each client's samples, below 1 (0.1 is a tenth), or one "
        "of several equal parts, as an audit with --folds does (2/5 is the second of five), or both (0.1+2/5)",
    )

    @field_validator("validation")
    @classmethod
    def _share_or_fold(cls, value: float | str) -> float | str:
        _parts(value)
        return value

    @field_validator("normalisation", mode="before")
    @classmethod
    def _two_lists(cls, value: Any) -> Any:
        if value is not None and not (isinstance(value, list | tuple) and len(value) == 2):
            raise ValueError("must be two lists, means and standard deviations, such as [[0.5], [0.25]]")
        return value

    @property
    def held_out(self) -> float:
        """The share of each client's samples that is held out for validation."""
        return _parts(self.validation)[0]

    @property
    def left_out(self) -> tuple[int, int] | None:
        """Which fold, counted from 0, of how many is kept out of training."""
        return _parts(self.validation)[1]

    def without(self, fold: tuple[int, int] | None) -> Self:
        """The same data with one fold, counted from 0, of several kept out of training, or with none."""
        share = self.held_out
        found = share if fold is None else f"{f'{share}+' if share else ''}{fold[0] + 1}/{fold[1]}"
        return self.model_copy(update={"validation": found})


def _parts(validation: float | str) -> tuple[float, tuple[int, int] | None]:
    """The share and the fold, counted from 0, of how many, in 0.1, `2/5` or `0.1+2/5`."""
    share, number, count = validation, 1, 2
    if isinstance(share, str):
        found = re.fullmatch(r"(?:(\d?\.?\d+(?:e-\d+)?)\+)?(\d{1,9})/(\d{1,9})", share)
        share, number, count = (float(found[1] or 0), int(found[2]), int(found[3])) if found else (1.0, 1, 2)
    if not 0 <= share < 1 or not 1 <= number <= count or count < 2:
        raise ValueError("must be a share below 1, such as 0.1, or a fold, such as 2/5 for the second of five")
    return share, (number - 1, count) if isinstance(validation, str) else None


class PictureConfig(DataConfig):
    """The keys of sources of encoded pictures."""

    size: int | None = Field(
        default=None,
        ge=1,
        description="side of the square that pictures are scaled and cropped to; none: the size that all share, or "
        "else one that suits most, at most 64",
    )
    bad: Literal["refuse", "skip"] = Field(
        default="refuse", description="what happens to files that can't be read; skip: they are left out and listed"
    )


class Source(ABC):
    """Where images and labels come from. A source of the user's own defines `read`; the rest is optional."""

    Config: ClassVar[type[DataConfig]] = DataConfig
    takes: ClassVar[str] = ""  # what follows its word and a colon in `data.name`: "PATH" or "FILE"; "": nothing
    own: ClassVar[bool] = True  # the user's own data: nobody knows whether the labels are correct
    cached: ClassVar[bool] = False  # whether decoded copies are kept on disk, by `files` and its own keys
    normalisation: ClassVar[Normalisation | None] = None  # mean and std a channel; None: of the training images
    description: ClassVar[str] = ""
    how: ClassVar[str] = ""  # how to get it, or what to put there
    rewrites: ClassVar[Callable[[Path], Copy] | None] = None  # how to write a copy of it with other labels
    elsewhere: ClassVar[str] = ""  # what the name means if it stands for data that aren't on this machine

    def __init__(self, config: Any, data_dir: Path | None = None) -> None:
        self.config, self.data_dir = config, data_dir

    @abstractmethod
    def read(self) -> Decoded:
        """The images and labels; end in `fednoil.data.decoded.assemble`, which checks them."""

    def files(self) -> Files | None:
        """Where it is and which files it depends on, without decoding them; None: it depends on no file."""
        return None

    def where(self) -> str:
        """Where it was found, for `fednoil data`; "" where it wasn't."""
        return "inside the package"

    def labelled(self) -> Raw:
        """The training images one by one, for an audit, which lists what can't be read instead of refusing it."""
        decoded = self.read()
        images, labels = decoded.train.images, decoded.train.labels
        return Raw(numbered(len(labels)), labels, list(images), decoded.class_names)

    def listing(self) -> Listing:
        """All images one by one, for a run in which this is one site's data."""
        decoded, own = self.read(), self.labelled()
        test, names = decoded.test, decoded.class_names
        rest = Raw(numbered(len(test)), test.labels, list(test.images), names) if len(test) else None
        return Listing(self.config.name, own, rest)

    def clients(self) -> tuple[str, ...]:
        """The names of the clients, if the data say which client each sample belongs to; reads as little as
        possible."""
        return ()

    def key(self) -> str:
        """What a decoded copy depends on besides the files: the name and the source's own keys, if any."""
        own = {k: v for k, v in self.config.model_dump(mode="json").items() if k not in DataConfig.model_fields}
        return self.config.name + (json.dumps(own, sort_keys=True) if own else "")


class PathSource(Source):
    """Data at the path that `data.name` gives after a colon."""

    takes = "PATH"
    cached = True

    @abstractmethod
    def find(self, path: Path) -> Files:
        """The files at `path`; whatever is wrong with them is one clear line."""

    @property
    def path(self) -> Path:
        word, _, path = self.config.name.partition(":")
        if not path.strip():
            raise UserError(f"data.name = '{self.config.name}' has no path; write {word}:{self.takes}")
        return Path(path).expanduser()

    @cached_property
    def _found(self) -> Files:
        try:
            return self.find(self.path)
        except (OSError, RuntimeError) as error:  # no permission, too long a name, no such ~user
            raise UserError(f"data.name = '{self.config.name}' can't be read ({error})") from error

    def files(self) -> Files:
        return self._found

    def read(self) -> Decoded:
        return self._found.read()


class PictureSource(Source):
    """Encoded pictures of any size: they are listed first and then decoded as the run requires."""

    Config = PictureConfig
    cached = True

    @abstractmethod
    def listing(self) -> Listing:
        """All pictures; whatever else is there, and why it can't be used, is in `Raw.skipped`."""

    def decode(self, room: Room = in_memory, progress: Progress | None = None) -> Decoded:
        """The pictures in one shape; `room` makes the arrays that they are written to."""
        return decode_listing(self.listing(), wanted(self.config), room, progress)

    def read(self) -> Decoded:
        return self.decode()

    def labelled(self) -> Raw:
        return self.listing().train


def wanted(config: DataConfig) -> Wanted:
    """What a section says about pictures."""
    if not isinstance(config, PictureConfig):
        return Wanted(config.name)
    return Wanted(config.name, config.size, config.bad == "skip")


class Known(Source):
    """A well-known dataset, searched for in the data folders."""

    own = False
    cached = True
    usual: ClassVar[tuple[Path, ...]] = ()  # where else it may be, for example from a Debian package

    @abstractmethod
    def find(self, place: Path) -> Files | None:
        """Its files in a folder; None: there are none."""

    def places(self) -> list[Path]:
        """The folders to search, in order."""
        roots = [self.data_dir] if self.data_dir is not None else []
        if variable := os.environ.get("FEDNOIL_DATA"):
            roots.append(Path(variable))
        return [place for root in roots for place in (root, root / self.config.name)] + list(self.usual)

    def search(self) -> Files | None:
        """The first place that holds it; one that holds part of it is reported, unless another is complete."""
        partial: UserError | None = None
        for place in self.places():
            try:
                if found := self.find(place):
                    return found
            except UserError as error:
                partial = partial or error
            except OSError as error:
                partial = partial or UserError(
                    f"data.name = '{self.config.name}': {place} can't be read ({error.strerror})"
                )
        if partial is not None:
            raise partial
        return None

    def where(self) -> str:
        found = self.search()
        return "" if found is None else str(found.where)

    def files(self) -> Files:
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise UserError(f"the data folder {self.data_dir} (--data-dir) does not exist")
        found = self.search()
        if found is None:
            looked = ", ".join(str(place) for place in self.places()) or "no folder was given"
            raise UserError(
                f"data.name = '{self.config.name}' was not found (looked in: {looked}); {self.how}"
                " (--data-dir or $FEDNOIL_DATA)",
            )
        return found

    def read(self) -> Decoded:
        return self.files().read()
