"""Names of data that aren't on this machine or have no name: a federation's sites, and what a program gives."""

from __future__ import annotations

from typing import NoReturn

from fednoil.data.base import PictureConfig, Source
from fednoil.errors import UserError

SITES = "sites"
ARRAYS = "arrays"
"""The word in the `data.name` of a run on data that a program gives; a digest of them follows it."""


def are_given(name: str) -> bool:
    """Whether `data.name` stands for data that a program gives."""
    return name.partition(":")[0] == ARRAYS


class Elsewhere(Source):
    """Data that can't be read by their name."""

    def read(self) -> NoReturn:
        raise UserError(f"data.name = '{self.config.name}' means {self.elsewhere}")


class Sites(Elsewhere):
    Config = PictureConfig
    elsewhere = "the data of a federation's sites: `fednoil federation run`"


class Arrays(Elsewhere):
    takes = "DIGEST"
    elsewhere = "data that a program gives: fednoil.run(data=...) in Python"
