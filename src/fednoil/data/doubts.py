"""Columns of a table that may not be what they seem: names of rows, numbers as text, one category written twice."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fednoil.data.vectors import MARK, stem_of
from fednoil.errors import few_of

_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?")
_ID = re.compile(r"(?i:(.*[ _.-])?id)|.*[a-z](Id|ID)")
_NUMBER = re.compile(r"[-+]?\d[\d.]*(,\d+ ?%?| ?%)")  # none for Python
_MANY = 20  # different values, below which nothing is taken for names of rows


def about_columns(values: np.ndarray, names: Sequence[str]) -> list[str]:
    """Lines about doubtful columns of rows [N, D]."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(stem_of(name), []).append(place)
    ids, numbers, twice = [], [], []
    for stem, own in places.items():
        texts = [names[place].partition(MARK)[2] for place in own]
        if _tells_apart(stem, values[:, own], texts):
            ids.append(f"'{stem}'")
        elif all(map(_NUMBER.fullmatch, texts)):
            numbers.append(f"'{stem}' ({texts[0]})")
        elif len({" ".join(text.casefold().split()) for text in texts}) < len(texts):
            twice.append(f"'{stem}'")
    said = {
        "columns that may only number, name or date the rows: {}; if so, remove them": ids,
        "columns of text that read like numbers: {}; if so, write 5.1, not 5,1 or 5.1 %": numbers,
        "columns with categories that differ only in case or spaces: {}; if they are one, write it alike": twice,
    }
    return [line.format(few_of(found)) for line, found in said.items() if found]


def _tells_apart(stem: str, values: np.ndarray, texts: Sequence[str]) -> bool:
    """Whether a column of numbers, or the columns [N, C] of a column's categories, may only tell rows apart."""
    numbers = np.sort(values[:, 0])
    counts = len(values) > _MANY and np.array_equal(numbers, numbers[0] + np.arange(len(values)))
    called = _ID.fullmatch(stem) is not None and len(np.unique(numbers)) > _MANY
    many = 2 * len(texts) > max(len(values), 2 * _MANY)
    return many or counts or called or all(map(_DATE.fullmatch, texts))
