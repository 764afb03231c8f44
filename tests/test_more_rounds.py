"""A finished run that is given more rounds ends as one long run; where it can't, it says so."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import assert_same, fednoil, refused, resume
from stopped_runs import lines, results, snapshot

import fednoil as package
from fednoil.config import load_config
from fednoil.learners import LEARNERS
from fednoil.report.runs import load_run
from fednoil.runner import Silent, run
from fednoil.tensors import read_tensors

KEPT = ("config.toml", "noise.parquet", "rounds.jsonl", "summary.json", "confusion.json", "measures.json")


def same(one: Path, other: Path) -> None:
    left, right = results(one), results(other)
    for name in KEPT:
        assert left[name] == right[name], name
    assert_same(*(read_tensors(path / "model.safetensors") for path in (one, other)))


@pytest.fixture(scope="module")
def longer(toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference with six rounds instead of four."""
    out = tmp_path_factory.mktemp("longer") / "run"
    assert fednoil("run", toml, "--set", "train.rounds=6", "--out", out, "--quiet") == (0, "", "")
    return out


def test_a_finished_run_goes_on(reference: Path, longer: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    resume(out, "--set", "train.rounds=6")
    same(out, longer)
    resume(out)
    same(out, longer)
    assert "extended" not in json.loads((out / "environment.json").read_text())


def test_a_stopped_run_goes_on_for_longer(stopped: Path, longer: Path) -> None:
    resume(stopped, "--set", "train.rounds=6")
    same(stopped, longer)


def test_a_run_that_was_given_more_rounds_survives_a_stop(reference: Path, longer: Path, tmp_path: Path) -> None:
    """Stopped before its next checkpoint, whose index still has the hash of the shorter run."""
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    resume(out, "--set", "train.rounds=6")
    index = json.loads((reference / "checkpoint/checkpoint.json").read_text())
    shutil.rmtree(out / "checkpoint")
    shutil.copytree(reference / "checkpoint", out / "checkpoint")
    (out / "summary.json").unlink()
    assert index["config_hash"] != json.loads((longer / "summary.json").read_text())["config_hash"]
    resume(out)
    same(out, longer)


def test_from_python(reference: Path, longer: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    found = package.run(out=out, resume=True, set={"train.rounds": 6})
    assert (len(found.history), found.finished) == (6, True)
    same(out, longer)


def test_seeds_go_on(toml: Path, tmp_path: Path) -> None:
    out = tmp_path / "all"
    args = ("run", toml, "--seeds", "0,1", "--jobs", 1, "--out", out, "-q")
    assert fednoil(*args)[0] == 0
    assert fednoil(*args, "--resume", "--set", "train.rounds=5") == (0, "", "")
    assert [len(lines(out / f"seed-{n}")) for n in (0, 1)] == [5, 5]


def test_fewer_rounds_and_other_keys_are_refused(reference: Path) -> None:
    before = snapshot(reference)
    line = refused("run", "--resume", "--out", reference, "--set", "train.rounds=3")
    assert "is a run of 4 rounds; train.rounds = 3 is fewer" in line
    line = refused("run", "--resume", "--out", reference, "--set", "train.rounds=6", "--set", "train.lr=0.1")
    assert "train.lr is 0.05 there and 0.1 now" in line
    assert "train.rounds" not in line
    assert snapshot(reference) == before


def test_a_promise_for_all_rounds_is_not_broken(values: dict[str, Any], tmp_path: Path) -> None:
    values["sampling"] = {"name": "score", "fraction": 0.5}
    values["privacy"] = {"scores": 1.0}
    run(load_config(values), tmp_path / "run", Silent())
    line = refused("run", "--resume", "--out", tmp_path / "run", "--set", "train.rounds=6")
    assert "privacy.scores is promised for all 4 rounds together" in line


def test_a_federation_is_continued_by_its_own_command(reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    roster = {"run": "0" * 32, "clients": {"a": 0}, "sizes": {"a": 3}, "founders": ["a"], "agreement": {}}
    (out / "roster.json").write_text(json.dumps(roster))
    line = refused("run", "--resume", "--out", out, "--set", "train.lr=0.1")
    assert f"to continue: fednoil federation run --resume --out {out}" in line


@pytest.mark.parametrize("changes", [{"train": {"lr_rounds": "cosine"}}, {"learner": {"name": "josrc", "warmup": 1}}])
def test_what_follows_the_number_of_rounds_is_reported(
    changes: dict[str, Any], values: dict[str, Any], tmp_path: Path
) -> None:
    values["train"] |= {"rounds": 3, **changes.get("train", {})}
    values |= {k: v for k, v in changes.items() if k != "train"}
    run(load_config(values), tmp_path / "run", Silent())
    status, out, _ = fednoil("run", "--resume", "--out", tmp_path / "run", "--set", "train.rounds=5")
    assert status == 0
    (line,) = [line for line in out.splitlines() if "depends on the number of rounds" in line]
    assert line.endswith("played as part of 3, not of 5, so this result differs from that of a single run of 5")
    long = {**values, "train": {**values["train"], "rounds": 5}}
    run(load_config(long), tmp_path / "long", Silent())
    if "train" in changes:  # a threshold may fall between the same samples
        assert lines(tmp_path / "run")[1]["train_loss"] != lines(tmp_path / "long")[1]["train_loss"]
    conducts = [load_run(tmp_path / name).conduct for name in ("run", "long")]  # never in one row of a report
    assert conducts[0] != conducts[1]
    assert "extended from 3 rounds" in conducts[0]


def test_every_learner_that_reads_the_number_of_rounds_says_so() -> None:
    for name, learner in LEARNERS.items():
        source = Path(inspect.getfile(learner)).read_text()
        assert learner.Config.follows_rounds == any(f"task.{name}" in source for name in ("rounds", "passes")), name
