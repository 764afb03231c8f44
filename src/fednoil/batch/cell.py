"""A planned run, and the seeds that plans are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fednoil.config import Config
from fednoil.errors import UserError
from fednoil.records.environment import changed_code
from fednoil.records.files import read_json


@dataclass(frozen=True, eq=False)
class Cell:
    """One run to make: `title` for people, `folder` the name of its run folder, `short` for a progress bar."""

    config: Config
    title: str
    folder: str
    short: str
    origin: dict[str, Any] | None = field(default=None, kw_only=True)  # what its run records about its origin

    def is_done(self, out: Path) -> bool:
        """Whether `out` holds this cell's finished run, made with the code as it is now."""
        try:
            summary = read_json(out / self.folder / "summary.json")
            same = summary["config_hash"] == self.config.hash()
            return same and changed_code(out / self.folder, self.config) is None
        except (UserError, TypeError, KeyError):
            return False


def parse_seeds(text: str) -> list[int]:
    """`0..4`, `3`, `0,2,5` or a mixture."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last - first > 10_000:
            raise UserError(f"--seeds {text}: write numbers from 0 up, such as 0..4 or 0,2,5")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))
