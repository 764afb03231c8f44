"""Markdown pages with parts that a program writes: each stands between `<!-- NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill(text: str, parts: Mapping[str, str], *, once: bool = True) -> str:
    """The text with every part in its place; `once`: each has exactly one there."""
    for name, part in parts.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        text, count = place.subn(lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text)
        if once and count != 1:
            raise ValueError(f"the page has {count} places for '{name}', not one")
    return text
