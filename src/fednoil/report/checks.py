"""Checks of the files in a run folder: a damaged run is left out of the report, with a reason.

Only what reports use is checked, so that runs of other versions can be read.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fednoil.errors import UserError
from fednoil.history import RoundRecord

Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class Summary(_Part):
    """summary.json, or its equivalent from the rounds of a stopped run."""

    final_accuracy: Percent
    best_accuracy: Percent
    last10_accuracy: Percent
    converged: bool | None
    train_batches: Amount
    wall_s: Amount
    per_class_accuracy: list[Percent | None] = []
    classes: list[str] = []


class Environment(_Part):
    """environment.json."""

    device: str | None = None
    precision: str | None = None
    packages: dict[str, Any] = {}
    command: list[str] = []
    resumed: list[dict[str, Any]] = []
    diverged: dict[str, Any] = {}
    extended: dict[str, Any] = {}
    own_files: dict[str, str] = {}
    origin: dict[str, Any] | None = None


class Confusion(_Part):
    """confusion.json: given × predicted labels, a square."""

    given_predicted: list[list[int]] | None = None
    agreement: list[Percent | None] | None = None

    @model_validator(mode="after")
    def _is_square(self) -> Confusion:
        matrix = self.given_predicted or []
        if any(len(row) != len(matrix) for row in matrix):
            raise ValueError("given_predicted is not square")
        return self


class _ByClass(_Part):
    recall: list[Percent | None] = []
    precision: list[Percent | None] = []
    f1: list[Percent | None] = []
    auroc: list[Annotated[float, Field(ge=0, le=1)] | None] = []


class Measured(_Part):
    """The measures of one model on some samples."""

    accuracy: Percent | None = None
    balanced_accuracy: Percent | None = None
    per_class: _ByClass = _ByClass()
    confusion: list[list[float]] = []  # true × predicted classes; of several models the mean


class MeasuresFile(_Part):
    """measures.json: on the test set, and by client."""

    test: Measured = Measured()
    clients: dict[str, Measured] = {}
    clients_on: str = ""


def check(expected: type[_Part], values: Any, path: Path) -> None:
    """Refuse what a report couldn't use, naming the first error."""
    try:
        expected.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{path} is damaged: {key}{': ' if key else ''}{first['msg']}") from None


def check_rounds(records: list[RoundRecord], summary: dict[str, Any], path: Path) -> None:
    """Refuse records that lack a round, repeat one, have no accuracy, or are fewer than the summary says."""
    numbers = [record.round for record in records]
    if numbers != list(range(1, len(records) + 1)):
        raise UserError(f"{path} is damaged: its rounds are not 1, 2, 3 … without a gap")
    if (expected_rounds := summary.get("rounds", len(records))) != len(records):
        raise UserError(f"{path} is damaged: it has {len(records)} rounds, the run's summary says {expected_rounds}")
    for record in records:
        accuracy = record.test_accuracy
        if accuracy is not None and not (math.isfinite(accuracy) and 0 <= accuracy <= 100):
            raise UserError(f"{path} is damaged: test_accuracy is {accuracy} in round {record.round}")
