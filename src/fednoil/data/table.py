"""Pictures that a CSV file lists: a column with paths, one with labels, and maybe one with sites."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fednoil.data.base import PathSource, PictureSource
from fednoil.data.choice import Choice, chosen
from fednoil.data.copy import Copy, Sample
from fednoil.data.decoded import Files, name_classes
from fednoil.data.folder import SUFFIXES
from fednoil.data.images import Encoded
from fednoil.data.raw import Listing, Raw, named
from fednoil.errors import UserError, few_of
from fednoil.files import naming

COLUMN_NAMES = {
    "path": ("path", "file", "filename", "image"),
    "label": ("label", "class", "target"),
    "site": ("site", "client", "annotator"),
    "split": ("split",),
    "id": (),  # only where it is said
}
MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none", "missing")  # in any case: no value, or no label
_SPLITS = ("train", "test")


@dataclass(frozen=True)
class CsvRows:
    """The rows of a CSV file as they are, the number of the line at which each begins, and which of its columns means
    what."""

    file: Path
    header: list[str]
    lines: list[list[str]]
    numbers: list[int]
    place: dict[str, int]
    choice: Choice

    def column(self, name: str) -> list[str]:
        return [line[self.place[name]].strip() for line in self.lines]

    def at(self, row: int) -> str:
        return f"line {self.numbers[row]}"


class CsvCopy(Copy):
    """A file that lists pictures: labels change, dropped rows are removed, and paths become absolute, because the
    pictures stay where they are."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, _listed(path)
        listing = read_listing(path)
        raws = [listing.train] + ([] if listing.test is None else [listing.test])
        known = {item: int(label) for raw in raws for item, label in zip(raw.items, raw.labels, strict=True)}
        self.items = [item for item in self.rows.column("path") if item in known]
        self.labels = np.array([known[item] for item in self.items], np.int64)
        self.named, self.alone = listing.train.class_names is not None, listing.test is not None
        self.classes = name_classes(f"csv:{path}", self.labels, listing.train.class_names)
        tested = set() if listing.test is None else set(listing.test.items)
        self._train = np.array([item not in tested for item in self.items])

    @property
    def train(self) -> np.ndarray:
        return self._train

    def row(self, sample: Sample) -> int:
        if sample.item not in self.items:
            raise UserError(f"{sample.where}: csv:{self.path} lists no picture '{sample.item}'")
        return self.items.index(sample.item)

    def write(self, out: Path, labels: np.ndarray) -> None:
        path, label = self.rows.place["path"], self.rows.place["label"]
        stands = {line[path].strip(): line[label] for line in self.rows.lines}
        cells = self.respelled([stands[item] for item in self.items], labels)
        new = dict(zip(self.items, zip(labels.tolist(), cells, strict=True), strict=True))
        lines = [self.rows.header]
        for line in self.rows.lines:
            item = line[path].strip()
            number, cell = new.get(item, (0, line[label]))
            if number < 0:
                continue
            line = list(line)
            line[path], line[label] = str((self.rows.file.parent / item).resolve()), cell
            lines.append(line)
        with naming(out), out.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator=line_end(self.rows.file)).writerows(lines)


class Csv(PictureSource, PathSource):
    takes = "FILE"
    how = "a header and the columns path, label and, if you like, site and split (train or test)"
    description = "your own pictures, listed in a file"
    rewrites = CsvCopy

    def find(self, path: Path) -> Files:
        rows = _listed(path)
        pictures = (rows.file.parent / own for own in rows.column("path"))
        return Files(path, (rows.file, *(own for own in pictures if own.is_file())), self.decode)

    def listing(self) -> Listing:
        return read_listing(self.path)

    def clients(self) -> tuple[str, ...]:
        path = self.path.absolute()
        about = chosen(path)[0].stat()
        return _sites(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _sites(path: Path, changed: int, size: int) -> tuple[str, ...]:
    """The sites in a file as it is now: every check of a configuration asks for them."""
    return tuple(dict.fromkeys(read_listing(path).train.sites or ()))


def _listed(path: Path) -> CsvRows:
    return read_rows(path, f"csv:{path}", ("path", "label"))


def read_rows(path: Path, where: str, needed: Sequence[str]) -> CsvRows:
    """The file's lines; blank ones are left out."""
    path, choice = chosen(path)
    if not path.is_file():
        raise UserError(f"{where} is not a file; give one with {_columns(needed)}")
    lines: list[list[str]] = []
    numbers: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader, start = csv.reader(file), 1
            for line in reader:
                if any(cell.strip() for cell in line):
                    lines.append(line)
                    numbers.append(start)
                start = reader.line_num + 1
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{where} can't be read as UTF-8 CSV ({error}); save it in that form") from None
    header = [cell.strip() for cell in lines[0]] if lines else []
    if len(header) == 1 and (marks := [mark for mark in (";", "\t", "|") if mark in header[0]]):
        raise UserError(f"{where} has its columns separated by {marks[0]!r}; separate them by commas")
    place, choice = places(where, header, needed, choice)
    for number, line in zip(numbers, lines, strict=True):
        if len(line) != len(header):
            raise UserError(f"{where}: line {number} has {len(line)} columns, the header {len(header)}")
    return CsvRows(path, header, lines[1:], numbers[1:], place, choice)


def places(where: str, header: Sequence[str], needed: Sequence[str], choice: Choice) -> tuple[dict[str, int], Choice]:
    """Where the columns with a meaning are, and the choice in this file; `needed` are those that there must be, and
    paths mean nothing unless they are."""
    place: dict[str, int] = {}
    others: tuple[str, ...] = () if "path" in needed else ("id",)
    roles = tuple(dict.fromkeys((*needed, "label", "site", "split", *others)))
    choice = choice.among(where, header, roles)
    taken = {*choice.role.values(), *choice.drop}
    for name in roles:
        if name in choice.role:
            place[name] = header.index(choice.role[name])
            continue
        usual = COLUMN_NAMES[name]
        found = [k for k, cell in enumerate(header) if cell.lower() in usual and cell not in taken]
        if len(found) > 1 and needed:
            has = ", ".join(header[k] for k in found)
            raise UserError(f"{where} has the columns {has} for one {name}; keep one, or add :{name}=COLUMN")
        if found:
            place[name] = found[0]
    if missing := [name for name in needed if name not in place]:
        role, has = missing[0], few_of(header) or "none"
        how = f"call one of them {' or '.join(COLUMN_NAMES[role])}, or add :{role}=COLUMN"
        how += "; if its rows are not pictures, write table:FILE" * (role == "path")
        raise UserError(f"{where} has no column '{role}'; its columns are {has}; {how}")
    return place, choice


def read_listing(path: Path) -> Listing:
    """The pictures, whose paths start at the file's own folder; each is named by its path as in the file."""
    where, rows = f"csv:{path}", _listed(path)
    items = rows.column("path")
    if not items:
        raise UserError(f"{where} lists no picture; it needs a row for each")
    if "" in items:
        raise UserError(f"{where}: {rows.at(items.index(''))} has no path; every row needs one")
    if twice := [item for item, number in _counts(items).items() if number > 1]:
        raise UserError(f"{where} lists '{twice[0]}' twice; a picture has one label")
    numbers, names = labels_of(where, rows.column("label"), rows.at)
    site = rows.header[rows.place["site"]] if "site" in rows.place else ""
    sites = sites_of(where, rows.column("site") if site else None, rows.at)
    splits = splits_of(where, rows.column("split") if "split" in rows.place else None, len(items), rows.at)

    def part(split: str) -> Raw:
        chosen = [row for row, own in enumerate(splits) if own == split]
        usable = [row for row in chosen if Path(items[row]).suffix.lower() in SUFFIXES]
        rest = sorted(set(chosen) - set(usable))
        return Raw(
            [items[row] for row in usable],
            numbers[usable],
            [Encoded(items[row], rows.file.parent / items[row]) for row in usable],
            names,
            [(items[row], f"is not an image file ({', '.join(SUFFIXES)})") for row in rest],
            about_sites(site, rows.choice),
            None if sites is None else [sites[row] for row in usable],
        )

    return Listing(where, part("train"), part("test") if "test" in splits else None)


def sites_of(where: str, sites: list[str] | None, at: Callable[[int], str]) -> list[str] | None:
    """The site of each row; `at` says where a row is."""
    if sites is not None and "" in sites:
        raise UserError(f"{where}: {at(sites.index(''))} has no site; every row needs one, or no row")
    return sites


def about_sites(column: str, choice: Choice) -> list[str]:
    """A notice if a column that may mean something else says whose the rows are, and nobody has said that it does."""
    if column.lower() in ("", "site") or "site" in choice.role:
        return []
    what = f"column '{column}' says which client each row belongs to, as a column 'site' does"
    return [f"{what}; if it means something else, rename it, or leave it out (:drop={column})"]


def splits_of(where: str, splits: list[str] | None, count: int, at: Callable[[int], str]) -> list[str]:
    """What each row is for."""
    splits = ["train"] * count if splits is None else splits
    if wrong := [row for row, split in enumerate(splits) if split not in _SPLITS]:
        raise UserError(f"{where}: {at(wrong[0])} has the split '{splits[wrong[0]]}'; it must be train or test")
    return splits


def line_end(path: Path) -> str:
    """How lines of a CSV file end, by its first one."""
    with path.open("rb") as file:
        return "\r\n" if file.readline().endswith(b"\r\n") else "\n"


def labels_of(where: str, texts: list[str], at: Callable[[int], str]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels as numbers: of classes with names, or as they are where all are whole numbers."""
    if not texts:
        raise UserError(f"{where} has no row; it needs one for each sample")
    if all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        return np.array([int(text) for text in texts], np.int64), None
    (numbers,), names = named(where, [np.array(texts)], at)
    return numbers, names


def _columns(names: Sequence[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def _counts(items: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts
