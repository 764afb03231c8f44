"""Learners by name: one file and one line in the table below each."""

from __future__ import annotations

from fednoil.learners.base import Learner
from fednoil.learners.erm import Erm
from fednoil.learners.fednoil import FedNoil
from fednoil.plugins import find_class

LEARNERS: dict[str, type[Learner]] = {"erm": Erm, "fednoil": FedNoil}


def learner_class(name: str) -> type[Learner]:
    """The learner called `name`, or the user's own at `package.module:Class`."""
    return find_class(name, LEARNERS, Learner, "learner.name")
