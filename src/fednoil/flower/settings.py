"""What a node's operator has set: with the options of `fednoil federation node`, or Flower's --node-config."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednoil.data import forms
from fednoil.errors import UserError, nearest
from fednoil.flower.names import named

_KEYS = ("client-id", "data", "state", "trust", "score-epsilon", "score-budget", "server-sees")
_TRIAL = ("partition-id", "num-partitions")
_SEES = ("sum", "noise")
_OPTIONS = {"client-id": "name", "partition-id": "partition"}  # keys whose option has another name

Called = Callable[[str], str]


def in_node_config(key: str) -> str:
    """How a key is called in Flower's --node-config."""
    return f"--node-config: {key}"


def as_option(key: str) -> str:
    """How a key is called as an option of `fednoil federation node`."""
    return f"--{_OPTIONS.get(key, key)}"


@dataclass(frozen=True)
class NodeSettings:
    """What the node's operator has set."""

    client_id: str
    data: str | None
    partition: int | None
    state: Path
    trust: tuple[str, ...]
    score_epsilon: float | None
    score_budget: float | None
    server_sees: str | None = None  # of its updates: a secure sum, or noise; None: whatever the run says

    @classmethod
    def read(cls, values: Mapping[str, Any], called: Called = in_node_config) -> NodeSettings:
        """Check a node's configuration; errors name a key as it is `called` where it was set."""
        known = (*_KEYS, *_TRIAL)
        for key in values:
            if key not in known:
                raise UserError(f"{called(key)} is unknown; known: {', '.join(known)}{nearest(key, known)}")
        sees = values.get("server-sees")
        if sees is not None and sees not in _SEES:
            raise UserError(f"{called('server-sees')} = {sees!r} must be 'sum' or 'noise'")
        data, partition = values.get("data"), values.get("partition-id")
        if data is None and partition is None:
            raise UserError(f"{called('data')} is missing; give {' or '.join(forms())}")
        if data is not None and "client-id" not in values:
            raise UserError(f"{called('client-id')} is missing; a site with its own data needs a name that stays")
        client_id = named(str(values.get("client-id", f"client-{partition}")), f"{called('client-id')} =")
        epsilon, budget = (_positive(called, key, values.get(key)) for key in ("score-epsilon", "score-budget"))
        if budget is not None and epsilon is None:
            raise UserError(
                f"{called('score-epsilon')} is missing: the share of score-budget = {budget:g} that one run may spend"
            )
        state = Path(str(values.get("state", Path.home() / ".fednoil" / "nodes"))).expanduser()
        trust = tuple(str(values.get("trust", "")).split())
        own = None if data is None else str(data)
        number = None if own is not None or partition is None else _number(called, "partition-id", partition)
        return cls(client_id, own, number, state, trust, epsilon, budget or epsilon, sees)


def _number(called: Called, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{called(key)} = {value!r} must be a whole number of at least 0")
    return value


def _positive(called: Called, key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"{called(key)} = {value!r} must be a number above 0")
    return float(value)
