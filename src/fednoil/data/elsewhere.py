"""Names of data that aren't on this machine or have no name: a federation's sites, and what a program gives."""

from __future__ import annotations

from typing import NoReturn

from fednoil.data.base import Source
from fednoil.errors import UserError

SITES = "sites"
ARRAYS = "arrays"
"""The `data.name` of a run on data that a program gives."""


class Elsewhere(Source):
    """Data that can't be read by their name."""

    def read(self) -> NoReturn:
        raise UserError(f"data.name = '{self.config.name}' means {self.elsewhere}")


class Sites(Elsewhere):
    elsewhere = "the data of a federation's sites: `fednoil federation run`"


class Arrays(Elsewhere):
    elsewhere = "data that a program gives: fednoil.run(data=...) in Python"
