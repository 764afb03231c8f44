"""Names of data that aren't on this machine or have no name: what a federation's nodes have, what a program gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from fednoil.data.base import DataConfig, Source
from fednoil.data.sites import SITES
from fednoil.errors import UserError

ARRAYS = "arrays"
"""The word in the `data.name` of a run on data that a program gives; a digest of them follows it."""


def are_given(name: str) -> bool:
    """Whether `data.name` stands for data that a program gives."""
    return name.partition(":")[0] == ARRAYS


def at_nodes(data: DataConfig | Mapping[str, Any]) -> bool:
    """Whether a section stands for the data of a federation's nodes; the sites of a simulation are named in it."""
    name, sites = (data.get("name"), data.get("sites")) if isinstance(data, Mapping) else (data.name, own_sites(data))
    return name == SITES and not sites


def own_sites(data: DataConfig) -> dict[str, str]:
    """The sites that a section names."""
    return getattr(data, "sites", {})


class Elsewhere(Source):
    """Data that can't be read by their name."""

    def read(self) -> NoReturn:
        raise UserError(f"data.name = '{self.config.name}' means {self.elsewhere}")


class Arrays(Elsewhere):
    takes = "DIGEST"
    elsewhere = "data that a program gives: fednoil.run(data=...) in Python"
