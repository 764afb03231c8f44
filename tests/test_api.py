"""The Python API: what `fednoil.__all__` promises."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same, fednoil
from given_data import TINY, Keys, clients, held_out, refusal
from safetensors.torch import load_file
from stopped_runs import ROUNDS, Stop, lines, results

import fednoil as package
from fednoil.api.table import Table
from fednoil.config import load_config, presets, read_toml
from fednoil.history import RoundRecord
from fednoil.learners.erm import Erm
from fednoil.reporters import Notebook, reporter_for
from fednoil.runner import Silent

pytestmark = pytest.mark.usefixtures("here")


def test_the_promise_is_there_and_nothing_of_it_costs_an_import() -> None:
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    assert Path(package.__file__).with_name("py.typed").is_file()  # else users' type checkers ignore its types
    program = "import sys, fednoil; fednoil.__version__; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        package.walk  # noqa: B018


@pytest.mark.parametrize("form", ["toml", "path", "dict", "dotted", "Config"])
def test_a_run_is_the_commands_to_the_bit(reference: Path, toml: Path, here: Path, form: str) -> None:
    values = read_toml(toml)
    sources: Keys = {"toml": str(toml), "path": toml, "dict": values, "Config": load_config(values)}
    sources["dotted"] = {f"{s}.{k}": v for s, keys in values.items() for k, v in keys.items()}
    run = package.run(sources[form])
    assert list(here.iterdir()) == []
    wanted = [{k: v for k, v in line.items() if k != "wall_s"} for line in lines(reference)]
    played = zip(run.history, wanted, strict=True)
    assert [{k: v for k, v in row.items() if k in line} for row, line in played] == wanted
    known = json.loads((reference / "summary.json").read_text())
    assert {k: v for k, v in run.summary.items() if k != "wall_s"} == {k: v for k, v in known.items() if k != "wall_s"}
    trained = {name.removeprefix("networks.model.module."): t for name, t in run.model.state_dict().items()}
    saved = load_file(reference / "model.safetensors")
    assert_same({name: trained[name] for name in saved}, saved)


def test_a_run_in_a_folder_is_the_commands(reference: Path, toml: Path) -> None:
    run = package.run(toml, out="kept")
    assert results(Path("kept")) == results(reference)
    assert run.path == Path("kept")
    assert fednoil("run", toml, "--out", "kept")[0] == 2
    with pytest.raises(package.UserError, match=re.escape("kept already exists: add resume=True to continue it or ")):
        package.run(toml, out="kept")
    assert package.run(out="kept", resume=True).accuracy == run.accuracy
    assert package.run(toml, out="kept", force=True).accuracy == run.accuracy


def test_a_run_in_memory_can_be_saved(reference: Path, toml: Path) -> None:
    run = package.run(toml)
    again = run.save("saved")
    assert results(Path("saved")) == {
        name: content if name != "checkpoint/checkpoint.json" else results(Path("saved"))[name]
        for name, content in results(reference).items()
    }
    assert (again.accuracy, again.config, again.finished) == (run.accuracy, run.config, True)
    assert again.history["test_accuracy"] == run.history["test_accuracy"]
    assert again.audit().table == run.audit().table
    with pytest.raises(package.UserError, match="saved already has a run; add force=True to replace it"):
        run.save("saved")
    with pytest.raises(package.UserError, match="list is no run and no folder; give them one by one"):
        package.compare([run, again])  # pyright: ignore[reportArgumentType]
    with pytest.raises(package.UserError, match="folds = '5': must be a whole number, 0 or at least 2"):
        run.audit(folds="5")  # pyright: ignore[reportArgumentType]
    assert run.save("saved", force=True).accuracy == run.accuracy
    status, out, err = fednoil("compare", "saved", reference)
    assert (status, err) == (0, "")
    assert "saved" in out
    assert fednoil("audit", "saved")[0] == 0


def test_seed_and_set_change_a_run(toml: Path) -> None:
    run = package.run(toml, seed=3, set={"train": {"rounds": 1}, "schedule.epochs": np.int64(2)}, device="cpu")
    assert (run.config.run.seed, run.config.train.rounds, run.history["local_epochs"]) == (3, 1, [2])
    assert run.config.run.device == "cpu"


def test_a_folder_says_what_the_run_was_made_from(toml: Path) -> None:
    """Also a program's own sections, and what is set when it is resumed."""
    sections = {section: dict(keys) for section, keys in package.run(toml).config.model_dump(mode="json").items()}
    with pytest.raises(package.Interrupted):
        package.run(package.Config(**sections), set={"train.lr": 0.1}, out="made", progress=Stop(3))
    package.run(out="made", resume=True, set={"run.checkpoint_every": 3})
    with pytest.raises(package.UserError, match="made2 is not a run folder; name a preset or file to start one"):
        package.run(out="made2", resume=True)
    noted = json.loads(Path("made/environment.json").read_text())
    assert noted["origin"] == {"set": ["train.lr=0.1"]}
    assert noted["resumed"][0]["set"] == ["run.checkpoint_every=3"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"set": {"train.lr": -1}}, "train.lr = -1: must be greater than 0"),
        ({"set": {"rounds": 1}}, "set: 'rounds' is not a key; write {'section.key': value}"),
        ({"set": {"train.round": 1}}, "unknown key 'train.round'"),
        (
            {"set": {"learner.name": Erm}},
            "give the import path of a class or function, here 'fednoil.learners.erm:Erm'",
        ),
        ({"set": "train.rounds=3"}, "set = 'train.rounds=3' is not a dict; write {'section.key': value}"),
        ({"device": "tpu"}, "run.device = 'tpu': must be 'auto', 'cpu', 'cuda' or 'mps'"),
        ({"seed": -1}, "run.seed = -1"),
        ({"progress": "yes"}, "progress = 'yes': must be True, False, None or a reporter"),
        ({"resume": True}, "resume=True needs the run's folder; give it with out="),
        ({"resume": True, "force": True, "out": "x"}, "resume=True and force=True exclude each other"),
        ({"test": ([], [])}, "test= is for data that are arrays"),
        ({"set": {**TINY, "run.log": "tensorboard"}}, "run.log = 'tensorboard' needs a run with a folder"),
        ({"set": {"data.name": "arrays"}}, "data.name = 'arrays' means data that a program gives: fednoil.run(data="),
    ],
)
def test_what_is_wrong_is_one_line(given: Keys, expected: str) -> None:
    assert expected in refusal("demo", **given)


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(package.UserError, match=r"No space left on device; free some space$"):
        package.run("demo/fedavg", set=TINY, out="made")


def test_an_unknown_source_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown preset 'demmo'" in refusal("demmo")
    assert "3 is no preset, file or dict of sections" in refusal(3)
    assert "cannot read none.toml" in refusal("none.toml")
    monkeypatch.setattr(presets, "_FAMILIES", {})
    assert "is known after `import fednoil.bench.presets`" in refusal("bench/iid-clean/fedavg")
    assert "unknown section 'trian'" in refusal({"trian": {"rounds": 1}})


@pytest.mark.parametrize("out", [None, "cut"])
def test_ctrl_c_leaves_whole_rounds(reference: Path, toml: Path, out: str | None) -> None:
    with pytest.raises(package.Interrupted) as stopped:
        package.run(toml, out=out, progress=Stop(3))
    assert isinstance(stopped.value, KeyboardInterrupt)
    run = stopped.value.run
    assert (len(run.history), run.finished) == (3, False)
    assert run.accuracy == lines(reference)[2]["test_accuracy"]
    assert run.model(torch.zeros(1, 1, 8, 8)).shape == (1, 4)
    assert "3 of 4 rounds" in repr(run)
    assert f"stopped after round 3 of {ROUNDS}" in str(stopped.value)
    hint = "" if out is None else "; continue with fednoil.run(out='cut', resume=True)"
    assert str(stopped.value).endswith(f"of 4{hint}")
    if out is None:
        assert list(Path().iterdir()) == []
        run.save("cut")
    whole = package.run(out="cut", resume=True)
    assert whole.finished
    assert results(Path("cut"))["rounds.jsonl"] == results(reference)["rounds.jsonl"]


def test_other_arrays_are_another_setting() -> None:
    one = package.run("demo/fedavg", data=clients(), test=held_out(), set=TINY)
    same = package.run("demo/fedavg", data=clients(), test=held_out(), set=TINY, seed=1)
    other = package.run("demo/fedavg", data=clients()[::-1], test=held_out(), set=TINY)
    dealt = [*clients()[:2], tuple(np.concatenate(part) for part in zip(*clients()[2:], strict=True))]
    names = [run.config.data.name for run in (one, same, other, package.run("demo", data=dealt, set=TINY))]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert "setting" in package.compare(one, other).table.columns
    assert "setting" not in package.compare(one, same).table.columns


def test_a_real_ctrl_c_is_heard(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pressed(Silent):
        def round(self, record: RoundRecord) -> None:
            if record.round == 2:
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(package.Interrupted) as stopped:
            package.run(toml, progress=Pressed())
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(stopped.value.run.history) == 2
    # Before the first round there is a model already.
    monkeypatch.setattr("fednoil.rounds.play", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(package.Interrupted, match="stopped after round 0 of 4") as stopped:
        package.run(toml)
    assert (stopped.value.run.accuracy, len(stopped.value.run.history)) == (None, 0)
    assert stopped.value.run._repr_html_()


def test_pooled_samples_are_numbered_through() -> None:
    """`centralized` makes one client of all."""
    run = package.run("demo/fedavg", data=clients(), test=held_out(), set={**TINY, "server.name": "centralized"})
    table = run.audit().table
    assert sorted(table["sample"]) == list(range(80))
    assert set(table["client"]) == {0}


def test_ctrl_c_on_given_data_can_be_resumed_without_them() -> None:
    with pytest.raises(package.Interrupted):
        package.run("demo/fedavg", data=clients(), test=held_out(), set=TINY, out="cut", progress=Stop(1))
    again = package.run(out="cut", resume=True)
    whole = package.run("demo/fedavg", data=clients(), test=held_out(), set=TINY)
    assert again.history["train_loss"] == whole.history["train_loss"]
    other = [(x, y[::-1].copy()) for x, y in clients()]
    words = r"data.name is 'arrays:\w{8}' there.*or force=True to start over.* fednoil.run\(out='cut', resume=True\)$"
    with pytest.raises(package.UserError, match=words):
        package.run("demo/fedavg", data=other, test=held_out(), set=TINY, out="cut", resume=True)


def test_a_simulation_of_named_clients_can_be_given_more_rounds() -> None:
    sites = dict(zip("abcd", clients(), strict=True))
    package.run("demo/fedavg", data=sites, set=TINY, out="named")
    assert len(package.run(out="named", resume=True, set={"train.rounds": 3}).history) == 3


def test_the_model_takes_pixels_and_fractions(reference: Path) -> None:
    run = package.load(reference)
    x, _ = held_out()
    pixels = torch.from_numpy(x)[:, None]
    assert not run.model.training
    assert torch.allclose(run.model(pixels), run.model(pixels / 255), atol=1e-4)
    scores = np.mean(run.predict(x) == held_out()[1]) * 100
    assert scores == pytest.approx(run.accuracy)
    assert run.probabilities(x).sum(1) == pytest.approx(np.ones(len(x)), abs=1e-5)
    sent = torch.nn.Sequential(run.model, torch.nn.Softmax(1))(pixels)
    assert np.allclose(sent.detach().numpy(), run.probabilities(x), atol=1e-6)


@pytest.mark.parametrize("learner", ["dividemix", "coteaching"])
def test_a_model_of_two_networks_answers_as_its_method_does(learner: str) -> None:
    keys = {**TINY, "learner.name": learner}
    run = package.run("demo/fedavg", data=clients(), test=held_out(), set=keys)
    x, y = held_out()
    assert np.mean(run.predict(x) == y) * 100 == pytest.approx(run.accuracy)


def test_a_comparison_is_the_commands(reference: Path, toml: Path) -> None:
    run = package.run(toml, seed=1)
    found = package.compare(reference, run)
    assert [row["run"] for row in found.table] == ["reference", "tiny"]
    assert found.table["final_accuracy"] == [package.load(reference).accuracy, run.accuracy]
    assert found.to_markdown().startswith("Test accuracy in percent, npz:")
    assert "differs in" not in found.table.columns
    assert found.to_markdown().count("\n| ") == 4
    axes = found.plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["reference", "tiny"]
    assert list(axes.lines[1].get_ydata()) == run.history["test_accuracy"]
    assert package.compare(run, run, names=("a", "b")).table["run"] == ["a", "b"]
    assert package.compare(run, run).table["run"] == ["tiny (1)", "tiny (2)"]
    assert package.compare(run, package.run(toml)).table["run"] == ["tiny, seed 1", "tiny, seed 0"]
    status, out, _ = fednoil("compare", reference, "--json")
    assert status == 0
    assert json.loads(out) == package.compare(reference).rows
    with pytest.raises(package.UserError, match="compare: 1 names for 2 runs"):
        package.compare(run, run, names=("a",))
    with pytest.raises(package.UserError, match="at least one run"):
        package.compare()


def test_without_matplotlib_plot_says_what_to_install(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(package.UserError, match="matplotlib"):
        package.compare(reference).plot()


def test_tables() -> None:
    table = Table.of([{"a": 1, "b": [1, 2]}, {"a": 2.5, "c": "x|y"}, {"a": None, "d": {"k": 1}}])
    assert (len(table), table.columns) == (3, ["a", "b", "c", "d"])
    assert table["a"] == [1.0, 2.5, None]
    assert table[1] == {"a": 2.5, "b": None, "c": "x|y", "d": None}
    assert table[-1]["d"] == {"k": 1}
    assert next(iter(table))["b"] == [1, 2]
    assert table[1:]["c"] == ["x|y", None]
    assert table.to_arrow().num_rows == 3
    assert list(table.to_pandas()["a"].dropna()) == [1.0, 2.5]
    assert "x\\|y" in table.to_markdown()
    assert repr(table).splitlines()[0].split() == ["a", "b", "c", "d"]
    with pytest.raises(KeyError, match="the columns are a, b, c, d"):
        table["e"]
    mixed = Table.of([{"m": 1}, {"m": "one"}])
    assert mixed["m"] == ["1", '"one"']
    long = Table.of([{"n": n, "text": "<b>"} for n in range(100)])
    assert "100 rows" in repr(long)
    assert len(repr(long).splitlines()) == 13
    assert "&lt;b&gt;" in long._repr_html_()
    wide = Table.of([{f"column {n}": "x" * 30 for n in range(9)}])
    assert "5 more columns: column 4" in repr(wide)
    assert repr(Table.of([{f"column {n}": "x" * 30 for n in range(5)}])).endswith("1 row, 1 more column: column 4")
    assert "–" in repr(Table.of([{"a": None}, {"a": True}]))


def test_without_pandas_the_table_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(package.UserError, match="pip install pandas"):
        Table.of([{"a": 1}]).to_pandas()


def test_presets_are_listed() -> None:
    assert package.presets()[:3] == ["demo", "demo/fednoil", "demo/fedavg"]
    assert package.presets("demo/*avg") == ["demo/fedavg"]


def test_notebooks_show_runs(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, value: Any) -> None:
            shown.append(value._repr_html_())

    class Display:
        @staticmethod
        def display(value: Any, display_id: bool) -> Handle:
            return Handle()

    monkeypatch.setitem(sys.modules, "IPython", Display())  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "IPython.display", Display())  # pyright: ignore[reportArgumentType]
    run = package.run(toml, progress=Notebook())
    assert "round 4/4" in "".join(shown)
    assert "final accuracy" in shown[-1]
    assert "<table>" in run._repr_html_()
    assert "<table>" in run.audit()._repr_html_()
    assert "<table>" in package.compare(run)._repr_html_()


def test_progress_is_shown_where_somebody_watches(toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package.run(toml)
    package.run(toml, progress=False)
    assert capsys.readouterr() == ("", "")
    package.run(toml, progress=True)
    assert "round 4/4" in capsys.readouterr().out
    assert type(reporter_for(False)) is Silent


def half_frozen(image_shape: tuple[int, int, int], num_classes: int) -> torch.nn.Module:
    first, last = torch.nn.Linear(64, 16), torch.nn.Linear(16, num_classes)
    first.requires_grad_(False)
    return torch.nn.Sequential(torch.nn.Flatten(), first, torch.nn.ReLU(), last)


def test_a_model_in_memory_has_its_frozen_parameters(toml: Path) -> None:
    changes = {"model": {"name": f"{__name__}:half_frozen"}}
    one, two = package.run(toml, set=changes), package.run(toml, set=changes, out="kept")
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    assert np.array_equal(one.probabilities(images), two.probabilities(images))


def test_a_model_in_memory_is_on_the_cpu(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where networks were trained on Apple's GPU, for which another device stands here."""
    run = package.run(values, progress=False)
    monkeypatch.setattr("fednoil.experiment.networks_on", lambda *_: torch.device("meta"))
    assert {p.device.type for p in run.model.parameters()} == {"cpu"}
