"""Samples that are vectors instead of pictures: rows of a table, features, embeddings; float32 [N, columns].

A column is called by its name, one that stands for a category by `name=category`, and one without a value, which may be
of either kind, by `name=`. Missing values are NaN until the columns are scaled, and then the mean. Scaling is learnt
from each column's count, mean and spread, which a site can report without its rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fednoil.data.dataset import DatasetInfo, Split
from fednoil.data.decoded import Decoded, assemble
from fednoil.data.decoding import hold_out, owners_of, tested_by
from fednoil.data.raw import Listing, Raw, with_names
from fednoil.errors import UserError, counted, few_of

FURTHEST = 10.0
"""Standard deviations from the mean at which scaled values end: one outlier must not outweigh all other rows."""

MOST_CATEGORIES = 100
_DIGITS = 6  # of means and spreads, so that sums in another order give the same
MARK = "="
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?")
_DAY = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[0-2])")  # a date as one number, which float32 rounds to even
_CODE, _FAR = re.compile(r"-?99+"), 3.0  # how many times as far from the median as the quartiles are apart
_ID = re.compile(r"(?i:(.*[ _.-])?id)|.*[a-z](Id|ID)")
_NUMBER = re.compile(r"[-+]?\d[\d.]*(,\d+ ?%?| ?%)")  # none for Python
_MANY = 20  # different values, below which nothing is taken for names of rows


def is_vector(shape: Sequence[int]) -> bool:
    """Whether samples of this shape are vectors."""
    return len(shape) == 1


@dataclass(frozen=True)
class Scale:
    """How many values each column has, their mean and their standard deviation."""

    counts: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def measured(values: np.ndarray, columns: Sequence[str] = ()) -> Scale:
    """The scale of rows [N, D]; columns of categories stay 0 and 1."""
    there = ~np.isnan(values)
    counts = there.sum(0)
    exact = np.where(there, values, 0).astype(np.float64)
    mean = exact.sum(0) / np.maximum(counts, 1)
    std = np.sqrt((np.where(there, exact - mean, 0) ** 2).sum(0) / np.maximum(counts, 1))
    return _scale(counts, mean, std, columns)


def pooled(scales: Sequence[Scale], columns: Sequence[str] = ()) -> Scale:
    """The scale of several sites' rows, from each site's own."""
    counts = np.array([scale.counts for scale in scales])
    total = np.maximum(counts.sum(0), 1)
    means, stds = np.array([scale.mean for scale in scales]), np.array([scale.std for scale in scales])
    mean = (counts * means).sum(0) / total
    std = np.sqrt((counts * (stds**2 + (means - mean) ** 2)).sum(0) / total)
    return _scale(counts.sum(0), mean, std, columns)


def _scale(counts: np.ndarray, mean: np.ndarray, std: np.ndarray, columns: Sequence[str]) -> Scale:
    category = np.array([MARK in name for name in columns], bool) if columns else np.zeros(len(counts), bool)
    flat = std <= 1e-9 * np.maximum(np.abs(mean), 1e-30)  # nothing to divide by
    mean, std = np.where(category, 0.0, mean), np.where(category | flat, 1.0, std)
    rounded = (tuple(float(f"{value:.{_DIGITS}g}") for value in values) for values in (mean, std))
    return Scale(tuple(counts.tolist()), *rounded)


def scaled(values: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Rows [N, D] as networks and views see them: float32, in standard deviations from the mean, which stands for what
    is missing."""
    found = (values.astype(np.float64) - np.array(mean)) / np.array(std)
    return np.nan_to_num(np.clip(found, -FURTHEST, FURTHEST), copy=False).astype(np.float32)


def check_finite(values: np.ndarray, where: str, *, missing: bool = False) -> None:
    """Refuse infinite numbers and, unless values may be missing, NaN."""
    wrong = np.isinf(values) if missing else ~np.isfinite(values)
    if wrong.any():
        row, column = (int(place) for place in np.argwhere(wrong)[0])
        count = int(wrong.sum())
        more = f", and {count - 1} more such values" if count > 1 else ""
        raise UserError(
            f"{where} has {values[row, column]} in row {row}, column {column} (counted from 0){more}; replace "
            f"{'them or remove their rows' if count > 1 else 'it or remove the row'}"
        )


def decode_rows(listing: Listing) -> Decoded:
    """The rows of a listing as a dataset; without test rows a share of the training rows becomes the test set."""
    listing = with_names(listing)
    where, train, test = listing.where, listing.train, listing.test
    if not train.items:
        raise UserError(f"{where} has no labelled row; it needs one for each sample")
    names, notices = train.class_names, [*train.notices, *_empty(train.columns)]
    parts = [(_values(raw), raw.labels) for raw in (train, test) if raw is not None]
    owners = owners_of(train, np.arange(len(train.items)))
    tested = None if test is None else tested_by(test, np.arange(len(test.items)), owners)
    about = DatasetInfo(tuple(train.items), owners, tuple(notices), columns=train.columns, tested=tested)
    sites = None if test is None else test.sites
    kept, held, about = hold_out(parts[0], parts[1] if len(parts) > 1 else None, about, _room, frozenset(sites or ()))
    if not len(held[1]):
        return replace(assemble(where, kept, kept, names, about), test=Split(*held))
    return assemble(where, kept, held, names, about)


def _values(raw: Raw) -> np.ndarray:
    return np.ascontiguousarray(np.stack([np.asarray(row) for row in raw.pictures]), np.float32)


def _empty(columns: Sequence[str]) -> list[str]:
    """A notice if columns have no value in any row."""
    found = [f"'{stem_of(name)}'" for name in columns if name.endswith(MARK)]
    return [f"{counted(len(found), 'column')} without a value: {few_of(found, 8)}"] if found else []


def _room(_split: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.empty(shape, np.float32)


def united(sites: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The columns of several sites: all need the same columns, but a column may have different categories at each."""
    first = next(iter(sites))
    widths = {
        site: len(columns) for site, columns in sites.items() if set(columns) == set(map(str, range(len(columns))))
    }
    if len(widths) == len(sites) and (other := next((s for s in widths if widths[s] != widths[first]), None)):
        raise UserError(
            f"site '{other}' has {widths[other]} features a sample and site '{first}' {widths[first]}; all sites need "
            "those of the same network or vectoriser"
        )
    found: dict[str, dict[str, None]] = {stem: {} for stem in _stems(sites[first])}
    for site, columns in sites.items():
        stems = _stems(columns)
        for stem in [*found, *stems]:
            if stem not in stems or stem not in found:
                here, there = (site, first) if stem in found else (first, site)
                raise UserError(
                    f"site '{here}' has no column '{stem}', which site '{there}' has; all sites need the same columns"
                )
        for stem, own in stems.items():
            found[stem] |= own
    for stem, names in found.items():
        if len(names) > 1:
            names.pop(f"{stem}{MARK}", None)
        if stem in names and len(names) > 1:
            kinds = {MARK in name: site for site, own in sites.items() for name in own if name in names}
            raise UserError(
                f"column '{stem}' has categories at site '{kinds[True]}' and numbers at site '{kinds[False]}'; it must "
                "be the same at all sites"
            )
        check_categories("all sites together", stem, sorted(names))
    return tuple(name for stem in found for name in (found[stem] if stem in found[stem] else sorted(found[stem])))


def check_categories(where: str, column: str, names: Sequence[str]) -> None:
    """Refuse too many categories; `names` are those of their columns."""
    if len(names) > MOST_CATEGORIES:
        raise UserError(
            f"{where}: column '{column}' has {len(names)} different text values "
            f"('{names[0].partition(MARK)[2][:40]}' for example), too many for categories (at most {MOST_CATEGORIES}); "
            f"leave the column out (:drop={column}), or give numbers (5.1, not 5,1 or 5.1 %)"
        )


def about_columns(values: np.ndarray, names: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Lines about columns of rows [N, D] with labels [N] that may not be what they seem."""
    place, classes = {name: k for k, name in enumerate(names)}, np.unique(labels, return_inverse=True)[1]
    ids, numbers, twice, copies, codes = [], [], [], [], []
    for stem, own in _stems(names).items():
        texts, block = [name.partition(MARK)[2] for name in own], values[:, [place[name] for name in own]]
        if _tells_apart(stem, block[:, 0], texts):
            ids.append(f"'{stem}'")
        elif _copies(block, classes):
            copies.append(f"'{stem}'")
        elif len(own) == 1 and not any(texts) and (code := _code(block[:, 0])) is not None:
            codes.append(f"'{stem}' ({code:g})")
        elif all(map(_NUMBER.fullmatch, texts)):
            numbers.append(f"'{stem}' ({texts[0]})")
        elif len({" ".join(text.casefold().split()) for text in texts}) < len(texts):
            twice.append(f"'{stem}'")
    said = {
        "columns that say the same as the label: {}; if they were made from it, leave them out (:drop=COLUMN)": copies,
        "columns that may only number, name or date the rows: {}; if so, leave them out (:drop=COLUMN)": ids,
        "columns with a number far from the others that may mean a missing value: {}; if so, leave it empty": codes,
        "columns of text that read like numbers: {}; if so, write 5.1, not 5,1 or 5.1 %": numbers,
        "columns with categories that differ only in case or spaces: {}; if they are one, write it alike": twice,
    }
    return [line.format(few_of(found)) for line, found in said.items() if found]


def _copies(block: np.ndarray, classes: np.ndarray) -> bool:
    """Whether a column of numbers [N, 1], or those of a column's categories [N, C], and the classes [N] tell the same
    rows apart."""
    codes = np.unique(block, return_inverse=True)[1].ravel() if block.shape[1] == 1 else block.argmax(1)
    count = len(np.unique(classes))
    alike = len(np.unique(codes)) == count > 1 and block.shape[1] in (1, count)
    return alike and len(codes) > _MANY and len(np.unique(codes * count + classes)) == count


def _code(numbers: np.ndarray) -> float | None:
    """A number such as -999 that occurs again and again, far from all others in a column [N]."""
    known = numbers[np.isfinite(numbers)]
    low, middle, high = np.quantile(known, (0.25, 0.5, 0.75)) if len(known) else (0, 0, 0)
    for end in {float(known.min()), float(known.max())} if high > low else ():
        if _CODE.fullmatch(f"{end:g}") and (known == end).sum() > 2 and abs(end - middle) > _FAR * (high - low):
            return end
    return None


def _tells_apart(stem: str, numbers: np.ndarray, texts: Sequence[str]) -> bool:
    """Whether a column of numbers [N], or of categories, may only tell rows apart."""
    numbers = np.sort(numbers)
    counts = len(numbers) > _MANY and np.array_equal(numbers, numbers[0] + np.arange(len(numbers)))
    known = numbers[np.isfinite(numbers)] if not any(texts) else numbers[:0]
    days = len(known) > 0 and all(_DAY.fullmatch(f"{number:.0f}") for number in known)
    called = _ID.fullmatch(stem) is not None and len(np.unique(numbers)) > _MANY
    many = 2 * len(texts) > max(len(numbers), 2 * _MANY)
    return many or counts or called or days or all(map(_DATE.fullmatch, texts))


def aligned(values: np.ndarray, columns: Sequence[str], wanted: Sequence[str], where: str) -> np.ndarray:
    """Rows [N, D] with these columns as rows with the wanted ones; a category that they lack is 0 in every row, and a
    column that has no value here, or had none where it is wanted, is missing."""
    if tuple(columns) == tuple(wanted):
        return values
    place, stems = {name: k for k, name in enumerate(columns)}, _stems(columns)
    found = np.zeros((len(values), len(wanted)), np.float32)
    for column, name in enumerate(wanted):
        stem = stem_of(name)
        if stem in stems and (name == stem + MARK or stem + MARK in place):
            found[:, column] = np.nan
        elif name in place:
            found[:, column] = values[:, place[name]]
        elif MARK in name and stem in stems and stem not in place:
            own = [place[other] for other in stems[stem]]
            found[:, column] = np.where(np.isnan(values[:, own]).any(1), np.nan, 0)
        else:
            has = ", ".join(list(stems)[:8]) + (" …" if len(stems) > 8 else "")
            raise UserError(f"{where} has no column '{stem}' of the kind that is needed; it has {has}")
    return found


def unfamiliar(
    values: np.ndarray, columns: Sequence[str], wanted: Sequence[str], mean: Sequence[float], std: Sequence[float]
) -> list[str]:
    """Lines about rows [N, D] with these columns that are unlike what a model with the wanted ones, of this mean and
    standard deviation, has seen."""
    said = []
    for stem, own in _stems(columns).items():
        others = [name for name in own if name not in wanted and MARK in name[:-1]]
        if others:
            rows = (values[:, [columns.index(name) for name in others]] == 1).any(1)
            new = few_of([name.partition(MARK)[2] for name in others], 3)
            how = f"have a category that is new to the model ({new})"
            said.append(f"column '{stem}': {int(rows.sum())} of {len(rows)} rows {how}")
    place = {name: k for k, name in enumerate(columns)}
    for column, name in enumerate(wanted):
        if MARK in name or name not in place:
            continue
        if far := int((np.abs(values[:, place[name]] - mean[column]) > FURTHEST * std[column]).sum()):
            how = f"are more than {FURTHEST:.0f} standard deviations from the mean, where values are cut off"
            said.append(f"column '{name}': {far} of {len(values)} rows {how}")
    return said


def stem_of(name: str) -> str:
    """The table's column that a column of vectors comes from."""
    return name.partition(MARK)[0]


def _stems(columns: Sequence[str]) -> dict[str, dict[str, None]]:
    """The names of the table's columns, each with those that stand for its categories."""
    found: dict[str, dict[str, None]] = {}
    for name in columns:
        found.setdefault(stem_of(name), {})[name] = None
    return found
