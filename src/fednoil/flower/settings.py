"""What a node's operator has set with --node-config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednoil.data import forms
from fednoil.errors import UserError, nearest
from fednoil.flower.names import named

_KEYS = ("client-id", "data", "state", "trust", "score-epsilon", "score-budget", "server-sees")
_TRIAL = ("partition-id", "num-partitions")
_SEES = ("sum", "noise")


@dataclass(frozen=True)
class NodeSettings:
    """What the node's operator has set with --node-config."""

    client_id: str
    data: str | None
    partition: int | None
    state: Path
    trust: tuple[str, ...]
    score_epsilon: float | None
    score_budget: float | None
    server_sees: str | None = None  # of its updates: a secure sum, or noise; None: whatever the run says

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> NodeSettings:
        """Check Flower's node configuration."""
        known = (*_KEYS, *_TRIAL)
        for key in values:
            if key not in known:
                raise UserError(f"--node-config: unknown key '{key}'; known: {', '.join(known)}{nearest(key, known)}")
        sees = values.get("server-sees")
        if sees is not None and sees not in _SEES:
            raise UserError(f"--node-config: server-sees = {sees!r} must be 'sum' or 'noise'")
        data, partition = values.get("data"), values.get("partition-id")
        if data is None and partition is None:
            given = " or ".join(f'data="{form}"' for form in forms())
            raise UserError(f'--node-config: set client-id="…" and {given}')
        if data is not None and "client-id" not in values:
            raise UserError('--node-config: data without client-id; add client-id="a-name-that-stays"')
        client_id = named(str(values.get("client-id", f"client-{partition}")), "--node-config: client-id =")
        epsilon, budget = (_positive(key, values.get(key)) for key in ("score-epsilon", "score-budget"))
        if budget is not None and epsilon is None:
            raise UserError("--node-config: score-budget without score-epsilon, the share of it that one run may spend")
        state = Path(str(values.get("state", Path.home() / ".fednoil" / "nodes"))).expanduser()
        trust = tuple(str(values.get("trust", "")).split())
        own = None if data is None else str(data)
        number = None if own is not None or partition is None else _number("partition-id", partition)
        return cls(client_id, own, number, state, trust, epsilon, budget or epsilon, sees)


def _number(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"--node-config: {key} = {value!r} must be a whole number of at least 0")
    return value


def _positive(key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"--node-config: {key} = {value!r} must be a number above 0")
    return float(value)
