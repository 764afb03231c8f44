"""The page of the audit's experiments: its tables are those of the results, which are added to run by run."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

AUDIT = Path(__file__).resolve().parents[1] / "experiments" / "audit"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module; those of other experiments have the same name."""
    monkeypatch.syspath_prepend(str(AUDIT))
    sys.modules.pop("table", None)
    yield importlib.import_module("table")
    sys.modules.pop("table", None)


def rows(table: ModuleType, setting: str, seed: int, auroc: float, references: bool = False) -> list[dict[str, Any]]:
    """What a comparison finds: ours at `auroc`, each other method .01 below the one before."""
    found = []
    for place, name in enumerate(table.NAMES if references else table.NAMES[:3]):
        row = {"setting": setting, "run_method": "FedNoiL(Logarithm)", "seed": seed, "accuracy": 80.0, "method": name}
        row |= {"auroc": auroc - 0.01 * place, "f1": 0.9}
        if place < 3:
            row |= {"ratio_error": 2.0 + seed, "ratio_error_largest": 5.0, "in_interval": 19, "clients": 20}
            row |= {"interval_width": 14.0}
        found.append(row)
    return found


def test_the_page_is_what_the_results_say(table: ModuleType) -> None:
    """`python experiments/audit/table.py` writes it."""
    text = (AUDIT / "README.md").read_text(encoding="utf-8")
    assert table.fill(text, table.parts()) == text
    with pytest.raises(ValueError, match="0 places for 'seen'"):
        table.fill("", {"seen": ""})


def test_the_intervals_in_the_documentation_are_those_of_the_results(table: ModuleType) -> None:
    text = " ".join((AUDIT.parents[1] / "docs" / "audit.md").read_text(encoding="utf-8").split())
    results, small = (
        [row for row in table.read(path) if row["method"] == "ours"] for path in (table.RESULTS, table.SMALL)
    )
    places = {
        "on [Fashion-MNIST]": [row for row in results if row["setting"].startswith("fashion-mnist ")],
        "on CIFAR-10": [row for row in results if row["setting"].startswith("cifar10 ")],
        "of small IID runs": [row for row in small if " iid " in row["setting"]],
        "of small non-IID ones": [row for row in small if " non-iid " in row["setting"]],
    }
    for place, rows in places.items():
        held, clients = (sum(row[name] for row in rows) for name in ("in_interval", "clients"))
        assert re.search(rf"for {held} of {clients}( clients)? {re.escape(place)}", text), (place, held, clients)


def test_runs_are_added_and_replaced(table: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    table.add(path, rows(table, "fashion-mnist iid pair-low", 0, 0.98, references=True))
    table.add(path, rows(table, "cifar10 iid symmetric-high", 0, 0.97))
    table.add(path, rows(table, "fashion-mnist iid pair-low", 0, 0.99))
    found = table.read(path)
    assert [(row["setting"], row["auroc"]) for row in found if row["method"] == "ours"] == [
        ("cifar10 iid symmetric-high", 0.97),
        ("fashion-mnist iid pair-low", 0.99),
    ]
    assert len(found) == 6
    assert found[0]["in_interval"] == 19


def test_seeds_and_datasets_have_tables_of_their_own(
    table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RESULTS", "SMALL", "LIMITS"):
        monkeypatch.setattr(table, name, tmp_path / name)
    assert set(table.parts().values()) == {table.NOT_RUN}
    for seed, auroc in ((0, 0.95), (1, 0.97), (4, 0.99), (5, 0.98)):
        table.add(table.RESULTS, rows(table, "fashion-mnist iid pair-low", seed, auroc, references=seed == 4))
    parts = table.parts()
    assert "| iid pair-low (80.0, 2) | 0.9600 | 0.9500 | 0.9400 |" in parts["development"]
    assert "| 2.5 (5.0) | 2.5 (5.0) | 38 of 40 (14 points) | – | – | – |" in parts["development"]
    assert "| iid pair-low (80.0, 1) | 0.9900 |" in parts["seen"]
    assert "| 1: 0.9900 | 0.9600 | 0.9500 |" in parts["seen"]
    assert "| iid pair-low (80.0, 1) | 0.9800 |" in parts["untouched"]
    names = ("right_on_right", "right_on_wrong", "repeated", "ours", "channel_known", "calibrated", "rate_known")
    for setting in ("fashion-mnist iid pair-low", "cifar10 iid pair-low"):
        known = {"setting": setting, "run_method": "FedNoiL(Logarithm)", "seed": 0} | dict.fromkeys(names, 1.5)
        table.add(table.LIMITS, [known])
    assert table.parts()["limits"].count("iid pair-low") == 1  # lines have no dataset, and the section is of one
    assert "(a) in 4 of 4 runs (at worst by +0.0200), (b) in 1 of 1 runs" in parts["all"]
    assert parts["cifar10"] == table.NOT_RUN
