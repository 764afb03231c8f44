"""What learners keep on themselves: noticed if it changes, and put back after a trial."""

from __future__ import annotations

import copy
from typing import Any

from fednoil.learners.base import Learner
from fednoil.learners.capabilities import Wrapped

_GROWS = (list, dict, set)


def attributes(learner: Learner) -> dict[str, tuple[int, ...]]:
    """What a learner and those inside it hold, such that replacing, writing or extending an attribute shows."""
    return {
        f"{depth}.{name}": (id(value), getattr(value, "_version", 0), len(value) if isinstance(value, _GROWS) else 0)
        for depth, one in enumerate(_layers(learner))
        for name, value in vars(one).items()
    }


class Attributes:
    """The attributes of a learner and of those inside it at one time, with what their lists and dictionaries held."""

    def __init__(self, learner: Learner) -> None:
        self.held = [(one, dict(vars(one))) for one in _layers(learner)]
        values = [value for _, own in self.held for value in own.values() if isinstance(value, _GROWS)]
        self.grown = [(value, copy.copy(value)) for value in values]

    def restore(self) -> None:
        for learner, own in self.held:
            vars(learner).clear()
            vars(learner).update(own)
        for value, before in self.grown:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(before)  # pyright: ignore[reportArgumentType]


def _layers(learner: Learner) -> list[Any]:
    """The learner and those inside it."""
    return [learner, *_layers(learner.inner)] if isinstance(learner, Wrapped) else [learner]
