"""Names of sites, which are also those of folders, logs and keys: letters of any script, and nothing a path could be
made of."""

from __future__ import annotations

import unicodedata

from fednoil.errors import UserError

RULE = "letters of any script, digits, spaces, '.', '_' or '-', at most 64, and begin with a letter or digit"
_MOST, _BYTES = 64, 200  # a file's name has at most 255 bytes, and some have an ending


def composed(name: str) -> str:
    """The one spelling of a name: some systems write ü as two characters."""
    return unicodedata.normalize("NFC", name)


def is_name(name: str) -> bool:
    """Whether a site may be called so."""
    kinds = [unicodedata.category(character)[0] for character in name]
    fine = all(kind in "LMN" or character in " ._-" for kind, character in zip(kinds, name, strict=True))
    whole = bool(name) and kinds[0] in "LN" and name[-1] not in " ." and name == composed(name)
    return fine and whole and len(name) <= _MOST and len(name.encode()) <= _BYTES


def named(name: str, where: str) -> str:
    """A site's name in its one spelling; `where` begins the refusal of another."""
    if not is_name(composed(name)):
        raise UserError(f"{where} '{name}' must be {RULE}")
    return composed(name)
