"""`fednoil run --seeds`: several runs, as when each is made alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import fednoil, sets


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_seed_is_the_run_it_would_be_alone(tiny_npz: Path, jobs: int) -> None:
    options = sets(data__name=f"npz:{tiny_npz}")
    status, out, err = fednoil("run", *options, "--seeds", "0..2", "--out", "all", "--jobs", jobs)
    assert (status, err) == (0, "")
    assert "over 3 seeds" in out
    fednoil("run", *options, "--seed", 1, "--out", "alone", "-q")
    alone, one = ((Path(f) / "rounds.jsonl").read_text().splitlines() for f in ("alone", "all/seed-1"))
    keys = ("test_accuracy", "train_loss", "selected")
    assert [[json.loads(line)[k] for k in keys] for line in one] == [
        [json.loads(line)[k] for k in keys] for line in alone
    ]


def test_seeds_go_on_where_they_stopped(tiny_npz: Path) -> None:
    options = sets(data__name=f"npz:{tiny_npz}")
    assert fednoil("run", *options, "--seeds", "0,1", "--out", "all", "--jobs", 1, "-q")[0] == 0
    status, _, err = fednoil("run", *options, "--seeds", "0..2", "--out", "all", "--jobs", 1, "-q")
    assert status == 2
    assert "--resume" in err
    assert fednoil("run", *options, "--seeds", "0,1", "--out", "all", "--jobs", 1, "-q", "--force")[0] == 0
    status, out, _ = fednoil("run", *options, "--seeds", "0..2", "--out", "all", "--jobs", 1, "--resume")
    assert status == 0
    assert "[1/1] seed 2" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seeds", "x"), "--seeds x"),
        (("--seeds", "0..2", "--seed", "1"), "--seed"),
        (("--seeds", "0..2", "--json"), "--json"),
        (("--jobs", "2"), "--seeds"),
    ],
)
def test_bad_seeds_are_told_in_one_line(tiny_npz: Path, options: tuple[str, ...], words: str) -> None:
    status, _, err = fednoil("run", *sets(data__name=f"npz:{tiny_npz}"), *options)
    assert status == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("runs").exists()
