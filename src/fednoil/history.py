"""A round's record as a value: one line of a run's `rounds.jsonl`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fednoil.errors import UserError

_ALWAYS = ("test_accuracy", "test_loss")  # null where they are not known
_FORMERLY = {"noise_ratio": "selected_noise"}  # keys that had another name
ACCURACY, AGREEMENT = "accuracy", "agreement with held-out labels"


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What is known about one round. Accuracies, shares and ratios are in percent; unknown values are None, and absent
    from the file."""

    round: int  # counted from 1
    test_accuracy: float | None = None  # of the model that is kept, on the test set or what a federation holds out
    test_loss: float | None = None
    on_held_out: bool | None = None  # True: the test images were taken from the training images, with their labels
    lost_classes: int | None = None  # classes of which no test sample is classified correctly
    class_accuracy: list[float | None] | None = None  # on the test images of each class; None: there are none
    balanced_accuracy: float | None = None  # mean over classes, as all that follows to `auroc`
    macro_f1: float | None = None
    auroc: float | None = None  # of each class against the rest, 0 to 1
    calibration_error: float | None = None  # mean distance of confidence and accuracy, in 15 bins of confidence
    last_accuracy: float | None = None  # of the last model, where `test_accuracy` is an average's over rounds
    train_loss: float | None = None  # mean over the clients that trained
    local_epochs: int
    train_batches: int  # optimiser steps since round 1, once for each network that they train
    selected: list[int]  # clients
    shifted_accuracy: float | None = None  # against (y + 1) mod C, where pair noise may have been learnt
    val_accuracy: float | None = None  # agreement with given labels that clients hold out (`data.validation`)
    val_loss: float | None = None
    held_out: dict[str, dict[str, float]] | None = None  # `accuracy`, `samples` and `loss` by node
    extra: dict[str, Any] = field(default_factory=dict)  # a server's own: other models' accuracies, and its notes
    selected_noise: float | None = None  # mean noise ratio of the selected clients
    client_scores: list[float] | None = None  # by client, where all have sent one and there are at most 200
    score_quartiles: list[float] | None = None  # of more clients' scores: least, quartiles, largest
    rank_correlation: float | None = None  # Spearman's, of the clients' shares and noise ratios; -1 to 1
    best_client_share: float | None = None  # chance of the client with the fewest wrong labels to be drawn first
    worst_client_share: float | None = None
    labelled_share: float | None = None  # of the samples in D^x
    label_precision: float | None = None  # of D^x
    label_recall: float | None = None
    outliers_rejected: float | None = None  # share of the images of no class that D^x left out
    effective_precision: float | None = None  # with accepted pseudo-labels
    effective_recall: float | None = None
    pseudo_accept: float | None = None  # share of D^u whose pseudo-labels were used
    pseudo_accuracy: float | None = None
    nodes: list[str] | None = None  # of a federation, as all that follows to `refused`: who was there
    scores: dict[str, float] | None = None  # who sent which score
    trained: list[str] | None = None  # whose update was used
    failed: dict[str, str] | None = None  # who failed, and why
    refused: dict[str, str] | None = None  # who was there and not let in, and why
    limited: dict[str, str] | None = None  # whose update or score was limited, and how (`server.limits`)
    epsilon: float | None = None  # what the noise on updates has revealed of any client so far, at δ = 1e-5
    kept: bool | None = None  # True: the updates could not be used, and the model stayed as it was
    warnings: list[str] | None = None  # signs of a collapse, in words
    bytes_down: int  # from the server to the clients
    bytes_up: int
    wall_s: float  # seconds

    def __post_init__(self) -> None:
        if taken := self.extra.keys() & _NAMES:
            raise UserError(f"a server's notes may not be called '{min(taken)}': every record has that key")

    @property
    def measure(self) -> str:
        """What `test_accuracy` is: held-out labels may be as wrong as those that were trained on."""
        return AGREEMENT if self.on_held_out or self.held_out else ACCURACY

    def to_json(self) -> dict[str, Any]:
        """The record as rounds.jsonl has it."""
        values: dict[str, Any] = {}
        for name in _NAMES:
            value = getattr(self, name)
            if name == "extra":
                values |= value
            elif value is not None or name in _ALWAYS:
                values[name] = value
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RoundRecord:
        """A line of rounds.jsonl, also of earlier versions; ValueError says what is wrong with it."""
        if not isinstance(values, Mapping):
            raise ValueError("it is not an object")
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in values.items():
            name = _FORMERLY.get(key, key)
            (known if name in _NAMES and name != "extra" else extra)[name] = value
        for name in (*_REQUIRED, "test_accuracy"):
            if name not in known:
                raise ValueError(f"it has no {name}")
        for name, value in known.items():
            missing = value is None and name not in _REQUIRED
            if not missing and not isinstance(value, _KINDS[name]):
                raise ValueError(f"{name} is {value!r}")
        return cls(**known, extra=extra)


_NAMES = {f.name: None for f in fields(RoundRecord)}
_REQUIRED = ("round", "local_epochs", "train_batches", "selected", "bytes_down", "bytes_up", "wall_s")
_TYPES = {"int": (int,), "float": (float, int), "bool": (bool,), "list": (list,), "dict": (dict,)}
_KINDS = {f.name: _TYPES[re.split(r"\W", str(f.type))[0]] for f in fields(RoundRecord)}
