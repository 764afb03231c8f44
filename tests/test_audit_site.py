"""`fednoil audit` of a site's own data: folders, arrays and shards, and what it says of bad input."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import done, refused, tiny_arrays
from made_audit import at_site
from PIL import Image

from fednoil.audit import files
from fednoil.audit import site as site_audit
from fednoil.audit.site import of_data
from fednoil.records.model_file import LoadedModel, load_model
from fednoil.rounds import RunState
from fednoil.rounds.final import known_accuracy
from fednoil.servers.base import ServerState


@pytest.fixture
def model(trained: Path) -> Path:
    return trained / "run" / "model.safetensors"


@pytest.mark.parametrize("train", [True, False])
def test_a_sites_folder(trained: Path, site: Path, tmp_path: Path, train: bool) -> None:
    """With train/ and test/ as for training, or plain class folders; wrong labels are found by the model alone."""
    place = site if train else site / "train"
    wrong = sorted((site / "train" / "bone").iterdir())[:3]
    for path in wrong:
        path.rename(site / "train" / "skin" / path.name)
    summary, printed = at_site(trained, place, tmp_path)
    rows = pq.read_table(tmp_path / "audit" / "labels.parquet").to_pylist()
    assert len(rows) == 80
    assert {row["client"] for row in rows} == {None}
    assert all((place / row["item"]).is_file() for row in rows)
    assert summary["clients"][0]["client"] is None
    assert summary["data"] == f"folder:{place}"
    assert "labels wrong" in printed


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_a_sites_arrays(model: Path, tmp_path: Path, form: str) -> None:

    arrays = tiny_arrays()
    order = np.array([1, 2, 0, 3])  # the model's classes are sorted by name
    path = tmp_path / f"site.{form}"
    if form == "npz":
        names = np.array(["bone", "lung", "Röntgen", "skin"])
        np.savez(path, x_train=arrays["x_train"], y_train=arrays["y_train"], class_names=names)
    else:
        encoded = []
        for image in arrays["x_train"]:
            Image.fromarray(image).save(buffer := io.BytesIO(), format="png")
            encoded.append(buffer.getvalue())
        pq.write_table(pa.table({"image": encoded, "label": order[arrays["y_train"]]}), path)
    done("audit", "--data", f"{form}:{path}", "--model", model, "--out", tmp_path / "a", "--json")
    rows = pq.read_table(tmp_path / "a" / "labels.parquet").to_pylist()
    assert sorted(int(row["item"]) for row in rows) == list(range(80))
    assert all(row["index"] == int(row["item"]) for row in rows)
    expected = ["bone", "lung", "Röntgen", "skin"]
    assert all(row["given"] == expected[arrays["y_train"][row["index"]]] for row in rows)


def test_unreadable_images_are_listed_and_skipped(trained: Path, site: Path, tmp_path: Path) -> None:
    (site / "train" / "bone" / "broken.png").write_bytes(b"no picture")
    (site / "train" / "bone" / "notes.txt").write_text("x")
    cut = next((site / "train" / "skin").iterdir())
    cut.write_bytes(cut.read_bytes()[:-40])
    Image.fromarray(np.zeros((8, 8), np.float32)).save(site / "train" / "lung" / "deep.tif")
    (site / "train" / "stray.png").write_bytes(b"")
    (site / "train" / "skin" / "gone.png").symlink_to(tmp_path / "nowhere")
    (site / "train" / "skin" / "more").mkdir()
    summary, printed = at_site(trained, site, tmp_path)
    skipped = dict(summary["clients"][0]["skipped"])
    assert skipped.keys() == {
        "train/bone/broken.png",
        "train/bone/notes.txt",
        "train/lung/deep.tif",
        "train/stray.png",
        "train/skin/gone.png",
        "train/skin/more",
        f"train/skin/{cut.name}",
    }
    assert "truncated" in skipped[f"train/skin/{cut.name}"]
    assert skipped["train/bone/notes.txt"].startswith("is not an image file (.png, ")
    assert "link to nothing" in skipped["train/skin/gone.png"]
    assert skipped["train/skin/more"] == "is a folder in a class folder"
    assert "can't be read as an image" in skipped["train/bone/broken.png"]
    assert "32 bits" in skipped["train/lung/deep.tif"]
    assert summary["overall"]["skipped"] == 7
    assert summary["overall"]["samples"] == 79
    assert "and 6 more" in printed


def test_duplicates_are_reported_and_kept(trained: Path, site: Path, tmp_path: Path) -> None:
    first = sorted((site / "train" / "bone").iterdir())[0]
    shutil.copy(first, site / "train" / "skin" / "again.png")
    summary, printed = at_site(trained, site, tmp_path)
    assert summary["clients"][0]["duplicates"] == [[f"train/bone/{first.name}", "train/skin/again.png"]]
    assert summary["overall"]["samples"] == 81
    assert "1 sample occurs more than once" in printed


def test_empty_class_folders_are_reported(trained: Path, site: Path, tmp_path: Path) -> None:
    (site / "train" / "heart").mkdir()
    summary, printed = at_site(trained, site, tmp_path)
    assert "the class folder 'heart' is empty" in printed
    assert summary["clients"][0]["notices"][0] == "the class folder 'heart' is empty"


def test_unknown_classes_are_refused_or_left_out(model: Path, trained: Path, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site / "train" / "skin", site / "train" / "heart")
    said = refused("audit", "--data", f"folder:{site}", "--model", model, "--out", tmp_path / "audit")
    assert "class 'heart'" in said
    assert "Röntgen, bone, lung, skin" in said
    assert not (tmp_path / "audit").exists()
    summary, _ = at_site(trained, site, tmp_path, "--skip-unknown")
    assert len(summary["clients"][0]["skipped"]) == 20
    assert summary["overall"]["samples"] == 80


def test_images_of_another_size_are_refused_or_scaled(model: Path, trained: Path, site: Path, tmp_path: Path) -> None:
    for path in list((site / "train" / "bone").iterdir())[:2]:
        Image.new("RGB", (16, 12)).save(path)
    said = refused("audit", "--data", f"folder:{site}", "--model", model, "--out", tmp_path / "audit")
    assert "(16×12 pixels) and 1 more are not of the model's size, 8×8; add --resize" in said
    summary, printed = at_site(trained, site, tmp_path, "--resize")
    assert "2 images were scaled and cropped to 8×8 pixels" in printed
    assert summary["overall"]["samples"] == 80


def test_people_see_pictures_as_they_lie(model: Path, site: Path) -> None:
    """In colour and in proportion, though this model sees 8×8 pixels in grey: the first is 200×100 pixels of red."""
    paths = sorted((site / "train").rglob("*.png"))
    assert of_data(f"folder:{site}", model).images(3).shape == (8, 8, 1)
    red = Image.new("RGB", (200, 100), (250, 0, 0))
    red.save(paths[0].with_suffix(".jpg"), quality=95)
    paths[0].unlink()
    found = of_data(f"folder:{site}", model, resize=True)
    case = found.clients[0]
    first = next(n for n, item in enumerate(case.items) if item.endswith(".jpg"))
    shown = found.images(int(case.index[first]))
    assert shown.shape == (96, 96, 3)
    assert np.abs(shown[24:72].astype(int) - (250, 0, 0)).max() < 12
    assert (shown[:23].max(), shown[73:].max()) == (0, 0)
    assert case.notices == ("1 image was scaled and cropped to 8×8 pixels", "1 image was made grey for the model")
    for path in paths[1:]:
        red.save(path)
    assert of_data(f"folder:{site}", model, resize=True).images(3).shape == (48, 96, 3)


def test_a_large_jpeg_is_shown_whole(model: Path, site: Path) -> None:
    """Though it is decoded small: its upper half is black, its lower half white."""
    pixels = np.zeros((1600, 1600), np.uint8)
    pixels[800:] = 255
    for path in (site / "train").rglob("*.png"):
        path.unlink()
    Image.fromarray(pixels).save(site / "train" / "bone" / "large.jpg")
    shown = of_data(f"folder:{site}", model, resize=True).images(0)
    assert shown.shape == (96, 96, 3)
    assert (shown[:40].max() < 10, shown[56:].min() > 245) == (True, True)


def test_other_bad_input(model: Path, trained: Path, site: Path, tmp_path: Path) -> None:
    """Each is one line, and nothing is written."""
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "bone").mkdir(parents=True)
    (tmp_path / "broken" / "bone" / "x.png").write_bytes(b"x")
    (tmp_path / "patients" / "bone" / "anna").mkdir(parents=True)
    (tmp_path / "patients" / "bone" / "scan.dcm").write_bytes(b"x")
    (tmp_path / "model.safetensors").write_bytes(b"no model")
    np.savez(tmp_path / "labels.npz", x_train=np.zeros((3, 8, 8), np.uint8), y_train=np.array([0, 1, 9]))
    pictures = np.zeros((3, 8, 8), np.uint8)
    np.savez(tmp_path / "names.npz", x_train=pictures, y_train=[0, 2, -1], class_names=["bone", "lung"])
    np.savez(tmp_path / "twice.npz", x_train=pictures, y_train=[0, 1, 1], class_names=["bone", "bone"])
    np.savez(tmp_path / "short.npz", x_train=np.zeros((3, 8, 8), np.uint8))
    said = {
        (f"folder:{tmp_path / 'none'}", model): "is not a folder",
        (f"folder:{tmp_path / 'empty'}", model): "holds no labelled image",
        (f"folder:{tmp_path / 'patients'}", model): "skipped: bone/anna is a folder in a class folder, and 1 more",
        ("folder:", model): "data 'folder:' must be folder:PATH",
        (f"folder:{tmp_path / 'broken'}", model): "none of its 1 images can be read",
        (f"npz:{tmp_path / 'none.npz'}", model): "is not a file",
        (f"npz:{tmp_path / 'short.npz'}", model): "lacks y_train",
        (f"npz:{tmp_path / 'labels.npz'}", model): "label 9 (number 2) is not a class of the model, which has 0 to 3",
        (f"parquet:{tmp_path / 'none'}", model): "neither a file nor a folder",
        (f"npz:{tmp_path / 'names.npz'}", model): "label 2 (number 1) is not a class of its class_names",
        (f"npz:{tmp_path / 'twice.npz'}", model): "class name 'bone' stands for two classes",
        (
            "photos",
            model,
        ): "must be folder:PATH, csv:FILE, npz:FILE, parquet:PATH, hf:PATH, webdataset:PATH, table:FILE",
        ("folder:~no-such-user/photos", model): "can't be read",
        (f"npz:{'x' * 5000}", model): "can't be read",
        (f"folder:{site}", tmp_path / "model.safetensors"): "is damaged or not a safetensors file",
        (f"folder:{site}", tmp_path / "none"): "no such file",
        (f"folder:{site}", trained / "run"): "is a folder; give a file, such as model.safetensors",
    }
    for (data, file), wanted in said.items():
        assert wanted in refused("audit", "--data", data, "--model", file, "--out", out)
    assert not out.exists()


def test_the_device_is_a_gpu_where_there_is_one(
    model: Path, trained: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of a pretended GPU, whose work the CPU does."""
    asked = []

    def load(path: Path, trusted: tuple[str, ...], device: torch.device) -> LoadedModel:
        asked.append(device.type)
        return load_model(path, trusted)

    monkeypatch.setattr(site_audit, "load_model", load)
    for number, (gpu, options) in enumerate(
        [(False, ()), (True, ()), (True, ("--device", "cuda")), (True, ("--device", "cpu"))]
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        at_site(trained, site, tmp_path / str(number), *options)
    assert asked == ["cpu", "cuda", "cuda", "cpu"]
    first, *others = [(tmp_path / f"{n}/audit/labels.csv").read_bytes() for n in range(4)]
    assert others == [first] * 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    error = refused("audit", "--data", f"folder:{site}", "--model", model, "--out", tmp_path / "x", "--device", "cuda")
    assert "--device = 'cuda', but PyTorch sees no CUDA GPU here" in error


def test_the_model_remembers_its_accuracy_of_each_class(model: Path, trained: Path, site: Path) -> None:
    """At a site it may be less on all images, by what the model itself says, and is then less on each class's."""
    known = json.loads((trained / "run" / "summary.json").read_text())
    assert load_model(model).per_class == tuple(known["per_class_accuracy"])
    (case,) = of_data(f"folder:{site}", model, skip_unknown=True, resize=True).clients
    assert case.accuracy is not None
    less = case.accuracy / known["final_accuracy"]
    assert less <= 1
    assert case.per_class == pytest.approx([value * less for value in known["per_class_accuracy"]])


def test_a_model_that_hesitates_at_a_site_is_trusted_less(
    model: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much as it trusts itself there, and on each class by the same factor."""
    known = replace(load_model(model), accuracy=100.0, per_class=(80.0, None, 60.0, 100.0))
    monkeypatch.setattr(site_audit, "load_model", lambda *_: known)
    (case,) = of_data(f"folder:{site}", model).clients
    sure = float(case.probabilities.max(1).mean())
    assert 0.25 < sure < 0.999
    assert case.accuracy == pytest.approx(100 * sure)
    assert case.per_class == (pytest.approx(80 * sure), None, pytest.approx(60 * sure), pytest.approx(100 * sure))


@pytest.mark.parametrize(("held_out", "accuracy", "by_class"), [(0, 75, (50.0, None, 100.0)), (3, None, ())])
def test_the_accuracy_is_the_mean_over_classes_that_are_known(
    held_out: int, accuracy: float | None, by_class: tuple[float | None, ...]
) -> None:
    """Labels that were held out of the training images may be wrong: they don't make an accuracy."""
    state = RunState(1, ServerState({}), per_class=(50.0, None, 100.0))
    dataset = SimpleNamespace(about=SimpleNamespace(held_out=held_out))
    setting, config = SimpleNamespace(dataset=dataset), SimpleNamespace(run=SimpleNamespace(select="last"))
    experiment: Any = SimpleNamespace(setting=setting, config=config)
    assert known_accuracy(experiment, state) == (accuracy, by_class)


def test_a_model_of_another_architecture_is_refused(model: Path, site: Path, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(model, framework="pt") as file:
        metadata = file.metadata()
    tensors = {name: torch.zeros(*tensor.shape, 2) for name, tensor in load_file(model).items()}
    save_file(tensors, tmp_path / "other.safetensors", metadata)
    said = refused(
        "audit", "--data", f"folder:{site}", "--model", tmp_path / "other.safetensors", "--out", tmp_path / "o"
    )
    assert "does not fit the architecture" in said


def test_labels_outside_the_class_names_can_be_left_out(model: Path, tmp_path: Path) -> None:
    pictures, labels = np.zeros((4, 8, 8), np.uint8), [0, 2, -1, 1]
    np.savez(tmp_path / "site.npz", x_train=pictures, y_train=labels, class_names=["lung", "bone"])
    words = ("--data", f"npz:{tmp_path / 'site.npz'}", "--model", model)
    printed = done("audit", *words, "--out", tmp_path / "audit", "--skip-unknown", "--json")
    assert [item for item, _ in json.loads(printed)["clients"][0]["skipped"]] == ["1", "2"]
    rows = pq.read_table(tmp_path / "audit" / "labels.parquet").to_pylist()
    assert {row["item"]: row["given"] for row in rows} == {"0": "lung", "3": "bone"}
    assert {row["item"]: row["index"] for row in rows} == {"0": 0, "3": 3}


def test_an_audit_is_never_written_among_the_pictures(
    model: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be one more class of them; without --out it goes to the folder where one is."""
    before = sorted(site.rglob("*"))
    (tmp_path / "link").symlink_to(site)
    for data, out in (
        (site, site / "audit"),
        (site, tmp_path / "link" / "train"),
        (tmp_path / "link", site / "a" / "b"),
    ):
        error = refused("audit", "--data", f"folder:{data}", "--model", model, "--out", out / "new")
        assert "is inside the data" in error
    monkeypatch.chdir(site / "train")
    assert "--out audit is inside the data folder:." in refused("audit", "--data", "folder:.", "--model", model)
    assert sorted(site.rglob("*")) == before


@pytest.mark.parametrize("left", ["audit.html", "audit.html.part"])
def test_an_audit_that_was_stopped_can_be_made_again(model: Path, site: Path, tmp_path: Path, left: str) -> None:
    out = tmp_path / "audit"
    out.mkdir()
    (out / left).write_text("half")
    (out / "decisions.csv").write_text("mine")
    words = ("audit", "--data", f"folder:{site}", "--model", model, "--out", out)
    assert "holds an audit that was not finished; add --force" in refused(*words)
    done(*words, "--force")
    assert (out / "decisions.csv").read_text() == "mine"
    assert "holds an audit already; add --force" in refused(*words)


def test_a_full_disk_is_reported_with_what_helps(
    model: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit has no --resume."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "labels.parquet")

    words = ("audit", "--data", f"folder:{site}", "--model", model)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_audit", full)
        error = refused(*words, "--out", tmp_path / "audit")
    assert "labels.parquet: No space left on device" in error
    assert error.endswith("is incomplete, make it again with --force\n")
    done(*words, "--out", tmp_path / "audit", "--force")
    (tmp_path / "file").touch()
    assert refused(*words, "--out", tmp_path / "file" / "audit").endswith("audit: Not a directory\n")


def test_names_that_are_no_text_are_shown_as_bytes(trained: Path, site: Path, tmp_path: Path) -> None:
    """Of the data, of a class without pictures; the pictures themselves are read."""
    own = Path(os.fsdecode(os.fsencode(tmp_path) + b"/own\xff"))
    try:
        site.rename(own)
        (own / "train" / os.fsdecode(b"\xfe")).mkdir()
    except OSError:
        pytest.skip("this file system has text for names")
    summary, printed = at_site(trained, own, tmp_path)
    assert summary["data"] == f"folder:{tmp_path}/own\\xff"
    assert summary["clients"][0]["samples"] == 80
    assert "the class folder '\\xfe' is empty" in printed
