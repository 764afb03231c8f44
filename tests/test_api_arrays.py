"""The Python API on the user's own arrays and datasets, client by client."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import fednoil, tiny_arrays
from given_data import TINY, Keys, clients, held_out, refusal
from torch.utils.data import Dataset, TensorDataset

import fednoil as package

pytestmark = pytest.mark.usefixtures("here")


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
    x, y = held_out()
    run = package.run("demo/fedavg", data=data, test=(change(x), list(y)), set=TINY)
    plain = package.run("demo/fedavg", data=clients(), test=held_out(), set=TINY)
    assert run.history["test_accuracy"] == plain.history["test_accuracy"]
    assert run.history["train_loss"] == plain.history["train_loss"]
    assert np.array_equal(run.predict(change(x)), plain.predict(x))
    assert list(here.iterdir()) == []


def test_colour_has_three_channels() -> None:
    data = [(np.repeat(x[..., None], 3, -1), y) for x, y in clients()]
    run = package.run("demo/fedavg", data=data, set=TINY)
    assert run.predict(data[0][0].transpose(0, 3, 1, 2)).shape == (20,)
    with pytest.raises(package.UserError, match=r"images are 8×8×1 .width×height×channels., the model takes 8×8×3"):
        run.predict(held_out()[0])


class Pictures(Dataset[Any]):
    """Samples as torchvision gives them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.images[place])[None] / 255, int(self.labels[place])


def test_torch_datasets_are_data_too() -> None:
    plain = package.run("demo/fedavg", data=clients(), test=held_out(), set=TINY)
    first, second, *rest = clients()
    tensors = TensorDataset(torch.from_numpy(first[0]), torch.from_numpy(first[1]))
    run = package.run("demo/fedavg", data=[tensors, Pictures(*second), *rest], test=Pictures(*held_out()), set=TINY)
    assert run.history["test_accuracy"] == plain.history["test_accuracy"]


def test_names_on_disk_come_back() -> None:
    rows = "".join(f"{n},{'ill' if n % 2 else 'well'}\n" for n in range(40))
    Path("people.csv").write_text(f"age,label\n{rows}")
    run = package.run("demo/fedavg", data="table:people.csv", set={**TINY, "model.name": "mlp"})
    assert {*run.predict(np.array([[3.0], [4.0]], np.float32))} <= {"ill", "well"}


def test_texts_are_labels_and_come_back() -> None:
    words = np.array(["cat", "dog", "bird", "ant"])
    data = {f"site {k}": (x, words[y]) for k, (x, y) in enumerate(clients())}
    x, y = held_out()
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
    assert set(run.audit("süd").table["client"]) == set(run.audit(1).table["client"]) == {"süd"}
    with pytest.raises(package.UserError, match="client = 'west': the run has the clients nord, süd, or 0 to 1"):
        run.audit("west")
    with pytest.raises(package.UserError, match="method = 'guess' is unknown; choose channel or cleanlab"):
        run.audit(method="guess")
    assert all(row["p_wrong"] > 0.5 for row in audit.flagged)
    assert len(audit.flagged) == sum(audit.table["flagged"])
    assert audit.save("audit").is_file()
    run.save("kept")
    assert fednoil("audit", "kept")[0] == 0
    assert package.load("kept").audit().table == audit.table


def test_whole_numbers_may_be_floats_and_similar_names_are_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    (images, labels), *_ = clients()
    whole, floats = (package.run("demo/fedavg", data=[(images, y)], set=TINY) for y in (labels, labels.astype(float)))
    assert floats.history["train_loss"] == whole.history["train_loss"]
    names = np.array(["Gesund", "gesund ", "a", "A"])[labels]
    package.run("demo/fedavg", data=[(images, names)], set=TINY, progress=True)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "differ only" in line]
    assert line == "classes 'Gesund' and 'gesund ' differ only in case or spaces; if they are one, give it one name"


def test_true_labels_are_for_metrics_alone() -> None:
    data = [(x, np.where(np.arange(20) < 5, (y + 1) % 4, y)) for x, y in clients()]
    plain = package.run("demo/fedavg", data=data, test=held_out(), set=TINY)
    known = package.run("demo/fedavg", data=data, test=held_out(), set=TINY, true_labels=[y for _, y in clients()])
    assert "selected_noise" not in plain.history.columns
    assert known.history["selected_noise"] == [25.0, 25.0]
    assert known.history["train_loss"] == plain.history["train_loss"]
    assert known.audit().summary["overall"]["ratio_error"]["mean"] >= 0
    assert known.save("kept").audit().summary == known.audit().summary


def test_noise_is_added_to_arrays_only_if_asked_for() -> None:
    noise = {"noise.kind": "symmetric", "noise.ratios": [0.5]}
    run = package.run("demo/fedavg", data=clients(), test=held_out(), set={**TINY, **noise})
    assert run.history["selected_noise"][0] > 30
    own = package.run({**TINY, **noise}, data=clients(), test=held_out())
    assert own.history["selected_noise"][0] > 30
    assert package.run("demo", data=clients(), set=TINY).config.noise.kind == "unknown"


def test_one_pair_is_dealt() -> None:
    arrays = tiny_arrays()
    pair = arrays["x_train"], arrays["y_train"]
    run = package.run("demo/fedavg", data=pair, test=held_out(), set={**TINY, "partition.clients": 5})
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
        (
            {"data": [(X[0], Y)]},
            "data[0]: images are uint8 of shape [8, 8], like a single picture; give pictures as [N, H, W]",
        ),
        ({"data": [(np.repeat(X[..., None], 4, -1), Y)]}, "[20, 8, 8, 4]; they must be"),
        ({"data": [(X[:0], Y[:0])]}, "data[0]: images: there are none (shape [0, 1, 8, 8])"),
        ({"data": [(X / 16, Y)]}, "data[0]: images are fractions from 0 to"),
        ({"data": [(X / np.nan, Y)]}, "data[0]: images have NaN for 1280 of their numbers; pixels can't be missing"),
        ({"data": [(X.astype(int) - 9, Y)]}, "data[0]: images are whole numbers from -9 to"),
        ({"data": [(X.astype(str), Y)]}, "give arrays of numbers"),
        ({"data": [([X[0], X[1][:4]], Y[:2])]}, "data[0]: images differ in shape; all must have the same"),
        ({"data": [(X, Y[:3])]}, "data[0] has 20 images and 3 labels; the numbers must agree"),
        ({"data": [(X, Y / 2)]}, "data[0]: labels are float64 of the shape [20]; give one whole number or string per"),
        ({"data": [(X, [*Y[:19], None])]}, "data[0]: labels: label 19 (counted from 0) is missing; leave such samples"),
        ({"data": [(X, [*Y[:7], math.nan, *Y[8:]])]}, "label 7 (counted from 0) is missing; leave such samples out"),
        ({"data": [(X, np.eye(4)[Y])]}, "labels are float64 of the shape [20, 4]"),
        ({"data": [(X, Y + 1)]}, "data: the labels are 1, 2, 3, 4; number classes 0, 1, 2 … without a gap"),
        ({"data": [(X, Y * 0)]}, "there is only one class"),
        ({"data": [(X, Y), (X, Y.astype(str))]}, "data[1]: labels are text, others numbers"),
        ({"data": [(X, Y)], "test": (X, Y + 1)}, "test label 4 (number 3) is out of range; use 0..3"),
        (
            {"data": [(X, Y.astype(str))], "test": (X, (Y + 1).astype(str))},
            "test: labels: '4' is not one of the classes",
        ),
        ({"data": [(X, Y)], "test": (X[:, 1:], Y)}, "test: images are 8×7×1 (width×height×channels), those of data[0]"),
        ({"data": [(X, Y)], "class_names": ["a", "a", "b", "c"]}, "class name 'a' stands for two classes"),
        ({"data": [(X, Y)], "class_names": "abcd"}, "class_names = 'abcd' is one string; give a list"),
        ({"data": [(np.zeros((20, 0)), Y)]}, "data[0]: images have the shape [20, 0], no columns"),
        ({"data": [(X, Y)], "class_names": ["a", "b"]}, "class_names has 2 names, and data have the label 3; give all"),
        ({"data": {"": (X, Y)}}, "data: '' is not a name for a client"),
        (
            {"data": {1: (X, Y), "1": (X, Y)}},
            "data: '1' is not a name for a client; each needs a different, readable name",
        ),
        (
            {"data": [(X, Y)], "true_labels": [Y, Y]},
            "true_labels must have the form of data: labels for each of its 1 clients",
        ),
        (
            {"data": {"a": (X, Y), "test": (X, Y)}},
            "data has a client 'test'; give samples that test the model as test=",
        ),
        ({"data": [(X, Y)], "true_labels": 3}, "true_labels[0] are int64 of the shape []; give one whole number"),
        ({"data": [(X, [np.inf, *Y[1:]])]}, "data[0]: labels are float64 of the shape [20]; give one whole number or"),
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


def decided(data: dict[str, Any], names: list[str] | None, tmp_path: Path) -> dict[str, Any]:
    """The data after the page's lines for decisions: the first label of the first client becomes the last class."""
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import csv\n.*?)```", page, flags=re.S)
    run = package.run("demo/fedavg", data=data, class_names=names, set=TINY)
    (tmp_path / "decisions.csv").write_text(f"client,item,decision,label\nnord,0,accept,{run.class_names[-1]}\n")
    space: dict[str, Any] = {"data": data, "run": run}
    exec(code, space)  # the documentation's own code
    return space["data"]


def test_decisions_about_arrays_as_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text may be longer than any label of that client, and numbers may have names."""
    monkeypatch.chdir(tmp_path)
    (images, labels), *_ = clients()
    words = np.array(["a", "b", "c", "longer"])
    short = images[labels < 3], words[labels[labels < 3]].astype("U1")
    found = decided({"nord": short, "süd": (images, words[labels])}, None, tmp_path)
    assert found["nord"][1][0] == "longer"
    assert found["süd"][1] == list(words[labels])
    found = decided({"nord": (images, labels)}, list(words), tmp_path)
    assert found["nord"][1] == [3, *labels[1:]]
    package.run("demo/fedavg", data=found, class_names=list(words), set=TINY)


def test_vectors_of_bytes_are_told_from_a_picture() -> None:
    with pytest.raises(package.UserError, match=r"uint8 of shape \[20, 5\], like a single picture; give pictures as"):
        package.run("demo/fedavg", data=[(np.zeros((20, 5), np.uint8), np.arange(20) % 2)], set=TINY)
