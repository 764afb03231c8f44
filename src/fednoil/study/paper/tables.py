"""Reading `tables.csv`, the paper's printed results."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Printed:
    """One printed number, in percent, under the paper's own names.

    table: "1" to "4" or "text"; noise: symmetric, pair or none; mode: high, low or none; metric: accuracy,
    selected_noise, precision or recall; std: None where none is printed; converged: False where it is starred.
    """

    table: str
    dataset: str
    setting: str
    noise: str
    mode: str
    method: str
    metric: str
    mean: float
    std: float | None
    converged: bool

    def __str__(self) -> str:
        """As the paper prints it: `82.46 ± 0.54`, or `58.30*` where training didn't converge."""
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{spread}{'' if self.converged else '*'}"


@functools.cache
def printed() -> tuple[Printed, ...]:
    """All numbers in the order of the file, which has a column for each noise."""
    text = resources.files("fednoil.study.paper").joinpath("tables.csv").read_text(encoding="utf-8")
    keys = ("table", "dataset", "setting", "method", "metric")
    return tuple(
        Printed(**{key: row[key] for key in keys}, **_number(row[column]), noise=noise, mode=mode)
        for row in csv.DictReader(text.splitlines())
        for column in list(row)[len(keys) :]
        for noise, mode in [column.split("-") if "-" in column else (column, column)]
        if row[column]
    )


def _number(text: str) -> dict[str, Any]:
    """`82.46±0.54`, `71.9`, or `58.3*` where training didn't converge."""
    mean, _, std = text.rstrip("*").partition("±")
    return {"mean": float(mean), "std": float(std) if std else None, "converged": not text.endswith("*")}
