"""Which columns of a file mean what, where its name says so: `table:patients.csv:label=diagnosis:drop=id,visit`.

Each site's file may call its columns otherwise, so this stands beside the path, and not in a key of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fednoil.errors import UserError, few_of, nearest

_DROP = "drop"
_WORDS = re.compile(rf":(path|id|label|site|split|{_DROP})=")


@dataclass(frozen=True)
class Choice:
    """The columns that were named for a role, and those that are left out."""

    role: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()

    def among(self, where: str, columns: Sequence[str], roles: Sequence[str]) -> Choice:
        """The choice in a file with these columns, of which some have these roles; refuses what it hasn't."""
        if unknown := next((role for role in self.role if role not in roles), None):
            raise UserError(f"{where}: {unknown}= means nothing here; use {', '.join(roles)} or {_DROP}")
        drop = [name for text in self.drop for name in ([text] if text in columns else text.split(","))]
        named = [*self.role.values(), *(name.strip() for name in drop)]
        for column in named:
            if column not in columns:
                has = few_of(columns) or "none"
                raise UserError(f"{where} has no column '{column}'; its columns are {has}{nearest(column, [*columns])}")
            if columns.count(column) > 1:
                raise UserError(f"{where} has {columns.count(column)} columns '{column}'; keep one")
            if named.count(column) > 1:
                raise UserError(f"{where} names the column '{column}' twice; give it one meaning")
        return Choice(self.role, tuple(named[len(self.role) :]))


NOTHING = Choice()


def chosen(path: Path) -> tuple[Path, Choice]:
    """The file itself, and what is said of its columns behind it."""
    if path.exists():
        return path, NOTHING
    file, *words = _WORDS.split(str(path))
    role: dict[str, str] = {}
    drop: list[str] = []
    for word, value in zip(words[::2], words[1::2], strict=True):
        if not value.strip():
            raise UserError(f"{path}: {word}= names no column; write {word}=COLUMN")
        if word in role:
            raise UserError(f"{path} has {word}= twice; give it once")
        if word == _DROP:
            drop.append(value.strip())
        else:
            role[word] = value.strip()
    place, _, word = file.rpartition(":")
    if "=" in word and Path(place).is_file():
        what = word.partition("=")[0]
        raise UserError(f"{path}: {what}= means nothing; use path, label, site, split, id or {_DROP}")
    return Path(file), Choice(role, tuple(drop))
