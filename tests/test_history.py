"""A round's record: what goes to a file comes back, and files of earlier versions are read."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from fednoil.errors import UserError
from fednoil.history import RoundRecord

LINE: dict[str, Any] = {
    "round": 3,
    "test_accuracy": 61.5,
    "test_loss": 1.25,
    "lost_classes": 0,
    "train_loss": 0.5,
    "local_epochs": 2,
    "train_batches": 24,
    "selected": [1, 3],
    "mean_alpha": 0.25,
    "selected_noise": 55.0,
    "client_scores": [1.0, 2.0],
    "label_precision": 70.0,
    "bytes_down": 100,
    "bytes_up": 50,
    "wall_s": 0.125,
}


def test_a_line_comes_back_as_it_was() -> None:
    record = RoundRecord.from_json(LINE)
    assert (record.round, record.selected, record.selected_noise) == (3, [1, 3], 55.0)
    assert record.extra == {"mean_alpha": 0.25}
    assert record.val_accuracy is None
    assert json.dumps(record.to_json()) == json.dumps(LINE)  # the same keys in the same order


def test_what_is_not_known_is_absent_apart_from_the_test() -> None:
    record = RoundRecord(round=1, local_epochs=1, train_batches=2, selected=[], bytes_down=0, bytes_up=0, wall_s=0.5)
    assert list(record.to_json()) == [
        "round",
        "test_accuracy",
        "test_loss",
        "local_epochs",
        "train_batches",
        "selected",
        "bytes_down",
        "bytes_up",
        "wall_s",
    ]


def test_the_noise_of_the_selected_clients_had_another_name() -> None:
    old = {("noise_ratio" if key == "selected_noise" else key): value for key, value in LINE.items()}
    assert RoundRecord.from_json(old) == RoundRecord.from_json(LINE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"round": "3"}, "round is '3'"),
        ({"selected": None}, "selected is None"),
        ({"test_accuracy": "high"}, "test_accuracy is 'high'"),
        ({"failed": ["a"]}, "failed is ['a']"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        RoundRecord.from_json(LINE | change)


@pytest.mark.parametrize("key", ["round", "test_accuracy", "train_batches", "wall_s"])
def test_a_missing_value_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=f"it has no {key}"):
        RoundRecord.from_json({k: v for k, v in LINE.items() if k != key})


def test_a_server_s_notes_do_not_hide_a_figure() -> None:
    with pytest.raises(UserError, match="may not be called 'selected'"):
        RoundRecord(
            round=1,
            local_epochs=1,
            train_batches=2,
            selected=[],
            bytes_down=0,
            bytes_up=0,
            wall_s=0.5,
            extra={"selected": 1},
        )


@pytest.mark.parametrize("name", [f.name for f in fields(RoundRecord) if f.name != "extra"])
def test_every_field_is_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is "):
        RoundRecord.from_json(LINE | {name: object()})
