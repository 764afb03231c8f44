"""Reading `tables.csv`, the paper's printed results."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources


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
    """All numbers in the order of the file."""
    text = resources.files("fednoil.study.paper").joinpath("tables.csv").read_text(encoding="utf-8")
    return tuple(
        Printed(
            **{key: row[key] for key in ("table", "dataset", "setting", "noise", "mode", "method", "metric")},
            mean=float(row["mean"]),
            std=float(row["std"]) if row["std"] else None,
            converged={"True": True, "False": False}[row["converged"]],
        )
        for row in csv.DictReader(text.splitlines())
    )
