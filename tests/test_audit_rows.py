"""Rows of a table on the pages of an audit: their columns and values can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import fednoil
from PIL import ImageFont

from fednoil.audit import rows
from fednoil.audit.cases import load_state, of_state
from fednoil.audit.rows import Cell, cells_of, drawn, pictures_of

COLUMNS = ("age", "colour=blue", "colour=red", "dose")
MEAN, STD = np.array([50.0, 0.5, 0.5, 2.0]), np.array([10.0, 0.5, 0.5, 1.0])


def test_values_are_those_of_the_table_and_a_category_is_one_cell() -> None:
    assert cells_of(np.array([-0.3, -1.0, 1.0, 3.5]), COLUMNS, MEAN, STD) == [
        Cell("age", "47", pytest.approx(0.3)),
        Cell("colour", "red", 1.0),
        Cell("dose", "5.5", 3.5),
    ]


def test_a_small_picture_begins_with_what_is_most_unusual() -> None:
    values = np.array([-0.3, -1.0, 1.0, 3.5])
    small, large = pictures_of(lambda _: values, COLUMNS, MEAN, STD)
    cells = cells_of(values, COLUMNS, MEAN, STD)
    assert np.array_equal(small(0), drawn([cells[2], cells[1], cells[0]], 96, 10))
    assert np.array_equal(large(0), drawn(cells, 512, 17))
    assert (small(0).shape, large(0).shape) == ((96, 96, 3), (512, 512, 3))


def test_what_has_no_room_is_cut_or_counted() -> None:
    lines = [Cell("a name that is far too long for its line", str(n), 0.0) for n in range(30)]
    whole, less = drawn(lines[:7], 96, 10), drawn(lines, 96, 10)
    assert np.array_equal(whole[:70], less[:70])
    assert not np.array_equal(less, drawn(lines[:29], 96, 10))  # "and 24 more" instead of 23
    assert (less[:, -2:] == 255).all()
    assert (less[84:] == 255).all()  # the line that counts them is the seventh, and whole


def test_without_another_font_accents_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_font", ImageFont.load_default)
    assert np.array_equal(drawn([Cell("größe", "grün", 0)], 96, 10), drawn([Cell("groe", "grun", 0)], 96, 10))


def test_an_audit_shows_a_tables_rows(tmp_path: Path) -> None:
    lines = [f"{40 + i},{'red' if i % 2 else 'blue'},{'ill' if i > 10 else 'well'}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["age,colour,label", *lines]))
    keys = {"data.name": f"table:{tmp_path / 't.csv'}", "model.name": "mlp", "train.rounds": 1, "partition.clients": 2}
    options = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    assert fednoil("run", "demo", *options, "--out", tmp_path / "run", "-q")[0] == 0
    experiment, state = load_state(tmp_path / "run")
    cases = of_state(experiment, state, None, torch.device("cpu"))
    assert cases.originals is not None
    dataset = experiment.setting.dataset
    row = int(cases.clients[0].index[0])
    cells = cells_of(dataset.train.images[row], dataset.about.columns, np.array(dataset.mean), np.array(dataset.std))
    age, colour, _ = lines[int(cases.clients[0].items[0])].split(",")
    assert [cell[:2] for cell in cells] == [("age", age), ("colour", colour)]
    assert np.array_equal(cases.originals(row), drawn(cells, 512, 17))
