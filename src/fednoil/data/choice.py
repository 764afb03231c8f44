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

    def check(self, where: str, columns: Sequence[str], roles: Sequence[str]) -> None:
        """Refuse columns that the file hasn't, and roles other than these."""
        if unknown := next((role for role in self.role if role not in roles), None):
            raise UserError(f"{where}: {unknown}= means nothing here; use {', '.join(roles)} or {_DROP}")
        for column in (*self.role.values(), *self.drop):
            if column not in columns:
                has = few_of(columns) or "none"
                raise UserError(f"{where} has no column '{column}'; its columns are {has}{nearest(column, [*columns])}")
            if columns.count(column) > 1:
                raise UserError(f"{where} has {columns.count(column)} columns '{column}'; keep one")
        named = [*self.role.values(), *self.drop]
        if twice := next((column for column in named if named.count(column) > 1), None):
            raise UserError(f"{where} names the column '{twice}' twice; give it one meaning")


NOTHING = Choice()


def chosen(path: Path) -> tuple[Path, Choice]:
    """The file itself, and what is said of its columns behind it."""
    file, *words = _WORDS.split(str(path))
    role: dict[str, str] = {}
    drop: tuple[str, ...] = ()
    for word, value in zip(words[::2], words[1::2], strict=True):
        if not value.strip():
            raise UserError(f"{path}: {word}= names no column; write {word}=COLUMN")
        if word in role or (word == _DROP and drop):
            raise UserError(f"{path} has {word}= twice; give it once{' with all columns' * (word == _DROP)}")
        if word == _DROP:
            drop = tuple(name.strip() for name in value.split(","))
        else:
            role[word] = value.strip()
    return Path(file), Choice(role, drop)
