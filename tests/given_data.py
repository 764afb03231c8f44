"""Runs from Python on tiny arrays, given client by client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_arrays

import fednoil as package

Keys = dict[str, Any]
TINY: Keys = {
    "model.width": 2,
    "schedule.name": "constant",
    "schedule.epochs": 1,
    "train.rounds": 2,
    "train.batch_size": 8,
    "run.device": "cpu",
}


def clients(count: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    arrays = tiny_arrays()
    return list(zip(np.split(arrays["x_train"], count), np.split(arrays["y_train"], count), strict=True))


def held_out() -> tuple[np.ndarray, np.ndarray]:
    arrays = tiny_arrays()
    return arrays["x_test"], arrays["y_test"]


def refusal(*args: Any, **given: Any) -> str:
    """The one line with which a run is refused."""
    with pytest.raises(package.UserError) as refused:
        package.run(*args, **{"set": TINY, **given})
    assert "\n" not in str(refused.value)
    assert list(Path().iterdir()) == []
    return str(refused.value)
