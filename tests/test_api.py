"""The Python API: what `fednoil.__all__` promises."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same, fednoil, tiny_arrays
from safetensors.torch import load_file
from stopped_runs import ROUNDS, Stop, lines, results
from torch.utils.data import Dataset, TensorDataset

import fednoil as package
from fednoil.api.table import Table
from fednoil.config import load_config, read_toml
from fednoil.history import RoundRecord
from fednoil.reporters import Notebook, reporter_for
from fednoil.runner import Silent

Keys = dict[str, Any]
TINY: Keys = {
    "model.width": 2,
    "schedule.name": "constant",
    "schedule.epochs": 1,
    "train.rounds": 2,
    "train.batch_size": 8,
    "run.device": "cpu",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def clients(count: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    arrays = tiny_arrays()
    return list(zip(np.split(arrays["x_train"], count), np.split(arrays["y_train"], count), strict=True))


def test_pair() -> tuple[np.ndarray, np.ndarray]:
    arrays = tiny_arrays()
    return arrays["x_test"], arrays["y_test"]


test_pair.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


def refusal(*args: Any, **given: Any) -> str:
    """The one line with which a run is refused."""
    with pytest.raises(package.UserError) as refused:
        package.run(*args, **{"set": TINY, **given})
    assert "\n" not in str(refused.value)
    assert list(Path().iterdir()) == []
    return str(refused.value)


def test_the_promise_is_there_and_nothing_of_it_costs_an_import() -> None:
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
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
    with pytest.raises(package.UserError, match="saved already exists"):
        run.save("saved")
    assert run.save("saved", force=True).accuracy == run.accuracy
    status, out, err = fednoil("compare", "saved", reference)
    assert (status, err) == (0, "")
    assert "saved" in out
    assert fednoil("audit", "saved")[0] == 0


def test_seed_and_set_change_a_run(toml: Path) -> None:
    run = package.run(toml, seed=3, set={"train": {"rounds": 1}, "schedule.epochs": np.int64(2)}, device="cpu")
    assert (run.config.run.seed, run.config.train.rounds, run.history["local_epochs"]) == (3, 1, [2])
    assert run.config.run.device == "cpu"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"set": {"train.lr": -1}}, "train.lr = -1: must be greater than 0"),
        ({"set": {"rounds": 1}}, "set: 'rounds' is not a key; write {'section.key': value}"),
        ({"set": {"train.round": 1}}, "unknown key 'train.round'"),
        ({"device": "tpu"}, "run.device = 'tpu': must be 'auto', 'cpu' or 'cuda'"),
        ({"seed": -1}, "run.seed = -1"),
        ({"resume": True}, "resume=True needs the run's folder; give it with out="),
        ({"resume": True, "force": True, "out": "x"}, "resume=True and force=True exclude each other"),
        ({"test": ([], [])}, "test= needs data="),
        ({"set": {**TINY, "run.tensorboard": True}}, "run.tensorboard = true writes files"),
        ({"set": {"data.name": "arrays"}}, "data.name = 'arrays' means data that a program gives: fednoil.run(data="),
    ],
)
def test_what_is_wrong_is_one_line(given: Keys, expected: str) -> None:
    assert expected in refusal("demo", **given)


def test_an_unknown_source_is_one_line() -> None:
    assert "unknown preset 'demmo'" in refusal("demmo")
    assert "cannot read none.toml" in refusal("none.toml")
    assert "unknown section 'trian'" in refusal({"trian": {"rounds": 1}})


LAYOUTS = {
    "hw": lambda x: x,
    "hwc": lambda x: x[..., None],
    "chw": lambda x: x[:, None],
    "int": lambda x: x.astype(np.int64),
    "fractions": lambda x: x / 255,
    "tensor": lambda x: torch.from_numpy(x)[:, None],
    "tensor of fractions": lambda x: (torch.from_numpy(x)[:, None] / 255).to(torch.float32),
    "list": lambda x: list(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_layout_are_the_same_data(layout: str, here: Path) -> None:
    change = LAYOUTS[layout]
    data = [(change(x), y) for x, y in clients()]
    x, y = test_pair()
    run = package.run("demo/fedavg", data=data, test=(change(x), list(y)), set=TINY)
    plain = package.run("demo/fedavg", data=clients(), test=test_pair(), set=TINY)
    assert run.history["test_accuracy"] == plain.history["test_accuracy"]
    assert run.history["train_loss"] == plain.history["train_loss"]
    assert np.array_equal(run.predict(change(x)), plain.predict(x))
    assert list(here.iterdir()) == []


def test_colour_has_three_channels() -> None:
    data = [(np.repeat(x[..., None], 3, -1), y) for x, y in clients()]
    run = package.run("demo/fedavg", data=data, set=TINY)
    assert run.predict(data[0][0].transpose(0, 3, 1, 2)).shape == (20,)
    with pytest.raises(package.UserError, match=r"images are 8×8×1 .width×height×channels., the model takes 8×8×3"):
        run.predict(test_pair()[0])


class Pictures(Dataset[Any]):
    """Samples as torchvision gives them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.images[place])[None] / 255, int(self.labels[place])


def test_torch_datasets_are_data_too() -> None:
    plain = package.run("demo/fedavg", data=clients(), test=test_pair(), set=TINY)
    first, second, *rest = clients()
    tensors = TensorDataset(torch.from_numpy(first[0]), torch.from_numpy(first[1]))
    run = package.run("demo/fedavg", data=[tensors, Pictures(*second), *rest], test=Pictures(*test_pair()), set=TINY)
    assert run.history["test_accuracy"] == plain.history["test_accuracy"]


def test_texts_are_labels_and_come_back() -> None:
    words = np.array(["cat", "dog", "bird", "ant"])
    data = {f"site {k}": (x, words[y]) for k, (x, y) in enumerate(clients())}
    x, y = test_pair()
    run = package.run("demo/fedavg", data=data, test=(x, words[y].tolist()), set=TINY)
    assert run.class_names == ("ant", "bird", "cat", "dog")
    assert set(run.predict(x)) <= set(words)
    assert np.mean(run.predict(x) == words[y]) * 100 == pytest.approx(run.accuracy)
    again = run.save("kept")
    assert np.array_equal(again.predict(x), run.predict(x))
    ordered = package.run("demo/fedavg", data=data, class_names=list(words), set=TINY)
    assert ordered.class_names == tuple(words)
    table = run.audit().table
    assert set(table["given"]) == set(words)
    assert set(table["client"]) == set(data)


def test_an_audit_names_sites_and_places_in_their_arrays() -> None:
    data = {"nord": clients(2)[0], "süd": clients(2)[1]}
    run = package.run("demo", data=data, set={**TINY, "learner.frac": 0.5})
    audit = run.audit()
    assert list(audit.noise_ratios) == ["nord", "süd"]
    for name, (_, labels) in data.items():
        rows = [row for row in audit.table if row["client"] == name]
        assert sorted(row["sample"] for row in rows) == list(range(40))
        assert all(int(row["given"]) == labels[row["sample"]] for row in rows)
    assert set(run.audit("süd").table["client"]) == {"süd"}
    with pytest.raises(package.UserError, match="client = 'west': the clients are nord, süd"):
        run.audit("west")
    with pytest.raises(package.UserError, match="method = 'guess' is unknown; choose channel or cleanlab"):
        run.audit(method="guess")
    assert all(row["p_wrong"] > 0.5 for row in audit.flagged)
    assert len(audit.flagged) == sum(audit.table["flagged"])
    assert audit.save("audit").is_file()
    run.save("kept")
    assert fednoil("audit", "kept")[0] == 0
    assert package.load("kept").audit().table == audit.table


def test_true_labels_are_for_metrics_alone() -> None:
    data = [(x, np.where(np.arange(20) < 5, (y + 1) % 4, y)) for x, y in clients()]
    plain = package.run("demo/fedavg", data=data, test=test_pair(), set=TINY)
    known = package.run("demo/fedavg", data=data, test=test_pair(), set=TINY, true_labels=[y for _, y in clients()])
    assert "selected_noise" not in plain.history.columns
    assert known.history["selected_noise"] == [25.0, 25.0]
    assert known.history["train_loss"] == plain.history["train_loss"]
    assert known.audit().summary["overall"]["ratio_error"]["mean"] >= 0
    assert known.save("kept").audit().summary == known.audit().summary


def test_noise_is_added_to_arrays_only_if_asked_for() -> None:
    noise = {"noise.kind": "symmetric", "noise.ratios": [0.5]}
    run = package.run("demo/fedavg", data=clients(), test=test_pair(), set={**TINY, **noise})
    assert run.history["selected_noise"][0] > 30
    own = package.run({**TINY, **noise}, data=clients(), test=test_pair())
    assert own.history["selected_noise"][0] > 30
    assert package.run("demo", data=clients(), set=TINY).config.noise.kind == "unknown"


def test_one_pair_is_dealt() -> None:
    arrays = tiny_arrays()
    pair = arrays["x_train"], arrays["y_train"]
    run = package.run("demo/fedavg", data=pair, test=test_pair(), set={**TINY, "partition.clients": 5})
    assert len(run.audit().noise_ratios) == 5


def test_without_test_images_accuracy_is_not_known() -> None:
    run = package.run("demo/fedavg", data=clients(), set={**TINY, "data.validation": 0.2})
    assert run.accuracy is None
    assert "accuracy not known" in repr(run)
    assert run.history["test_accuracy"] == [None, None]
    assert all(0 <= value <= 100 for value in run.history["val_accuracy"])
    assert run.save("kept").accuracy is None
    assert len(run.audit().table) == 64
    shown = package.compare(run, "kept").plot(y="val_accuracy")
    assert len(shown.lines) == 2
    with pytest.raises(package.UserError, match="plot: no run has both 'round' and 'test_accuracy'"):
        package.compare(run).plot()


X, Y = clients()[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"data": 3}, "data is a int; give a list of (images, labels)"),
        ({"data": []}, "data has no clients"),
        ({"data": [X]}, "data[0] is a ndarray; give a pair (images, labels) or a torch Dataset"),
        ({"data": [(X, Y, Y)]}, "data[0] is a tuple of 3; give a pair (images, labels)"),
        ({"data": [(X[0], Y)]}, "data[0]: images have the shape [8, 8]; they must be [N, H, W]"),
        ({"data": [(np.repeat(X[..., None], 4, -1), Y)]}, "[20, 8, 8, 4]; they must be"),
        ({"data": [(X[:0], Y[:0])]}, "data[0]: images: there are none (shape [0, 1, 8, 8])"),
        ({"data": [(X / 16, Y)]}, "data[0]: images are fractions from 0 to"),
        ({"data": [(X / np.nan, Y)]}, "fractions from nan to nan; they must be in 0..1"),
        ({"data": [(X.astype(int) - 9, Y)]}, "data[0]: images are whole numbers from -9 to"),
        ({"data": [(X.astype(str), Y)]}, "give arrays of numbers"),
        ({"data": [([X[0], X[1][:4]], Y[:2])]}, "data[0]: images differ in shape; all must have the same"),
        ({"data": [(X, Y[:3])]}, "data[0] has 20 images and 3 labels; the numbers must agree"),
        ({"data": [(X, Y / 2)]}, "data[0]: labels are float64 of the shape [20]; give one whole number or string per"),
        ({"data": [(X, np.eye(4)[Y])]}, "labels are float64 of the shape [20, 4]"),
        ({"data": [(X, Y + 1)]}, "data: the labels are 1, 2, 3, 4; number classes 0, 1, 2 … without a gap"),
        ({"data": [(X, Y * 0)]}, "there is only one class"),
        ({"data": [(X, Y), (X, Y.astype(str))]}, "data[1]: labels are texts, others numbers"),
        ({"data": [(X, Y)], "test": (X, Y + 1)}, "test label 4 (number 3) is out of range; use 0..3"),
        (
            {"data": [(X, Y.astype(str))], "test": (X, (Y + 1).astype(str))},
            "test: labels: '4' is not one of the classes",
        ),
        ({"data": [(X, Y)], "test": (X[:, 1:], Y)}, "test: images are 8×7×1 (width×height×channels), those of data[0]"),
        ({"data": [(X, Y)], "class_names": ["a", "a", "b", "c"]}, "class name 'a' stands for two classes"),
        ({"data": [(X, Y)], "class_names": ["a", "b"]}, "label 2 (number 2) is out of range; use 0..1"),
        ({"data": {"": (X, Y)}}, "data: '' is not a name for a client"),
        (
            {"data": {1: (X, Y), "1": (X, Y)}},
            "data: '1' is not a name for a client; each needs a different, readable name",
        ),
        (
            {"data": [(X, Y)], "true_labels": [Y, Y]},
            "true_labels must have the form of data: labels for each of its 1 clients",
        ),
        ({"data": [(X, Y)], "true_labels": [Y[:2]]}, "true_labels[0]: 2 labels for 20 samples; give one each"),
        (
            {"data": [(X, Y)], "true_labels": [Y], "set": {**TINY, "noise.kind": "symmetric"}},
            "true_labels= and noise exclude each other",
        ),
        ({"data": [(X, Y)], "set": {**TINY, "partition.kind": "iid"}}, "partition: data= already has clients"),
        ({"data": [Pictures(X, Y)], "test": 3}, "test is a int; give a pair (images, labels) or a torch Dataset"),
        ({"data": [TensorDataset(torch.from_numpy(X))]}, "data[0]: sample 0 is a tuple of 1; a Dataset must give"),
    ],
)
def test_data_that_do_not_fit_are_one_line(given: Keys, expected: str) -> None:
    assert expected in refusal("demo/fedavg", **given)


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
    one = package.run("demo/fedavg", data=clients(), test=test_pair(), set=TINY)
    same = package.run("demo/fedavg", data=clients(), test=test_pair(), set=TINY, seed=1)
    other = package.run("demo/fedavg", data=clients()[::-1], test=test_pair(), set=TINY)
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
    run = package.run("demo/fedavg", data=clients(), test=test_pair(), set={**TINY, "server.name": "centralized"})
    table = run.audit().table
    assert sorted(table["sample"]) == list(range(80))
    assert set(table["client"]) == {0}


def test_ctrl_c_on_given_data_can_be_resumed_without_them() -> None:
    with pytest.raises(package.Interrupted):
        package.run("demo/fedavg", data=clients(), test=test_pair(), set=TINY, out="cut", progress=Stop(1))
    again = package.run(out="cut", resume=True)
    whole = package.run("demo/fedavg", data=clients(), test=test_pair(), set=TINY)
    assert again.history["train_loss"] == whole.history["train_loss"]
    other = [(x, y[::-1].copy()) for x, y in clients()]
    words = r"data.name is 'arrays:\w{8}' there.*or force=True to start over.* fednoil.run\(out='cut', resume=True\)$"
    with pytest.raises(package.UserError, match=words):
        package.run("demo/fedavg", data=other, test=test_pair(), set=TINY, out="cut", resume=True)


def test_a_simulation_of_named_clients_can_be_given_more_rounds() -> None:
    sites = dict(zip("abcd", clients(), strict=True))
    package.run("demo/fedavg", data=sites, set=TINY, out="named")
    assert len(package.run(out="named", resume=True, set={"train.rounds": 3}).history) == 3


def test_the_model_takes_pixels_and_fractions(reference: Path) -> None:
    run = package.load(reference)
    x, _ = test_pair()
    pixels = torch.from_numpy(x)[:, None]
    assert not run.model.training
    assert torch.allclose(run.model(pixels), run.model(pixels / 255), atol=1e-4)
    scores = np.mean(run.predict(x) == test_pair()[1]) * 100
    assert scores == pytest.approx(run.accuracy)
    assert run.probabilities(x).sum(1) == pytest.approx(np.ones(len(x)), abs=1e-5)
    sent = torch.nn.Sequential(run.model, torch.nn.Softmax(1))(pixels)
    assert np.allclose(sent.detach().numpy(), run.probabilities(x), atol=1e-6)


@pytest.mark.parametrize("learner", ["dividemix", "coteaching"])
def test_a_model_of_two_networks_answers_as_its_method_does(learner: str) -> None:
    keys = {**TINY, "learner.name": learner}
    run = package.run("demo/fedavg", data=clients(), test=test_pair(), set=keys)
    x, y = test_pair()
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
    with pytest.raises(package.UserError, match="nowhere is not a run folder"):
        package.compare("nowhere")


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
