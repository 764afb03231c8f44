"""`fednoil run --seeds`: several runs, as when each is made alone."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_arrays
from test_cli import fednoil, sets

from fednoil import compare
from fednoil.cli.stopping import Stopped
from fednoil.experiment import Experiment
from fednoil.records import store
from fednoil.reporters import closing


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_seed_is_the_run_it_would_be_alone(tiny_npz: Path, jobs: int) -> None:
    options = sets(data__name=f"npz:{tiny_npz}")
    status, out, err = fednoil("run", *options, "--seeds", "0..2", "--out", "all", "--jobs", jobs)
    assert (status, err) == (0, "")
    assert out.endswith("over 3 seeds; results in all\n")
    fednoil("run", *options, "--seed", 1, "--out", "alone", "-q")
    alone, one = ((Path(f) / "rounds.jsonl").read_text().splitlines() for f in ("alone", "all/seed-1"))
    keys = ("test_accuracy", "train_loss", "selected")
    assert [[json.loads(line)[k] for k in keys] for line in one] == [
        [json.loads(line)[k] for k in keys] for line in alone
    ]
    origins = [json.loads((Path(f) / "environment.json").read_text())["origin"] for f in ("alone", "all/seed-1")]
    assert origins[0] == origins[1]
    assert origins[0]["preset"] == "demo/fedavg"
    assert f"data.name=npz:{tiny_npz}" in origins[0]["set"]


def test_a_folder_of_seeds_is_compared_as_one(tiny_npz: Path) -> None:
    options = sets(data__name=f"npz:{tiny_npz}")
    fednoil("run", *options, "--seeds", "0,1", "--out", "all", "--jobs", 1, "-q")
    fednoil("run", *options, "--set", "train.lr=0.2", "--out", "one", "-q")
    finals = [json.loads(Path(f"all/seed-{n}/summary.json").read_text())["final_accuracy"] for n in (0, 1)]
    status, out, _ = fednoil("compare", "all", "one", "--json")
    both, one = json.loads(out)
    assert (status, both["run"], both["seed"], one["seed"]) == (0, "all", "0, 1", 0)
    assert both["final_accuracy"] == pytest.approx(np.mean(finals))
    assert both["final_accuracy_std"] == pytest.approx(np.std(finals, ddof=1))
    shown = fednoil("compare", "all", "one")[1]
    assert f"{np.mean(finals):.2f} ± {np.std(finals, ddof=1):.2f}" in shown
    assert "batches" in shown
    table = compare("all", "one").table
    assert table["seed"] == ["0, 1", "0"]
    assert table["final_accuracy"] == [both["final_accuracy"], one["final_accuracy"]]
    assert table["final_accuracy_std"] == [both["final_accuracy_std"], None]
    Path("all/seed-1").rename("all/gone")
    fednoil("run", *options, "--set", "train.lr=0.2", "--seed", 1, "--out", "all/seed-1", "-q")
    assert "all holds runs that differ in train.lr; give them one by one" in fednoil("compare", "all")[2]
    shutil.rmtree("all/seed-1")
    shutil.copytree("all/seed-0", "all/seed-2")
    assert "all holds 2 runs with seed 0; leave one of them" in fednoil("compare", "all")[2]


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


def test_seeds_know_what_they_are_and_have_a_folder_of_their_own(tiny_npz: Path) -> None:
    options = sets(data__name=f"npz:{tiny_npz}")
    assert fednoil("run", *options, "-q")[0] == 0
    assert fednoil("run", *options, "--seeds", "0", "-q")[0] == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["demo-fedavg", "demo-fedavg-seeds"]
    status, out, _ = fednoil("run", "--resume", "--seeds", "0..1", "--out", "runs/demo-fedavg-seeds", "--jobs", 1)
    assert status == 0
    assert "[1/1] seed 1" in out  # with the tiny data of seed 0, not as the demo that is meant without a name
    first, second = ((Path("runs/demo-fedavg-seeds") / f"seed-{n}" / "config.toml").read_text() for n in (0, 1))
    assert second == first.replace("seed = 0", "seed = 1")


@pytest.mark.parametrize(("seeds", "at"), [((), 0), (("--seeds", "0..1"), 0), (("--seeds", "0..1"), 1)])
def test_how_to_go_on_is_reported_only_where_that_works(
    tiny_npz: Path, monkeypatch: pytest.MonkeyPatch, seeds: tuple[str, ...], at: int
) -> None:
    """Stopped when seed `at` is about to write its config.toml, which says what goes on."""
    begin = store.begin

    def stopped(experiment: Experiment, *rest: Any) -> Any:
        if experiment.config.run.seed == at:
            raise Stopped(signal.SIGINT)
        return begin(experiment, *rest)

    monkeypatch.setattr(store, "begin", stopped)
    jobs = ("--jobs", 1) if seeds else ()
    result = fednoil("run", *sets(data__name=f"npz:{tiny_npz}"), *seeds, *jobs, "--out", "all", "-q")
    hint = "; continue with: fednoil run --resume --seeds 0..1 --out all" if at else ""
    assert result == (130, "", f"fednoil: interrupted{hint}\n")
    monkeypatch.setattr(store, "begin", begin)
    status, _, err = fednoil("run", "--resume", *seeds, *jobs, "--out", "all", "-q")
    assert (status, "has no run" in err) == ((0, False) if at else (2, True))


@pytest.mark.parametrize("quiet", [False, True])
def test_why_seeds_failed_is_reported_once_and_with_the_status_of_a_run(tiny_npz: Path, quiet: bool) -> None:
    options = sets(data__name=f"npz:{tiny_npz}", train__lr=1e30)
    more = ("-q",) if quiet else ()
    status, out, err = fednoil("run", *options, "--seeds", "0..1", "--out", "all", "--jobs", 1, *more)
    assert (status, err.count("\n"), (out + err).count("training diverged")) == (2, 1, 2)
    assert err.startswith("fednoil: 2 of 2 runs failed: seed 0")
    assert ("training diverged" in err) == quiet


def test_what_all_seeds_would_fail_by_is_reported_once_and_leaves_nothing(tiny_npz: Path) -> None:
    options = sets(data__name=f"npz:{tiny_npz}")
    fednoil("run", *options, "--out", "alone", "-q")
    fednoil("run", *options, "--out", "all", "--seeds", "0,1", "--jobs", 1, "-q")
    before = sorted(str(path) for path in Path().rglob("*"))
    for extra, words in (
        (("--out", "new", "--set", "data.name=npz:none.npz"), "npz:none.npz is not a file"),
        (("--out", "new", "--set", "partition.clients=1000"), "partition.clients = 1000"),
        (("--out", "alone"), "alone is itself a run"),
        (("--out", "alone/config.toml"), "alone/config.toml is a file"),
        (("--out", "all", "--resume", "--set", "train.lr=0.2"), "there and 0.2 now"),
        (("--out", "all", "--force", "--set", "data.name=npz:none.npz"), "npz:none.npz is not a file"),
    ):
        status, out, err = fednoil("run", *options, "--seeds", "0,1", *extra)
        assert (status, out, len(err.splitlines())) == (2, "", 1), err
        assert words in err
    status, _, err = fednoil("run", "--resume", "--seeds", "0,1", "--out", "nowhere")
    assert (status, "nowhere has no run" in err) == (2, True)
    assert sorted(str(path) for path in Path().rglob("*")) == before


OWN = """
from fednoil.learners.erm import Erm, ErmConfig


class Config(ErmConfig):
    strength: float = 1.0

    def lost_class_advice(self):
        return f"more than {self.strength} may help"


class Mine(Erm):
    Config = Config
"""


@pytest.mark.parametrize(
    ("learner", "advice"),
    [("fednoil", "--set learner.name=fednoil-plus may help"), ("advising:Mine", "more than 1.0 may help")],
)
def test_a_seed_that_lost_classes_says_so_with_its_learners_advice(
    tiny_npz: Path, monkeypatch: pytest.MonkeyPatch, learner: str, advice: str
) -> None:
    """At such a learning rate a network stays as it began, which names few classes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("advising.py").write_text(OWN)
    options = sets(data__name=f"npz:{tiny_npz}", learner__name=learner, train__lr=1e-30)
    status, out, _ = fednoil("run", *options, "--seeds", "0,1", "--out", "all", "--jobs", 1)
    assert status == 0
    for number, line in enumerate(out.splitlines()[:2]):
        per_class = json.loads(Path(f"all/seed-{number}/summary.json").read_text())["per_class_accuracy"]
        lost = ", ".join(str(c) for c, right in enumerate(per_class) if right == 0)
        assert len(lost) > 1
        assert line.startswith(f"[{number + 1}/2] seed {number}: ")
        assert line.endswith(f" s; no test sample of the classes {lost} is classified correctly; {advice}")
    status, out, _ = fednoil("run", *options, "--out", "one")
    assert any(line.endswith(f" is classified correctly; {advice}") for line in out.splitlines())


def test_lost_classes_are_reported_by_name(tmp_path: Path) -> None:
    """Of a class that has only a number, that; and numbers alone in summaries of old."""
    arrays = {**tiny_arrays(), "class_names": np.array(["T-shirt", "bag", "2", "coat"])}
    np.savez(tmp_path / "named.npz", allow_pickle=False, **arrays)
    options = sets(data__name=f"npz:{tmp_path / 'named.npz'}", train__lr=1e-30)
    _, out, _ = fednoil("run", *options, "--seeds", "0", "--out", "all", "--jobs", 1)
    summary = json.loads(Path("all/seed-0/summary.json").read_text())
    lost = [c for c, right in enumerate(summary["per_class_accuracy"]) if right == 0]
    assert len(lost) > 1
    names = ", ".join(["'T-shirt'", "'bag'", "2", "'coat'"][c] for c in lost)
    result = f"no test sample of the classes {names} is classified correctly"
    assert out.splitlines()[0].endswith(f" s; {result}")
    assert fednoil("run", *options, "--out", "one")[1].splitlines()[-2] == result
    numbers = ", ".join(map(str, lost))
    del summary["classes"]
    assert closing(summary, Path("one")).splitlines()[1] == result.replace(names, numbers)
    many = closing({**summary, "per_class_accuracy": [0.0] * 12}, Path("one")).splitlines()[1]
    assert "the classes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more is" in many


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seeds", "x"), "--seeds x"),
        (("--seeds", "0..2", "--seed", "1"), "--seed"),
        (("--seeds", "0..2", "--json"), "--json"),
        (("--jobs", "2"), "--seeds"),
    ],
)
def test_bad_seeds_are_reported_in_one_line(tiny_npz: Path, options: tuple[str, ...], words: str) -> None:
    status, _, err = fednoil("run", *sets(data__name=f"npz:{tiny_npz}"), *options)
    assert status == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("runs").exists()


def test_seeds_whose_accuracy_nobody_knows() -> None:
    """Two rows of a class are too few to hold one out."""
    rows = [f"{k % 2}.{k},{k},{'ab'[k % 2]}" for k in range(4)]
    Path("few.csv").write_text("\n".join(["x,y,label", *rows]) + "\n")
    changes = ("data.name=table:few.csv", "model.name=linear", "partition.clients=2", "train.rounds=1")
    options = ["demo/fedavg", *(word for change in changes for word in ("--set", change))]
    status, out, err = fednoil("run", *options, "--seeds", "0,1", "--out", "all", "--jobs", 1)
    assert (status, err) == (0, "")
    assert "[2/2] seed 1: accuracy not known in" in out
    assert "final accuracy not known; results in all" in out
