"""A collapse is reported in the round in which it is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import fednoil
from made_runs import round_record
from rich.console import Console

from fednoil import runner
from fednoil.config import load_config
from fednoil.errors import Diverged
from fednoil.history import RoundRecord
from fednoil.records.folder import RunFolder
from fednoil.reporters import Bars
from fednoil.rounds.collapse import signs


def seen(records: list[RoundRecord], held_out: int = 0) -> dict[int, list[str]]:
    """What is said of each round when it is the last."""
    found = {n: signs(records[:n], ("cat", "dog"), held_out) for n in range(1, len(records) + 1)}
    return {n: lines for n, lines in found.items() if lines}


def test_accuracy_that_falls_is_reported_once_for_each_fall() -> None:
    curve = [40, 53, 44, 43, 42, 32, 33, 50, 41, 40]
    found = seen([round_record(n, test_accuracy=float(value)) for n, value in enumerate(curve, 1)])
    assert found == {
        5: ["accuracy has fallen to 42.0 %, from 53.0 % in round 2"],
        10: ["accuracy has fallen to 40.0 %, from 53.0 % in round 2"],
    }


def test_one_bad_round_is_none() -> None:
    curve = [50.0, 20.0, 50.0, 20.0, 49.0]
    assert seen([round_record(n, test_accuracy=value) for n, value in enumerate(curve, 1)]) == {}


@pytest.mark.parametrize(("held_out", "expected"), [(10_000, [4]), (40, [])])
def test_agreement_with_held_out_labels_counts_beyond_chance(held_out: int, expected: list[int]) -> None:
    """28 % is the most that a good model reaches here; a fall to 20 % is one, unless so few labels could do it."""
    curve = [20.0, 28.0, 20.0, 20.0, 21.0]
    found = seen([round_record(n, val_accuracy=value) for n, value in enumerate(curve, 1)], held_out)
    assert list(found) == expected
    if expected:
        assert found[4] == [
            "agreement with held-out labels has fallen to 20.0 %, from 28.0 % in round 2, which is kept (run.select)"
        ]


def test_a_model_that_knows_one_class_only_has_learnt_nothing() -> None:
    """It is reported once, after four rounds; not of a model that has told classes apart before, or of one class."""
    lost, once = [0.0, 100.0], [10.0, 90.0]
    said = {4: ["every test sample is taken for 'dog': nothing was learnt so far; a lower train.lr may help"]}
    assert seen([round_record(n, class_accuracy=lost) for n in range(1, 7)]) == said
    after = [round_record(n, class_accuracy=once if n == 1 else lost) for n in range(1, 7)]
    assert not any("nothing was learnt" in line for lines in seen(after).values() for line in lines)
    assert seen([round_record(n, class_accuracy=[None, 100.0]) for n in range(1, 7)]) == {}


def test_lost_classes_have_names() -> None:
    """The cat was never known; the dog was."""
    classes = [[0.0, 50.0, None], [0.0, 40.0, None], [0.0, 0.0, None], [0.0, 0.0, None], [0.0, 0.0, None]]
    found = seen([round_record(n, class_accuracy=values) for n, values in enumerate(classes, 1)])
    assert found == {4: ["no test sample of 'dog' is classified correctly any longer"]}


def test_the_line_follows_its_round(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: Path
) -> None:
    monkeypatch.setattr(runner, "signs", lambda records, *_: ["it fell"] if len(records) == 2 else [])
    status, out, _ = fednoil("run", toml, "--out", tmp_path / "run")
    said = out.splitlines()
    place = next(i for i, line in enumerate(said) if line.startswith("round 2/4"))
    assert (status, said[place + 1]) == (0, "warning: round 2: it fell")
    assert said[place + 2].startswith("round 3/4")
    assert [r.warnings for r in RunFolder(tmp_path / "run").records()] == [None, ["it fell"], None, None]
    with (tmp_path / "screen").open("w") as screen:
        runner.run(load_config(values), tmp_path / "bars", Bars(Console(file=screen, force_terminal=True, width=150)))
    assert (tmp_path / "screen").read_text().count("warning: round 2: it fell") == 1
    _, out, _ = fednoil("run", toml, "--seeds", "0", "--jobs", 1, "--out", tmp_path / "all")
    assert "seed 0: warning: round 2: it fell" in out
    assert "it fell" in fednoil("run", toml, "--out", tmp_path / "json", "--json")[1]


def test_numbers_that_are_none_end_a_run_at_once(values: dict[str, Any], tmp_path: Path) -> None:
    values["train"] |= {"lr": 1e30}
    with pytest.raises(Diverged, match="in round 1"):
        runner.run(load_config(values), tmp_path / "run", runner.Silent())
