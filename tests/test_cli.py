"""The command line: what its commands print, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import conftest
import pytest
from conftest import fednoil
from made_runs import made_run
from rich.console import Console

from fednoil import __version__, runner
from fednoil.cli.tables import show
from fednoil.config import load_config
from fednoil.config.axes import AXES
from fednoil.config.protocols import PROTOCOLS
from fednoil.reporters import Bars
from fednoil.study import preset_names

COMMANDS = ["run", "presets", "methods", "data", "compare", "predict", "version"]
TINY = {
    "partition.clients": 4,
    "model.width": 2,
    "schedule.epochs": 1,
    "train.rounds": 3,
    "train.batch_size": 8,
    "run.device": "cpu",
}


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(*args: object) -> str:
    """The one line of a command that must fail with status 2 and leave the current folder as it was."""
    before = tree(Path())
    err = conftest.refused(*args)
    assert tree(Path()) == before
    return err


def sets(**more: object) -> list[str]:
    """A preset and `--set` for the tiny experiment; `section__key=value` changes it."""
    values = {**TINY, **{key.replace("__", "."): value for key, value in more.items()}}
    return ["demo/fedavg", *(part for key, value in values.items() for part in ("--set", f"{key}={value}"))]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder: the default place of results is below it, and so is a user's own code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def finished(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert fednoil("run", *sets(data__name=f"npz:{tiny_npz}"), "--out", out, "-q") == (0, "", "")
    return out


def test_no_command_shows_the_help() -> None:
    status, out, err = fednoil()
    assert (status, err) == (2, "")
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("group", [[], ["federation"]])
def test_the_list_of_commands_says_in_a_whole_sentence_what_each_does(group: list[str]) -> None:
    listed = fednoil(*group, "--help")[1].partition("Commands:\n")[2].splitlines()
    assert len(listed) > 10
    assert all(re.fullmatch(r"  \w+ +[A-Z].*[^.]\.", line) for line in listed), listed


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, flag: str) -> None:
    status, out, err = fednoil(command, flag)
    assert (status, err) == (0, "")
    assert out.startswith("Usage: ")
    assert f" {command} [OPTIONS]" in out


def test_help_explains_arguments_and_defaults() -> None:
    """Typer and click have lost one or the other between two of their versions."""
    assert re.search(r"RUN\.\.\. +Run folders, folders of run folders", fednoil("report", "--help")[1])
    text = fednoil("reproduce", "--help")[1]
    assert re.search(r"GOAL +table1, table2", text)
    assert "[default: paper]" in text
    assert "\\[" not in text


def test_help_of_run_names_every_option() -> None:
    out = fednoil("run", "--help")[1]
    options = "--set --data-dir --out --seed --device --resume --force --quiet --json"
    assert all(option in out for option in options.split())


def test_presets() -> None:
    status, out, _ = fednoil("presets")
    names = preset_names()  # with the families that the command registers
    assert status == 0
    assert len(out.splitlines()) < 22
    shown = set(out.replace(",", " ").split())
    assert shown >= {part for name in names for part in name.split("/") if not name.startswith("demo")} - {
        "paper",
        "small",
        "bench",
        *PROTOCOLS,
    }
    assert shown >= {name for name in names if name.startswith("demo")}
    assert f"{len([n for n in names if n.startswith('paper/')])} in all" in out
    assert fednoil("presets", "*") == (0, "\n".join(names) + "\n", "")
    status, out, _ = fednoil("presets", "--json")
    listed = json.loads(out)
    assert (status, list(listed)) == (0, names)
    for values in listed.values():
        load_config(values)
    cells = [f"paper/{d}/iid/pair-high/fedprox" for d in ("fashion-mnist", "cifar10", "cifar100")]
    assert set(names) >= {"demo", *cells}
    assert fednoil("presets", "cifar10/iid/clean/feda")[1] == "paper/cifar10/iid/clean/fedavg\n"
    _, out, _ = fednoil("presets", "cifar10/*/pair-low/krum")
    settings = ("iid", "non-iid", "100-clients", "imbalanced")
    methods = ("dividemix", "josrc")
    assert out.split() == [f"paper/cifar10/{s}/pair-low/krum+{m}" for s in settings for m in methods]
    assert "no preset's name contains 'krun'" in refused("presets", "krun")


def test_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.loads(fednoil("methods", "--json")[1])
    axes = [axis for axes in AXES.values() for axis in axes]
    assert {(row["key"], row["name"]) for row in rows} == {(axis.path, name) for axis in axes for name in axis.table}
    assert all(row["title"] for row in rows)
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = fednoil("methods")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert all(line == line.rstrip() for line in out.splitlines())
    words = " ".join(out.split())
    for row in rows:
        assert f" {row['name']} {row['title']}" in words
        assert "paper" not in row or f"{row['paper']}; keeps {row['keeps']}; sends {row['sends']}; cost" in words


def test_data(tmp_path: Path) -> None:
    status, out, err = fednoil("data", "--json", "--data-dir", tmp_path)
    rows = {row["name"]: row for row in json.loads(out)}
    assert (status, err) == (0, "")
    own = {"folder:PATH", "csv:FILE", "npz:FILE", "parquet:PATH", "hf:PATH", "webdataset:PATH"}
    own |= {"table:FILE", "features:FILE"}
    assert set(rows) == {"fashion-mnist-mini", "fashion-mnist", "cifar10", "cifar100", "clothing1m"} | own
    assert rows["fashion-mnist-mini"]["found"] is True
    assert rows["cifar10"]["found"] is False
    assert all(row["how"] for row in rows.values())
    status, out, err = fednoil("data", "--data-dir", tmp_path)
    assert (status, err) == (0, "")
    assert all(name in out for name in rows)


def test_compare(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    (row,) = json.loads(fednoil("compare", "--json", finished)[1])
    assert row["run"] == str(finished)
    assert (row["method"], row["rounds"], row["finished"]) == ("fedavg", 3, True)
    for key in ("final_accuracy", "best_accuracy", "last10_accuracy", "converged", "train_batches", "wall_s"):
        assert row[key] == summary[key]
    status, out, err = fednoil("compare", finished, finished)
    assert (status, err) == (0, "")
    assert out.count(f"{summary['final_accuracy']:.2f}") >= 2


def test_compare_distinguishes_runs_with_one_name() -> None:
    """`learner.xi` among the runs of its method, `train.lr` among all of the setting; the seed has a column."""
    made_run(Path("a"), "fednoil-logarithm")
    made_run(Path("b"), "fednoil-logarithm", changes={"learner": {"xi": 0.5}})
    other = {"learner": {"xi": 0.5}, "run": {"checkpoint_every": 1, "log": ["tensorboard"]}}  # changes no result
    made_run(Path("c"), "fednoil-logarithm", seed=1, changes=other)
    made_run(Path("d"), "fedavg", changes={"train": {"lr": 0.5}})
    rows = json.loads(fednoil("compare", "--json", "a", "b", "c", "d")[1])
    default = f"train.lr={load_config({}).train.lr}"
    assert [row["keys"] for row in rows] == [
        ["learner.xi=0.95", default],
        ["learner.xi=0.5", default],
        ["learner.xi=0.5", default],
        ["train.lr=0.5"],
    ]
    out = fednoil("compare", "a", "b")[1]
    assert [line.split()[2] for line in out.splitlines()[-2:]] == ["(logarithm)"] * 2
    assert [line.split()[3] for line in out.splitlines()[-2:]] == ["learner.xi=0.95", "learner.xi=0.5"]
    assert "differs in" not in fednoil("compare", "b", "c")[1]


def test_short_names_leave_long_texts_room(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The text below a short name was folded to the name's width, and the last column was cut."""
    monkeypatch.setenv("COLUMNS", "80")
    numbers = {f"number{n}": 10.25 + n for n in range(7)}
    row = {"run": "a", "method": "fedavg+fednoil-plus (network)", **numbers}
    show([row], {key: key for key in row}, "A title that is longer than the table below it", False)
    title, head, _, cells, text = capsys.readouterr().out.splitlines()
    assert title == "A title that is longer than the table below it"
    assert head.split() == ["run", *numbers]
    assert cells.split() == ["a", *(f"{number:.2f}" for number in numbers.values())]
    assert text.strip() == "method: fedavg+fednoil-plus (network)"


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120, 200])
def test_compare_cuts_no_number_and_leaves_no_text_out(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Long names of runs left no room for others: 30 rounds were shown as 3, and methods not at all."""
    names = [f"iid--symmetric-high--fednoil-logarithm--{n}--a-longer-name" for n in "ab"]
    made_run(Path(names[0]), "fednoil-logarithm", changes={"learner": {"xi": 0.5}})
    where, longer = ("paper", "fashion-mnist", "non-iid", "symmetric-high"), {"learner": {"xi": 0.9512345}}
    made_run(Path(names[1]), "fednoil-logarithm", seed=1, where=where, changes=longer)
    rows = json.loads(fednoil("compare", "--json", *names)[1])
    monkeypatch.setenv("COLUMNS", str(columns))
    out = fednoil("compare", *names)[1]
    for row in rows:
        numbers = [f"{row['final_accuracy']:.2f}", f"{row['best_accuracy']:.2f}", str(row["train_batches"])]
        assert any(set(numbers) <= set(line.split()) for line in out.splitlines()), out
    for text in ("(logarithm)", "symmetric-0.5..0.8", "learner.xi=0.5"):
        assert text in out
    assert max(map(len, out.splitlines())) <= max(columns, 80)


def test_compare_needs_no_code_of_the_users_own() -> None:
    """Runs from elsewhere: their code is not imported. A key that only one run has is shown for it."""
    for name, more in (("a", ""), ("b", "strength = 2")):
        config = made_run(Path(name), "fedavg") / "config.toml"
        text = config.read_text().replace('name = "erm"', f'name = "elsewhere:Mine"\n{more}')
        config.write_text(text.replace('name = "cnn"', 'name = "elsewhere:Net"'))
    rows = json.loads(fednoil("compare", "--json", "a", "b")[1])
    assert [row["keys"] for row in rows] == [[], ["learner.strength=2"]]
    config.write_text("[learner]\ndrawn = 1\n")
    assert "fednoil: b: unknown key 'learner.drawn'" in refused("compare", "a", "b")


def test_compare_of_an_unfinished_run_and_of_damaged_ones(finished: Path) -> None:
    copy = Path("[b]copy")
    copy.mkdir()
    for name in ("config.toml", "rounds.jsonl"):
        (copy / name).write_bytes((finished / name).read_bytes())
    (row,) = json.loads(fednoil("compare", "--json", copy)[1])
    assert (row["finished"], row["rounds"]) == (False, 3)
    assert "[b]copy" in fednoil("compare", copy)[1]
    (copy / "rounds.jsonl").write_text('{"round": 1}\n')
    assert "rounds.jsonl, line 1 is damaged: it has no local_epochs" in refused("compare", copy)
    (copy / "rounds.jsonl").write_text("")
    assert "no finished round" in refused("compare", copy)
    for content in ("{", "[]", "{}"):
        (copy / "summary.json").write_text(content)
        assert "summary.json" in refused("compare", finished, copy)


def test_version() -> None:
    assert fednoil("version") == fednoil("--version") == (0, f"{__version__}\n", "")


def test_json_is_one_object_a_round_and_quiet_is_quiet(tiny_npz: Path) -> None:
    args = ["run", *sets(data__name=f"npz:{tiny_npz}")]
    status, out, err = fednoil(*args, "--json", "--out", "r")
    assert (status, err) == (0, "")
    assert out == Path("r/rounds.jsonl").read_text()
    assert [json.loads(line)["round"] for line in out.splitlines()] == [1, 2, 3]
    assert fednoil(*args, "--quiet", "--out", "q") == (0, "", "")
    assert fednoil(*args, "--json", "--resume", "--out", "r") == (0, "", "")


def test_a_run_says_that_it_has_no_noise_and_that_it_is_done(tiny_npz: Path) -> None:
    args = ["run", *sets(data__name=f"npz:{tiny_npz}", noise__kind="none"), "--out", "r"]
    head = fednoil(*args)[1].splitlines()[0]
    assert ", no noise, " in head
    assert fednoil(*args, "--resume")[1].splitlines()[:2] == [head, "3 of 3 rounds done already"]


def test_plain_lines_elsewhere_than_on_a_terminal(tiny_npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")  # a log is not folded, however narrow it is shown
    args = sets(data__name=f"npz:{tiny_npz}", train__rounds=2)
    status, out, err = fednoil("run", *args)
    assert (status, err) == (0, "")
    head, *rounds, end, lost, _unsure = out.splitlines()
    assert head.startswith("fedavg × erm on")
    assert [line.split("  ")[0] for line in rounds] == ["round 1/2", "round 2/2"]
    assert all("accuracy" in line and "  1 epoch  " in line and line.endswith(" s") for line in rounds)
    assert end.endswith("results in runs/demo-fedavg")
    assert lost.startswith("no test sample of ")
    assert "\x1b" not in out


def test_a_pipe_gets_lines_even_where_colours_are_asked_for(tiny_npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for command in (["run", *sets(data__name=f"npz:{tiny_npz}"), "--out", "r"], ["compare", "r"], ["report", "r"]):
        status, out, err = fednoil(*command)
        assert (status, err, "\x1b" in out) == (0, "", False)
        assert out


def test_a_bad_key_is_reported_before_a_folder_that_exists(tiny_npz: Path) -> None:
    options = sets(data__name=f"npz:{tiny_npz}")
    fednoil("run", *options, "--out", "r", "-q")
    assert "unknown key 'train.roundz'" in refused("run", *options, "--out", "r", "--set", "train.roundz=1")
    assert "r already exists" in refused("run", *options, "--out", "r")


def test_what_is_not_there_is_reported_before_a_folder_that_exists(
    tiny_npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another --out it would not be there either."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    options = sets(data__name=f"npz:{tiny_npz}")
    fednoil("run", *options, "--out", "r", "-q")
    assert "gone.npz is not a file" in refused("run", *sets(data__name="npz:gone.npz"), "--out", "r")
    site = ("--site", "nord=folder:gone", "--out", "r")
    assert "site 'nord': folder:gone" in refused("run", *site)
    assert "and --site both say where the data are; leave one of them out" in refused("run", *options, *site)
    assert "sees no CUDA GPU here" in refused("run", *options, "--device", "cuda", "--out", "r")
    fednoil("audit", "r", "--out", "a")
    model = ("--model", "r/model.safetensors")
    assert "--client 9: r has the clients 0 to 3" in refused("audit", "r", "--client", "9", "--out", "a")
    assert "--select best: the run held out no labels" in refused("audit", "r", "--select", "best", "--out", "a")
    assert "gone.npz is not a file" in refused("audit", "--data", "npz:gone.npz", *model, "--out", "a")
    words = ("audit", "--data", f"npz:{tiny_npz}")
    assert "gone.safetensors is not a file" in refused(*words, "--model", "gone.safetensors", "--out", "a")
    assert "a holds an audit already" in refused("audit", "r", "--out", "a")


def test_bars_on_a_terminal(tiny_npz: Path) -> None:
    screen = io.StringIO()
    bars = Bars(Console(file=screen, force_terminal=True, width=150))
    values = {"data": {"name": f"npz:{tiny_npz}"}, "run": {"device": "cpu"}}
    values |= {"partition": {"clients": 4}, "model": {"width": 2}, "schedule": {"epochs": 1}, "train": {"rounds": 2}}
    summary = runner.run(load_config(values), Path("r"), bars)
    assert "rounds" in screen.getvalue()
    assert "clients' work" in screen.getvalue()
    assert f"final accuracy {summary['final_accuracy']:.2f} %" in screen.getvalue()


def process(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fednoil", *args]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **options)


def test_a_real_process_ends_the_same_way() -> None:
    done = process("run", "--set", "train.lr=-1", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fednoil: train.lr = -1: must be greater than 0\n"
    assert tree(Path()) == {}


def test_a_reader_that_leaves_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = process("presets", stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_terminal_without_unicode_is_no_error(tiny_npz: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    args = sets(data__name=f"npz:{tiny_npz}", train__rounds=1)
    done = process("run", *args, stdout=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fedavg \\xd7 erm on")


def test_what_makes_a_run_slower_is_reported_in_one_line(tmp_path: Path) -> None:
    """Other warnings keep the place in the code that gave them."""
    (tmp_path / "own.py").write_text(
        "import warnings\nfrom torch import nn\nfrom fednoil.errors import Slower\n\n\n"
        "def model(image_shape, num_classes):\n"
        "    warnings.warn('it goes\\nslowly', Slower)\n    warnings.warn('something else')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))\n"
    )
    values = {**TINY, "model.name": "own:model", "train.rounds": 1}
    del values["model.width"]
    given = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "fednoil", "run", "demo/fedavg", "--quiet", "--out", "run", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.splitlines()[0] == "fednoil: it goes slowly"
    assert re.search(r"own\.py:8: UserWarning: something else", done.stderr)
