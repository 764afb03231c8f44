"""A ranking of methods: how runs are read, ranks and gaps by hand, the grid, and the command."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import fednoil
from studies import EXPERIMENTS, script

from fednoil.bench import pages
from fednoil.bench import settings as bench_settings
from fednoil.bench.plan import Grid, cells_of, finished, planned, save, saved, with_added, with_changes
from fednoil.bench.ranking import RunFigures, figures_of, knows_noise, ranking, ranks_of, spread, uneven
from fednoil.bench.record import read_record, write_record
from fednoil.bench.settings import DEFAULT_METHODS, settings_of
from fednoil.config import load_config, to_toml
from fednoil.errors import UserError
from fednoil.executors.base import Job
from fednoil.executors.local import Workbench
from fednoil.history import RoundRecord
from fednoil.learners.base import Client
from fednoil.pages.marked import fill
from fednoil.tensors import Tensors

ONE = (
    *("--setting", "iid/clean", "--seeds", "0", "--method", "fedavg", "--jobs", "1", "--device", "cpu"),
    *("--set", "train.rounds=1", "--set", "schedule.epochs=1"),
)


def record(number: int, accuracy: float, held_out: float | None = None) -> RoundRecord:
    known = {"test_accuracy": accuracy, "test_loss": 1.0, "val_accuracy": held_out}
    cost = {"train_batches": 10 * number, "bytes_down": 100, "bytes_up": 50, "wall_s": 0.5}
    return RoundRecord(round=number, local_epochs=1, selected=[0], **known, **cost)  # type: ignore[arg-type]


def test_four_readings_of_a_run() -> None:
    """Twelve rounds of 1 to 12 points, but the third has 90; held-out labels agree best in rounds 5 and 7."""
    agreed = {5: 60.0, 7: 60.0}
    rounds = [record(r, 90.0 if r == 3 else float(r), agreed.get(r, 10.0)) for r in range(1, 13)]
    found = figures_of(rounds)
    assert (found.last, found.best, found.chosen) == (12.0, 90.0, 5.0)
    assert found.last_ten == pytest.approx((90 + sum(range(4, 13))) / 10)
    assert (found.steps, found.traffic, found.seconds) == (120, 12 * 150, 6.0)
    assert figures_of([record(1, 5.0)]).chosen is None


def test_a_run_that_diverged_ends_with_guesses() -> None:
    """Of four classes; its best round, and the one that held-out labels choose, were before."""
    rounds = [record(r, 80.0, 50.0) for r in range(1, 13)]
    found = figures_of(rounds, 25.0)
    assert (found.last, found.last_ten, found.best, found.chosen) == (25.0, 25.0, 80.0, 80.0)
    found = figures_of([], 25.0)
    assert (found.last, found.last_ten, found.best, found.chosen, found.steps) == (25.0, 25.0, 25.0, None, 0)


def test_a_method_that_diverges_at_once_is_ranked_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "diverging.py").write_text(
        "from fednoil.learners.erm import Erm\n"
        "class Bad(Erm):\n    def step(self, *given):\n        return super().step(*given) * float('nan')\n"
    )
    monkeypatch.chdir(tmp_path)
    _, out, err = fednoil("bench", *ONE, "--add", "diverging:Bad", "--jobs", "1")
    assert "| diverging:Bad | 2.00 |" in out, err
    assert (tmp_path / "runs/bench/runs.html").is_file()


def test_equal_values_share_their_ranks() -> None:
    assert ranks_of({"a": 3.0, "b": 5.0, "c": 3.0, "d": 1.0}) == {"a": 2.5, "b": 1.0, "c": 2.5, "d": 4.0}


def test_the_interval_of_a_mean() -> None:
    """Of 1, 2, 3: t = 4.303 with two degrees of freedom, s = 1."""
    found = spread([1.0, 2.0, 3.0])
    assert (found.half, str(found)) == (pytest.approx(4.302653 / 3**0.5, abs=1e-5), "2.00 ± 2.48")
    assert [str(spread([1.5] * seeds)) for seeds in (1, 2)] == ["1.50"] * 2  # t is 12.7 with one degree of freedom


def ended(accuracy: float) -> RunFigures:
    return RunFigures(accuracy + 1, accuracy, accuracy + 2, accuracy - 1, 10, 1000, 2.0)


FIRST = {("a", "x", 0): ended(80), ("b", "x", 0): ended(70), ("a", "y", 0): ended(40), ("b", "y", 0): ended(60)}
SECOND = {("a", "x", 1): ended(82), ("b", "x", 1): ended(70), ("a", "y", 1): ended(70), ("b", "y", 1): ended(60)}
RUNS = {**FIRST, **SECOND, ("c", "x", 0): ended(99)}


def test_a_ranking_by_hand() -> None:
    """Seed 0: a is first in x and second in y; seed 1: first in both. c lacks runs."""
    a, b, c = ranking(RUNS, ["b", "a", "c"], ["x", "y"], {"b": True})
    assert [row.method for row in (a, b, c)] == ["a", "b", "c"]
    assert a.rank == spread([1.5, 1.0])
    assert b.rank == spread([1.5, 2.0])
    assert c.rank is None
    assert a.accuracy["last_ten"] == spread([60.0, 76.0])
    assert a.accuracy["chosen"] == spread([59.0, 75.0])
    assert a.worst == ("y", 5.0)  # 55 against b's 60
    assert b.worst == ("x", 11.0)  # 70 against a's 81
    assert (a.knows, b.knows, c.runs) == (False, True, 1)


def test_what_is_shown() -> None:
    rows = ranking(RUNS | {(m, s, 2): found for (m, s, _), found in SECOND.items()}, ["a", "b", "c"], ["x", "y"], {})
    said = "Not one budget."
    text = pages.markdown(rows, ["x", "y"], said)
    assert all(shown in text for shown in ("| a | 1.17 ± 0.72 |", "| c | – |", "11.33 in x"))
    assert "b is second (1.83 ± 0.72). a is also the least behind where it is worst: 0.00 points in x." in text
    page = pages.html(rows, ["x", "y"], said, "runs.html", {})
    assert 'data-v="1.16' in page
    assert 'href="runs.html"' in page
    tables = pages.latex(rows, ["x", "y"], said)
    assert [shown.count(said) for shown in (text, page, tables)] == [1, 1, 3]
    assert tables.count(r"\begin{table*}") == 3
    assert r"1.17 $\pm$ 0.72" in tables


def test_a_tie_has_no_winner() -> None:
    """a is before b in x, and after it in y."""
    said = pages.answer(ranking(FIRST, "ab", "xy", {}), "xy")
    assert said == "It is a tie: a and b have the same mean rank, 1.50."
    runs = FIRST | {("c", setting, 0): ended(90) for setting in "xy"}
    assert "; a and b are second (2.50). c is also" in pages.answer(ranking(runs, "abc", "xy", {}), "xy")


def test_a_note_says_what_means_are_of() -> None:
    assert ["take three seeds" in pages.note(seeds, 1, [20]) for seeds in (2, 3)] == [True, False]
    for rounds, few in (([20, 10], "10"), ([4, 4], "4"), ([25, 1], "1 to 10")):
        assert f"by the mean of the last few rounds, {few} of each run." in pages.note(3, 1, rounds)


def test_budgets_that_differ_are_named() -> None:
    """Two rounds of three clients against two of one: 6 epochs of clients and 2; 6 and 4 are still alike."""
    three, one, two = ([replace(record(r, 50.0), selected=[0] * n) for r in (1, 2)] for n in (3, 1, 2))
    assert uneven({("a", "x", 0): three, ("b", "x", 0): two}) == ""
    said = uneven({("a", "x", 0): three, ("b", "x", 0): one})
    assert said.startswith("Not one budget: a run of a trains 6 epochs of clients, one of b 2.")


def test_a_name_is_text_only() -> None:
    rows = ranking({("<script>x", "x", 0): ended(1)}, ["<script>x"], ["x"], {})
    assert "<script>x" not in pages.html(rows, ["x"], "", "runs.html", {("<script>x", "x"): [1.0]})


def test_what_is_to_run_has_a_line_for_each_setting_and_its_seeds() -> None:
    cells = cells_of(Grid(methods=("fedavg", "gce"), settings=("iid/clean", "iid/two-level"), seeds=(0, 2)))
    done = {("fedavg", "iid/clean", 0), ("gce", "iid/two-level", 0), ("gce", "iid/two-level", 2)}
    assert planned([cell for cell in cells if cell.key not in done]) == [
        "iid/clean, seeds 0, 2: gce",
        "iid/clean, seed 2: fedavg",
        "iid/two-level, seeds 0, 2: fedavg",
    ]


def test_finished_runs_count_whatever_their_keys_were_called(tmp_path: Path) -> None:
    """But not those of which something can't be said today."""
    (cell,) = cells_of(Grid(methods=("fedavg",), settings=("iid/two-level",), seeds=(0,)))
    before = to_toml(cell.config).replace("ratios = [0.5, 1.0]", "low = 0.5\nhigh = 1.0")
    before = before.replace("epochs = 10", "epochs = 10\nextra_rounds = 0")
    assert "low = 0.5" in before
    assert "extra_rounds" in before
    for name, text in (("old", before), ("lost", before.replace("[train]", "[train]\nnesterov = true"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(text)
        (tmp_path / name / "summary.json").write_text("{}")
    assert finished(tmp_path) == {cell.config.hash(): tmp_path / "old"}


def test_every_method_and_setting_has_a_cell() -> None:
    cells = cells_of(Grid(seeds=(0,)))
    assert len(cells) == len(DEFAULT_METHODS) * 12
    assert len({cell.folder for cell in cells}) == len(cells)
    assert all(cell.config.data.validation == 0.1 for cell in cells)
    assert not any(knows_noise(cell.config.model_dump(mode="json")) for cell in cells)
    for learner in ("fednoil", "coteaching"):
        assert knows_noise(load_config({"learner": {"name": learner, "frac": 0.35}}).model_dump(mode="json"))
    paper = settings_of("paper").values()
    assert {(protocol.rounds, protocol.epochs, protocol.sample_passes) for protocol in paper} == {(150, 5, 2_700_000)}


def test_a_newcomer_joins_what_is_there(tmp_path: Path) -> None:
    save(Grid(methods=["fedavg"], settings=["iid/clean"], seeds=[3]), tmp_path)
    grid = saved(tmp_path)
    assert grid is not None
    grid = with_added(grid, ["newcomer_bench:Mine"])
    assert grid == Grid(methods=["fedavg", "newcomer_bench:Mine"], settings=["iid/clean"], seeds=[3])
    more = with_changes(replace(grid, changes={"train": {"rounds": 2, "lr": 0.1}}), {"train": {"lr": 0.2}, "run": {}})
    assert more.changes == {"train": {"rounds": 2, "lr": 0.2}, "run": {}}
    assert with_changes(grid, {}) == grid
    for name in ("gce", "+gce", "krum+"):
        with pytest.raises(UserError, match=rf"--add {re.escape(name)}: name your own learner as module:Class"):
            with_added(grid, [name])
    (tmp_path / "bench.json").write_text(json.dumps({"methods": [], "colour": 1}))
    with pytest.raises(UserError, match=r"bench\.json is damaged"):
        saved(tmp_path)


def test_any_server_with_any_learner_can_be_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "newcomer_server.py").write_text("from fednoil.servers.krum import Krum\nclass Mine(Krum): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    methods = ["krum+dividemix", "newcomer_server:Mine+gce", "gce", "dividemix"]
    cells = cells_of(Grid(methods=methods, settings=["iid/clean"], seeds=[0]))
    assert cells[0].config.learner == cells.pop().config.learner  # not as for another number of rounds
    named = [(cell.config.server.name, cell.config.learner.name) for cell in cells]
    assert named == [("krum", "dividemix"), ("newcomer_server:Mine", "gce"), ("fedavg", "gce")]
    assert len({cell.config.train.rounds for cell in cells}) == 1
    staged = cells_of(Grid(methods=["fedcorr", "fedcorr+gce"], settings=["iid/clean"], seeds=[0]))
    assert [cell.config.server for cell in staged] == [staged[0].config.server] * 2  # with its stages
    assert staged[0].config.train.rounds == staged[1].config.train.rounds


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"scale": "large"}, "--scale large: choose small or paper"),
        ({"settings": ["iid/cleen"]}, "--setting iid/cleen: choose .*iid/clean"),
        ({"methods": ["fedcor"]}, "--method fedcor: choose .*fedcorr"),
        (
            {"methods": ["mixup", "gce"], "changes": {"learner": {"mix": 2}}},
            "^gce in iid/clean: unknown key 'learner.mix'",
        ),
        ({"methods": ["krumm+gce"]}, "server.name = 'krumm' is unknown; choose .*krum"),
        ({"methods": ["gce", "fedavg+gce"]}, r"gce, seed 0' and 'iid/clean, fedavg\+gce, seed 0' are the same run;"),
        (
            {"settings": ["iid/clean", "iid/instance"], "changes": {"noise": {"kind": "none"}}},
            "'iid/instance, gce, seed 0' are the same run; leave one out. Changed in all runs: noise.kind=none.",
        ),
    ],
)
def test_grids_that_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        cells_of(Grid(**{"methods": ["gce"], "settings": ["iid/clean"], **keys}))


def test_noise_files_are_what_runs_train_on(tmp_path: Path) -> None:
    few = [{"iid/clean": "non-iid/symmetric-low", "0": "1"}.get(word, word) for word in ONE]
    status, out, _ = fednoil("bench", "--noise-files", *few, "--out", tmp_path / "noise")
    assert status == 0
    assert "to run" not in out
    (line,) = (tmp_path / "noise/checksums.txt").read_text().splitlines()
    assert sorted(path.name for path in (tmp_path / "noise").iterdir()) == ["checksums.txt", line.split()[1]]
    assert fednoil("bench", *few, "--out", tmp_path / "runs")[0] == 0
    (made,) = (tmp_path / "runs").glob("*/noise.parquet")
    rows, own = (pq.read_table(path) for path in (tmp_path / "noise" / line.split()[1], made))
    assert rows.equals(own)
    assert line.split() == [own.schema.metadata[b"noise_hash"].decode(), "non-iid-symmetric-low-seed1.parquet"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "newcomer_bench.py").write_text("from fednoil.learners.erm import Erm\nclass Mine(Erm): pass\n")
    monkeypatch.chdir(tmp_path)
    status, out, _ = fednoil("bench", *ONE, "--set", "partition.samples_per_client=20")
    assert status == 0
    assert "1 run, 0 done, 1 to run" in out
    status, out, _ = fednoil("bench", "--add", "newcomer_bench:Mine", "--jobs", "1")
    assert status == 0
    assert "2 runs, 1 done, 1 to run" in out
    assert "| newcomer_bench:Mine | 1.50 |" in out  # it learns as FedAvg does
    for name in ("ranking.md", "ranking.tex", "ranking.html"):
        said = (tmp_path / "runs/bench" / name).read_text(encoding="utf-8").replace("\\_", "_")
        assert "last few rounds, 1 of each run" in said
        assert "train.rounds=1, schedule.epochs=1, partition.samples_per_client=20, run.device=cpu." in said
    assert (tmp_path / "runs/bench/runs.html").is_file()
    made = next((tmp_path / "runs/bench").glob("small-iid-clean-fedavg-*"))
    made.rename(made.with_name("from elsewhere"))
    status, out, _ = fednoil("bench", "--dry-run")
    assert "2 runs, 2 done, 0 to run" in out
    status, out, _ = fednoil("bench", "--dry-run", "--device", "cpu")  # --set of before still holds
    assert "2 runs, 2 done, 0 to run" in out
    status, out, _ = fednoil("bench", "--dry-run", "--set", "train.rounds=2")
    assert "2 runs, 0 done, 2 to run" in out


TINY = ("--method", "fedavg", "--method", "gce", "--seeds", "0", "--jobs", "1", "--device", "cpu")
BOTH = ("--setting", "iid/clean", "--setting", "iid/pair-high")


SMALL = (*bench_settings._SCALES["small"][:1], 3, 1, 1800)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ranking that others have made: two methods and a combination, two settings."""
    place = tmp_path_factory.mktemp("theirs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setitem(bench_settings._SCALES, "small", SMALL)
        assert fednoil("bench", *TINY, *BOTH, "--add", "median+gce", "--out", "theirs")[0] == 0
    return place / "theirs/results.csv"


@pytest.fixture
def theirs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its record in the current folder."""
    (tmp_path / "my_bench.py").write_text("from fednoil.learners.erm import Erm\nclass Mine(Erm): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(bench_settings._SCALES, "small", SMALL)
    Path("theirs").mkdir()
    return Path(shutil.copy(made, "theirs/results.csv"))


def test_a_newcomer_in_a_ranking_that_others_have_made(theirs: Path) -> None:
    own = ["--record", theirs, "--add", "my_bench:Mine", *TINY, "--setting", "iid/clean"]
    assert "3 runs, 2 done, 1 to run" in fednoil("bench", *own, "--dry-run")[1]
    assert not Path("runs/bench").exists()
    status, out, _ = fednoil("bench", *own)
    assert status == 0
    ranked = {row["method"]: row for row in read_record(Path("runs/bench/results.csv"))}
    assert set(ranked) == {"fedavg", "gce", "my_bench:Mine", "median+gce"}
    assert ranked["my_bench:Mine"]["last"] == ranked["fedavg"]["last"]  # it learns as FedAvg does
    assert "| median+gce |" in out
    there = {row["method"]: row for row in read_record(theirs) if row["setting"] == "iid/clean"}
    assert {name: ranked[name] for name in there} == there
    assert "3 runs, 3 done, 0 to run" in fednoil("bench", "--dry-run")[1]  # the folder keeps them
    assert "6 runs, 5 done, 1 to run" in fednoil("bench", "--dry-run", *BOTH)[1]  # also what it didn't need
    other = fednoil("bench", "--dry-run", "--set", "train.lr=0.1")[1]
    assert "none of the 6 runs of the record belongs to this ranking" in other  # not the combination either
    assert "3 runs, 0 done, 3 to run" in other


def test_several_records_add_up(theirs: Path) -> None:
    """Also with hashes of 12 digits, as they were once written."""
    rows = read_record(theirs)
    for method in ("fedavg", "gce"):
        longer = [{**row, **{key: f"{row[key]}89ab" for key in ("config", "noise")}} for row in rows]
        write_record(Path(f"{method}.csv"), [row for row in longer if row["method"] == method])
    words = [*TINY, *BOTH]
    status, _, _ = fednoil("bench", "--record", "fedavg.csv", "--record", "gce.csv", *words)
    assert (status, Path("runs/bench/runs.html").exists()) == (0, False)  # nothing was run here
    assert 'href=""' not in Path("runs/bench/ranking.html").read_text(encoding="utf-8")
    assert fednoil("bench", "--record", "fedavg.csv", "--out", "b", "--method", "fedavg", *words[4:])[0] == 0
    assert "4 runs, 4 done, 0 to run" in fednoil("bench", "--record", "gce.csv", *words, "--out", "b", "--dry-run")[1]


def test_a_record_that_does_not_fit_is_refused(theirs: Path) -> None:
    text, rows = theirs.read_text(encoding="utf-8"), read_record(theirs)
    gce = next(row for row in rows if (row["method"], row["setting"]) == ("gce", "iid/pair-high"))
    line = next(line for line in text.splitlines() if line.startswith("iid/pair-high,gce"))
    for wrong, said in (
        ("", "not the record of a ranking; give the results.csv"),
        (text.replace(rows[0]["noise"], "0123456789ab").replace(gce["noise"], "0123456789ab"), "none of the 6 runs"),
        (text.replace("iid/", "non-iid/"), "none of the 6 runs"),
        *(
            (text.replace(line, line.replace(f",{gce['last']},", f",{value},")), "line 6 is damaged")
            for value in ("many", "", "nan", "850")
        ),
        (text.replace(line, f"{line},more"), "line 6 is damaged"),
        (text.replace(line, line.rpartition(",")[0]), "line 6 is damaged"),
    ):
        Path("wrong.csv").write_text(wrong, encoding="utf-8")
        words = ["--record", "wrong.csv", *TINY, *BOTH, "--out", "elsewhere"]
        status, _, err = fednoil("bench", *words)
        assert (status, said in err, err.count("\n")) == (2, True, 1), (said, err)
    status, _, err = fednoil("bench", "--record", "none.csv", *TINY, *BOTH, "--out", "elsewhere")
    assert (status, "--record none.csv: No such file" in err) == (2, True)
    assert not Path("elsewhere").exists()
    Path("wrong.csv").write_text(text.replace(gce["noise"], "0123456789ab"), encoding="utf-8")  # one setting's labels
    said = fednoil("bench", "--record", "wrong.csv", *TINY, *BOTH, "--dry-run")[1]
    assert "3 runs of the record have other settings or labels and don't count" in said
    assert "4 runs, 2 done, 2 to run" in said
    Path("wrong.csv").write_text(text.replace("median+gce", "my_bench:Mine"), encoding="utf-8")
    said = fednoil("bench", "--record", "wrong.csv", *TINY, *BOTH, "--dry-run")[1]
    assert (
        "2 runs of the record have other settings or labels, or own code that --add doesn't name (my_bench:Mine)"
        in said
    )
    Path("wrong.csv").write_text(f"\ufeff{text}", encoding="utf-8")  # as a spreadsheet writes it
    assert fednoil("bench", "--record", "wrong.csv", *TINY, *BOTH, "--out", "again", "--dry-run")[0] == 0


def test_a_run_that_diverged_is_ranked_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    real, calls = Workbench.finish, []

    def finish(bench: Workbench, client: Client, job: Job, state: Tensors, loss: float, *more: Any) -> Any:
        calls.append(job.turn.round_idx)
        wrong = job.turn.round_idx == 2 and bench.learner.config.name == "gce"
        return real(bench, client, job, state, math.nan if wrong else loss, *more)

    monkeypatch.setattr(Workbench, "finish", finish)
    assert fednoil("bench", *ONE, "--set", "train.rounds=3", "--method", "gce")[0] == 1
    text = (tmp_path / "runs/bench/ranking.md").read_text(encoding="utf-8")
    assert "| gce | 2.00 | 10.00 |" in text
    calls.clear()
    status, out, _ = fednoil("bench")
    assert (status, calls) == (0, [])
    assert "2 runs, 2 done, 0 to run" in out


def test_the_page_of_the_ranking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of another folder are found by what they are; the tables are what the record says."""
    folder = EXPERIMENTS / "ranking"
    table = script(folder / "table.py", "ranking_table")
    if rows := table.read():
        for path, name in ((table.PAGE, "ranking"), (table.FRONT, "in short")):
            page = path.read_text(encoding="utf-8")
            assert fill(page, {name: table.parts(rows)[name]}) == page
        listed = dict(line.split()[::-1] for line in (folder / "checksums.txt").read_text().splitlines())
        today = {cell.key: cell.config.hash() for cell in cells_of(Grid(scale="paper"))}
        for row in rows:  # or a newcomer could not be ranked among them
            assert today[row["method"], row["setting"], int(row["seed"])].startswith(row["config"])
            assert listed[f"{row['setting'].replace('/', '-')}-seed{row['seed']}.parquet"].startswith(row["noise"])
    assert fednoil("bench", *ONE, "--out", tmp_path)[0] == 0
    (cell,) = cells_of(saved(tmp_path) or Grid())
    monkeypatch.setattr(table, "cells_of", lambda grid: [cell])
    (row,) = table.rows_of(tmp_path)
    assert (row["setting"], row["method"], row["seed"], row["knows"]) == ("iid/clean", "fedavg", "0", "0")
    text = f"| fedavg | 1.00 | {float(row['last_ten']):.2f} | {float(row['last_ten']):.1f} |"
    assert text in table.parts([row])["ranking"]
